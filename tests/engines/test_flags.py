"""Flags: rendered as written, and every slip that argparse would forgive is named."""

import argparse

import pytest
from hypothesis import given as every
from hypothesis import strategies as st

from harness.engines.arguments import Argument, ArgumentList
from harness.engines.flags import check, given, render
from harness.scenario.model import FlagValue

SGLANG = ArgumentList.load("sglang")
VLLM = ArgumentList.load("vllm")
LIGHTLLM = ArgumentList.load("lightllm")


def only(flags: dict[str, FlagValue], arguments: ArgumentList = SGLANG) -> str:
    """The one problem of these flags."""
    problems = check(flags, arguments, ("--model-path", "--port"))
    assert len(problems) == 1, problems
    return problems[0]


def test_render_keeps_order_and_spelling() -> None:
    flags: dict[str, FlagValue] = {
        "--b": 1,
        "--a_b": True,
        "--off": False,
        "--none": None,
        "--list": [1, "x", 0.5],
        "--f": 0.3,
        "--json": '{"a": 1}',
        "--empty": "",
    }
    expected = [
        "--b",
        "1",
        "--a_b",
        "--list",
        "1",
        "x",
        "0.5",
        "--f",
        "0.3",
        "--json",
        '{"a": 1}',
        "--empty",
        "",
    ]
    assert render(flags) == expected


def test_given_looks_through_spellings() -> None:
    assert given({"--tp-size": None, "--tensor-parallel-size": 2}, "--tp-size", "--tensor-parallel-size") == 2
    assert given({"--tp-size": False}, "--tp-size") is None
    assert given({"--seed": 0}, "--seed") == 0


def test_right_flags_have_no_problem() -> None:
    sglang: dict[str, FlagValue] = {
        "--kv-cache-dtype": "fp8_e4m3",
        "--mem-fraction-static": 0.3,
        "--max-total-tokens": "4k",
        "--enable-metrics": True,
        "--random-seed": -1,
        "--dcp-replicate-q-proj": None,
        "--no-dcp-replicate-q-proj": True,
        "--cuda-graph-bs-decode": [1, 2, 4],
        "--page-size": 64,
        "--disable-cuda-graph": True,
    }
    assert check(sglang, SGLANG, ("--model-path",)) == []
    vllm: dict[str, FlagValue] = {
        "--kv-cache-dtype": "fp8",
        "--max-model-len": "auto",
        "--speculative-config": '{"method": "ngram", "num_speculative_tokens": 4}',
        "--compilation-config.mode": 3,
        "--compilation-config.cudagraph_mode": "NONE",
        "-tp": 2,
        "--no-enable-prefix-caching": True,
        "--max-log-len": "None",
        "--gpu-memory-utilization": "0.9",
    }
    assert check(vllm, VLLM, ()) == []
    lightllm: dict[str, FlagValue] = {
        "--llm_kv_type": "None",
        "--mtp_mode": "eagle_with_att",
        "--run_mode": "normal",
    }
    assert check(lightllm, LIGHTLLM, ("--model_dir",)) == []


def test_unknown_flag_names_the_nearest_and_the_list() -> None:
    problem = only({"--kv-cache-dtyp3": "auto"})
    assert problem.startswith("sglang has no flag --kv-cache-dtyp3; the nearest is --kv-cache-dtype (")
    assert problem.endswith("(packaged list of sglang 0.5.23)")
    assert "nearest" not in only({"--xyzzy": 1})


@pytest.mark.parametrize(
    ("flag", "meant"),
    [
        ("--kv_cache_dtype", "--kv-cache-dtype"),
        ("-kv-cache-dtype", "--kv-cache-dtype"),
        ("kv-cache-dtype", "--kv-cache-dtype"),
        ("--KV-cache-dtype", "--kv-cache-dtype"),
        ("--kv-cache-dtype ", "--kv-cache-dtype"),
    ],
)
def test_slips_of_spelling(flag: str, meant: str) -> None:
    assert only({flag: "auto"}) == f"{flag} is spelled {meant}"


def test_dashes_where_lightllm_has_underscores() -> None:
    assert check({"--llm-kv-type": "None"}, LIGHTLLM, ()) == ["--llm-kv-type is spelled --llm_kv_type"]


def test_abbreviations_are_named() -> None:
    assert only({"--mem-frac": 0.3}) == "--mem-frac is an abbreviation of --mem-fraction-static; write it out"
    assert "--cuda-graph-max-bs-decode, --cuda-graph-max-bs-prefill" in only({"--cuda-graph-max-bs": 8})
    assert only({"--": 1}).startswith("sglang has no flag --")


def test_value_written_into_the_flag() -> None:
    assert only({"--device=cpu": True}) == "--device=cpu: write the value behind a colon, as `--device: cpu`"


def test_bad_choice_names_the_nearest() -> None:
    assert only({"--kv-cache-dtype": "fp8"}).startswith(
        "--kv-cache-dtype has no choice `fp8`; the nearest is "
    )
    assert "fp8_e4m3" in only({"--kv-cache-dtype": "fp8_e4m"})


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"--tp-size": "two"}, "a whole number"),
        ({"--page-size": 1.0}, "a whole number"),
        ({"--mem-fraction-static": "30%"}, "a number"),
        ({"--max-total-tokens": "4 k"}, "such as 4096 or 4k"),
        ({"--chunked-prefill-size": True}, "takes one value, and has none"),
        ({"--chunked-prefill-size": [1, 2]}, "takes one value, and is given 2"),
        ({"--cuda-graph-bs-decode": True}, "one or more values"),
        ({"--enable-metrics": "yes"}, "takes no value; write `--enable-metrics: true`"),
        ({"--enable-metrics": 1}, "takes no value"),
        ({"--chat-template": "-x"}, "begins with a dash"),
        ({"--port": 1}, "set by the harness"),
        ({"--model": "x"}, "set by the harness"),  # another spelling of an owned flag
        ({"--dcp-replicate-q-proj": False}, "write `--no-dcp-replicate-q-proj: true`"),
        ({"--tp-size": 2, "--tensor-parallel-size": 2}, "are the same option"),
        ({"--enable-tf32-matmul": True, "--no-enable-tf32-matmul": True}, "are the same option"),
    ],
)
def test_wrong_values(flags: dict[str, FlagValue], says: str) -> None:
    assert says in only(flags)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"--speculative-config": "{'method': 'ngram'}"}, "takes JSON"),
        ({"--speculative-config": "{}", "--speculative-config.method": "ngram"}, "would replace all of"),
        ({"--enforce-eager.mode": 1}, "takes no value, so it has no entries"),
        ({"--no-such-config.mode": 1}, "vllm has no flag"),
        ({"--compilation-config.mode": True}, "takes one value"),
        ({"--middleware": ["a", "b"]}, "can give it once"),
    ],
)
def test_wrong_values_of_vllm(flags: dict[str, FlagValue], says: str) -> None:
    problems = check(flags, VLLM, ())
    assert len(problems) == 1
    assert says in problems[0]


def test_dots_mean_nothing_to_other_engines() -> None:
    assert "has no flag" in only({"--kv-cache-dtype.x": 1})


def test_all_problems_at_once() -> None:
    assert (
        len(check({"--bogus": 1, "--tp-size": "two", "--port": 1}, SGLANG, ("--model-path", "--port"))) == 3
    )


def test_required_flags() -> None:
    assert check({}, SGLANG, ()) == ["--model-path is required by sglang"]
    assert check({"--model": "x"}, SGLANG, ()) == []


def test_a_flag_taken_out_is_still_checked_for_its_name() -> None:
    assert only({"--bogus": None}).startswith("sglang has no flag")
    assert check({"--kv-cache-dtype": None, "--enable-metrics": False}, SGLANG, ("--model-path",)) == []


def test_deprecated_is_not_a_problem() -> None:
    flags: dict[str, FlagValue] = {"--enable-dp-attention": True}
    assert check(flags, SGLANG, ("--model-path",)) == []


def test_fixed_count_of_values() -> None:
    pair = ArgumentList(
        engine="x", version="", source="", dotted=False, options=(Argument(flags=("--pair",), nargs=2),)
    )
    assert check({"--pair": [1, 2]}, pair, ()) == []
    assert check({"--pair": [1]}, pair, ()) == ["--pair takes 2 values, and is given 1"]


WORDS = st.text(alphabet="abk01.-", max_size=4)


@every(st.sampled_from(["int", "float"]), WORDS)
def test_what_passes_is_what_argparse_takes(kind: str, word: str) -> None:
    """The judgement of one value agrees with argparse's own."""
    arguments = ArgumentList(
        engine="x", version="", source="", dotted=False, options=(Argument(flags=("--n",), type=kind),)
    )
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--n", type=int if kind == "int" else float)
    try:
        parser.parse_args(render({"--n": word}))
        accepted = True
    except (argparse.ArgumentError, SystemExit):
        accepted = False
    assert (check({"--n": word}, arguments, ()) == []) == accepted


@pytest.mark.parametrize("engine", ["sglang", "vllm", "lightllm"])
def test_packaged_lists_are_whole(engine: str) -> None:
    arguments = ArgumentList.load(engine)
    assert len(arguments.options) >= 150
    assert len(set(arguments.flags)) == len(arguments.flags)
    assert all(option.flags for option in arguments.options)


def test_no_list_for_an_unknown_engine() -> None:
    with pytest.raises(KeyError):
        ArgumentList.load("nobody")
