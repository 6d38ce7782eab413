"""The command line: the argument list is accepted, all else refused; start-up asserts and silent rewrites."""

import ast
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.engines.arguments import Argument, ArgumentList
from harness.simulator import start_args
from harness.simulator.model import Model
from tests.simulator.launched import GLM, model_dir
from tests.simulator.parser import API_CLI, parser

OPTIONS = ArgumentList.load("lightllm").options
VALUES = {"int": "3", "float": "0.5", "": "text"}
SMALL_PAGES = "--linear_att_hash_page_size 128 --linear_att_page_block_num 2"
PLAIN = {"model_type": "llama", "max_position_embeddings": 4096, "eos_token_id": [1, 2], "dtype": "float16"}


def _words(option: Argument, flag: str, value: str) -> list[str]:
    return [flag] if option.bare else [flag, value]


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: str(option.flags[0]))
def test_every_flag_and_every_choice_is_accepted(option: Argument) -> None:
    for flag in option.flags:
        for value in option.choices or (VALUES[option.type],):
            given = vars(parser().parse_args(_words(option, flag, value)))
            name = option.flags[0].removeprefix("--")
            seen = given[name]
            first = seen[0] if isinstance(seen, list) else seen
            assert first is True if option.bare else str(first) == value


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: str(option.flags[0]))
def test_defaults_are_those_of_the_list(option: Argument) -> None:
    default = vars(parser().parse_args([]))[option.flags[0].removeprefix("--")]
    assert (default or None) == (option.default or None)


def _refused() -> list[list[str]]:
    bad = [
        ["--no_such_flag"],
        ["--tp"],
        ["stray"],
        ["--disable_vision", "yes"],
        ["--pd_decode_rpyc_port", "1"],
    ]
    for option in OPTIONS:
        if option.choices:
            bad.append([option.flags[0], "no-such-choice"])
        elif option.type in ("int", "float"):
            bad.append([option.flags[0], "many"])
    return bad


@pytest.mark.parametrize("words", _refused(), ids=" ".join)
def test_what_the_list_has_not_is_refused_with_2(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(words)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("usage: ")


def test_abbreviations_are_accepted_as_in_the_real_server() -> None:
    assert parser().parse_args(["--linear_att_cache", "8"]).linear_att_cache_size == 8


def test_the_parser_module_needs_the_standard_library_only() -> None:
    names: set[str] = set()
    for node in ast.walk(ast.parse(API_CLI.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add(str(node.module))
    assert {name.partition(".")[0] for name in names} <= set(sys.stdlib_module_names)


def _resolve(folder: Path, *flags: str, config: dict[str, Any] = GLM) -> dict[str, Any]:
    path = model_dir(folder / "model", config)
    return start_args.resolve(parser().parse_args(["--model_dir", str(path), *flags]), Model.of(path))


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--mtp_mode eagle_with_att", "mtp_step"),
        ("--mtp_step 2", "mtp_step"),
        (
            "--batch_max_tokens 256 --chunked_prefill_size 512",
            "batch_max_tokens must >= chunked_prefill_size",
        ),
        ("--disable_chunked_prefill --batch_max_tokens 512 --max_req_total_len 1024", "max_req_total_len"),
        ("--mem_fraction 1.0", "mem_fraction"),
        ("--llm_kv_type fp8kv_sph", "calibration"),
        ("--page_size 16 --diverse_mode", "diverse_mode"),
        ("--page_size 48 --linear_att_hash_page_size 128", "divisible by --page_size"),
        ("--enable_disk_cache", "enable_cpu_cache"),
    ],
)
def test_start_up_asserts(tmp_path: Path, flags: str, says: str) -> None:
    with pytest.raises((AssertionError, ValueError), match=says):
        _resolve(tmp_path, *flags.split())


@pytest.mark.parametrize(
    ("flags", "config", "name", "value"),
    [
        ("", GLM, "max_req_total_len", 131072),
        ("", {"model_type": "x"}, "max_req_total_len", 16384),
        ("", GLM, "router_token_ratio", 0.85),
        ("", GLM, "graph_max_len_in_batch", 131072),
        ("--max_req_total_len 8192", GLM, "graph_max_len_in_batch", 8192),
        ("--running_max_req_size 8", GLM, "linear_att_cache_size", 16),
        ("--mtp_mode eagle_with_att --mtp_step 2", GLM, "mtp_draft_model_dir", 2),
        ("", PLAIN, "eos_id", [1, 2]),
        ("", PLAIN, "data_type", "float16"),
        ("--enable_cpu_cache", PLAIN, "cpu_cache_token_page_size", 256),
        (
            f"--enable_cpu_cache {SMALL_PAGES} --cpu_cache_token_page_size 64",
            GLM,
            "cpu_cache_token_page_size",
            256,
        ),
        ("", GLM, "max_total_token_num", None),
    ],
)
def test_silent_rewrites(tmp_path: Path, flags: str, config: dict[str, Any], name: str, value: Any) -> None:
    seen = _resolve(tmp_path, *flags.split(), config=config)[name]
    assert (len(seen) if name == "mtp_draft_model_dir" else seen) == value


def test_what_the_scheduler_gets(tmp_path: Path) -> None:
    flags = (
        f"{SMALL_PAGES} --page_size 16 --max_total_token_num 4096 --max_req_total_len 3072 "
        "--running_max_req_size 8 --batch_max_tokens 1024 --chunked_prefill_size 257 "
        "--router_token_ratio 1.0 --mtp_mode eagle_with_att --mtp_step 2 --enable_cpu_cache "
        "--cpu_cache_storage_size 16 --llm_kv_type fp8kv_dsa"
    )
    path = model_dir(tmp_path / "model")
    model = Model.of(path)
    args = start_args.resolve(parser().parse_args(["--model_dir", str(path), *flags.split()]), model)
    bounds = start_args.limits(args, model, 10**6)
    assert (bounds.max_total_token_num, bounds.page_size, bounds.hash_page, bounds.cpu_page) == (
        4096,
        16,
        128,
        256,
    )
    assert (bounds.mtp_step, bounds.router_token_ratio, bounds.chunked_prefill_size) == (2, 1.0, 257)
    assert bounds.cpu_tokens > 9216
    assert start_args.longest_request(bounds) == 3072
    args["max_req_total_len"] = 10**6
    assert start_args.longest_request(start_args.limits(args, model, 10**6)) == 4096 - 36


def test_only_normal_mode_is_simulated(tmp_path: Path) -> None:
    with pytest.raises(start_args.NotSimulated, match="visual_only"):
        _resolve(tmp_path, "--run_mode", "visual_only")
