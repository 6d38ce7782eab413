"""The llama.cpp adapter, against answers and a log of the real embedded server."""

import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.engines.base import AcceptCounters, CachedTokens, GenerateRequest, Launch
from harness.engines.llamacpp.adapter import LlamaCpp
from harness.errors import ConfigError, TargetError
from harness.scenario.model import FlagValue
from tests.engines.canned import DATA, Canned, recorded

LLAMACPP = LlamaCpp()
LOG = DATA / "llamacpp-log.txt"
HELP = """\
----- common params -----

-h,    --help, --usage                  print usage and exit
-c,    --ctx-size N                     size of the prompt context (default: 0, 0 = loaded from model)
                                        (env: LLAMA_ARG_CTX_SIZE)
-t,    --threads N                      number of CPU threads to use during generation (default: -1)
-fa,   --flash-attn [on|off|auto]       set Flash Attention use
-kvu,  --kv-unified, -no-kvu, --no-kv-unified
                                        use single unified KV buffer
--rope-scaling {none,linear,yarn}       RoPE frequency scaling method
--control-vector-layer-range START END
                                        layer range to apply the control vector(s) to
-ngl,  --gpu-layers, --n-gpu-layers N   max. number of layers to store in VRAM
-hf,   -hfr, --hf-repo <user>/<model>[:quant]
                                        Hugging Face model repository
-m,    --model FNAME                    model path to load
"""


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HARNESS_LLAMACPP_BINARY", "HARNESS_LLAMACPP_PYTHON"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF and more")
    return path


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The user's own llama-server, as far as it says what it is."""
    path = tmp_path / "llama-server"
    path.write_text(
        f"#!/bin/sh\ncase $1 in --help) cat <<'END'\n{HELP}END\n;;\n"
        "--version) echo 'version: 6789 (abcdef0)' >&2; echo 'built with GNU 13' >&2;; esac\n",
        encoding="utf-8",
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def launch(flags: Mapping[str, FlagValue] | None = None, **changes: Any) -> Launch:
    fields: dict[str, Any] = {
        "lane": "lane",
        "role": "normal",
        "model_path": "/models/m.gguf",
        "served_name": "smol",
        "flags": flags or {},
        "env": {},
        "ports": {"http": 20299},
        "folder": Path("/tmp"),
    }
    return Launch(**{**fields, **changes})


def test_command_of_the_embedded_server() -> None:
    argv = LLAMACPP.argv(launch({"--cache-type-k": "q8_0", "--parallel": 4, "--swa-full": True}, cpus=(2, 5)))
    assert argv[:2] == [sys.executable, "-P"]
    assert Path(argv[2]).name == "llama_server.py"
    assert argv[3:] == [
        *("--model", "/models/m.gguf", "--alias", "smol", "--host", "127.0.0.1", "--port", "20299"),
        *("--metrics", "--threads", "2", "--verbosity", "4"),
        *("--cache-type-k", "q8_0", "--parallel", "4", "--swa-full"),
    ]


def test_command_of_the_users_program_and_given_defaults() -> None:
    argv = LLAMACPP.argv(launch({"-t": 3, "-lv": 5}, binary="/opt/llama-server", cpus=(0, 1, 2, 3)))
    assert argv[0] == "/opt/llama-server"
    assert argv[-4:] == ["-t", "3", "-lv", "5"]
    assert "--threads" not in argv
    assert "--verbosity" not in argv


def test_the_program_can_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_LLAMACPP_BINARY", "llama-server")
    assert LLAMACPP.argv(launch())[0] == "llama-server"
    assert LLAMACPP.argv(launch(binary="/mine"))[0] == "/mine"


def test_environment() -> None:
    environment = LLAMACPP.environment(launch({"--threads": 2}, cpus=(0, 1, 2), env={"MINE": "1"}))
    assert environment["OMP_WAIT_POLICY"] == "passive"
    assert environment["OMP_NUM_THREADS"] == "2"
    assert environment["MINE"] == "1"
    assert LLAMACPP.environment(launch(env={"OMP_WAIT_POLICY": "active"}))["OMP_WAIT_POLICY"] == "active"


def test_right_flags_have_no_problems(gguf: Path, tmp_path: Path) -> None:
    flags: dict[str, FlagValue] = {
        "-c": 4096,
        "-np": "4",
        "-ctk": "bf16",
        "--cache-type-v": "q8_0",
        "-fa": "on",
        "-no-kvu": True,
        "--cache-ram": 0,
        "--no-cache-prompt": True,
        "-sps": 0.5,
        "--slot-save-path": str(tmp_path),
        "--model-draft": str(gguf),
        "--spec-type": "draft-simple,ngram-mod",
        "--swa-full": None,
    }
    assert LLAMACPP.problems(launch(flags, model_path=str(gguf), cpus=(0,))) == []


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"--cache-typ-k": "q8_0"}, "--cache-type-k"),
        ({"--cache-type": "q8_0"}, "abbreviation of more than one flag"),
        ({"--ctx-siz": 4096}, "--ctx-siz is an abbreviation of --ctx-size"),
        ({"--ctx-size=4096": True}, "`--ctx-size: 4096`"),
        ({"--cache-type-k": "q8"}, "nearest is q8_0"),
        ({"--cache-type-k": "fp8"}, "has no choice `fp8`"),
        ({"--parallel": "four"}, "a whole number"),
        ({"--parallel": 1.5}, "a whole number"),
        ({"--parallel": [1, 2]}, "is given 2"),
        ({"--parallel": True}, "has none"),
        ({"--no-cache-prompt": "yes"}, "takes no value"),
        ({"-ctk": "f16", "--cache-type-k": "bf16"}, "the same option"),
        ({"--cache-prompt": True, "--no-cache-prompt": True}, "the same option"),
        ({"--cache-prompt": False}, "--no-cache-prompt: true"),
        ({"--flash-attn": False}, "YAML reads off as false"),
        ({"--flash-attn": True}, "YAML reads on as true"),
        ({"--spec-type": "draft-simple,draft"}, "'draft' is not one of"),
        ({"--slot-save-path": "/no/such"}, "not a directory"),
        ({"--model-draft": "/no/such.gguf", "--spec-type": "draft-simple"}, "no draft model /no/such.gguf"),
        ({"-m": "other.gguf"}, "set by the harness"),
        ({"--port": 1}, "set by the harness"),
        ({"--metrics": True}, "set by the harness"),
        ({"--api-key": "secret"}, "without a key"),
        ({"--threads": 3}, "3 on 2 leased cores"),
    ],
)
def test_wrong_flags(flags: dict[str, FlagValue], said: str, gguf: Path) -> None:
    found = LLAMACPP.problems(launch(flags, model_path=str(gguf), cpus=(0, 1)))
    assert len(found) == 1 or "flash" in str(flags), found
    assert any(said in problem for problem in found), found


def test_a_draft_model_that_nothing_uses_is_a_problem(gguf: Path) -> None:
    flags: dict[str, FlagValue] = {"-md": str(gguf)}
    assert "never used" in " ".join(LLAMACPP.problems(launch(flags, model_path=str(gguf))))
    assert LLAMACPP.problems(launch({**flags, "--spec-type": "draft-simple"}, model_path=str(gguf))) == []


def test_a_model_that_is_none(tmp_path: Path) -> None:
    pointer = tmp_path / "pointer.gguf"
    pointer.write_text("version https://git-lfs\n", encoding="utf-8")
    for path, said in ((tmp_path, "directory"), (tmp_path / "no", "No such file"), (pointer, "no GGUF file")):
        (problem,) = LLAMACPP.problems(launch(model_path=str(path)))
        assert said in problem


def test_a_name_that_would_be_two(gguf: Path) -> None:
    (problem,) = LLAMACPP.problems(launch(model_path=str(gguf), served_name="a,b"))
    assert "comma" in problem


def test_flags_in_variables_are_refused(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "128")
    (problem,) = LLAMACPP.problems(launch(model_path=str(gguf)))
    assert "LLAMA_ARG_CTX_SIZE" in problem


def test_a_python_without_the_wheel(gguf: Path, tmp_path: Path) -> None:
    (problem,) = LLAMACPP.problems(launch(model_path=str(gguf), python=str(tmp_path / "python")))
    assert "no interpreter" in problem
    bare = tmp_path / "bare"
    bare.write_text('#!/bin/sh\necho \'["", ""]\'\n', encoding="utf-8")
    bare.chmod(0o755)
    (problem,) = LLAMACPP.problems(launch(model_path=str(gguf), python=str(bare)))
    assert "has no xllamacpp" in problem
    assert "HARNESS_LLAMACPP_BINARY" in problem
    assert LLAMACPP.version(launch(python=str(bare))) == "unknown"
    (problem,) = LLAMACPP.problems(launch(model_path=str(gguf), python="/bin/false"))
    assert "/bin/false does not say whether it has xllamacpp" in problem


@pytest.mark.process
def test_the_users_program_is_asked_for_its_flags(gguf: Path, program: Path) -> None:
    def problems(flags: dict[str, FlagValue]) -> list[str]:
        return LLAMACPP.problems(launch(flags, model_path=str(gguf), binary=str(program)))

    fine: dict[str, FlagValue] = {"-ngl": "all", "--control-vector-layer-range": [1, 2], "-no-kvu": True}
    assert problems({**fine, "--rope-scaling": "yarn", "-fa": "auto", "-c": 1}) == []
    assert "abbreviation of --gpu-layers" in problems({"--gpu-layer": 1})[0]
    assert "has no flag --cache-ram" in problems({"--cache-ram": 0})[0]  # this program is too old for it
    assert "nearest is linear" in problems({"--rope-scaling": "liner"})[0]
    assert "is given 1" in problems({"--control-vector-layer-range": 1})[0]
    assert "whole number" in problems({"--threads": "x"})[0]
    assert "set by the harness" in problems({"-m": "x"})[0]
    assert LLAMACPP.version(launch(binary=str(program))) == "6789 (abcdef0)"


def test_a_program_that_is_missing_or_says_nothing(gguf: Path, tmp_path: Path) -> None:
    (problem,) = LLAMACPP.problems(launch(model_path=str(gguf), binary=str(tmp_path / "no")))
    assert "there is no program" in problem
    mute = tmp_path / "mute"
    mute.write_text("#!/bin/sh\n", encoding="utf-8")
    mute.chmod(0o755)
    assert LLAMACPP.problems(launch({"-c": 1}, model_path=str(gguf), binary=str(mute))) == []
    (problem,) = LLAMACPP.problems(launch({"--cx": 1}, model_path=str(gguf), binary=str(mute)))
    assert "the embedded server's list" in problem
    assert LLAMACPP.version(launch(binary=str(mute))) == "unknown"


def test_served_model() -> None:
    client = Canned(v1__models=recorded("llamacpp-models.json"), props=recorded("llamacpp-props.json"))
    served = LLAMACPP.served_model(client)
    assert (served.name, served.max_length) == ("smol", 1024)
    assert served.path == "/models/SmolLM2-135M-Instruct.Q4_1.gguf"


def test_another_server_on_the_port() -> None:
    with pytest.raises(TargetError, match="form that llamacpp does not use"):
        LLAMACPP.served_model(Canned(v1__models={"data": []}, props={}))
    with pytest.raises(TargetError, match="form that llamacpp does not use"):
        LLAMACPP.effective_config(Canned(v1__models={"data": [{}]}, props={"default": 1}), LOG)
    with pytest.raises(TargetError, match="form that llamacpp does not use"):
        LLAMACPP.generate(Canned(completion=["no"]), GenerateRequest(prompt="x", max_tokens=1))
    with pytest.raises(TargetError):
        LLAMACPP.counters(Canned(metrics="<html>"))


def config(log: Path = LOG) -> dict[str, Any]:
    client = Canned(v1__models=recorded("llamacpp-models.json"), props=recorded("llamacpp-props.json"))
    return LLAMACPP.effective_config(client, log)


def test_effective_configuration() -> None:
    found = config()
    expected = {
        "kv_dtype": "bf16/q8_0",
        "max_length": 1024,
        "n_parallel": 2,
        "n_ctx": 2048,
        "n_batch": 2048,
        "n_ubatch": 512,
        "flash_attn": "enabled",
        "kv_unified": False,
        "n_threads": 1,
        "cache_ram": "8192 MiB",
        "speculative": "draft-simple",
        "draft.kv_dtype": "f16",
        "draft.settings": "n_max=5, n_min=0, p_min=0.000000",
        "model.size": 96576768,
        "model.n_ctx_train": 8192,
        "model_ftype": "Q4_1",
        "sampling.top_k": 40,
    }
    assert {key: found.get(key) for key in expected} == expected
    for varying in ("media_marker", "model_path", "model_alias", "is_sleeping"):
        assert varying not in found


def test_configuration_is_read_from_the_start_alone(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    start = LOG.read_text(encoding="utf-8")
    later = "0.09.000.000 I llama_kv_cache: size = 1 MiB, K (f32): 1 MiB, V (f32): 1 MiB\n"
    log.write_bytes(start.encode() + b"\xff\x00\r\n" + later.encode())
    assert config(log) == config()


def test_trial_contexts_are_not_the_configuration(tmp_path: Path) -> None:
    """At a higher verbosity the fitting of memory logs contexts of its own first."""
    log = tmp_path / "server.log"
    trial = "llama_context: n_batch = 7\nllama_kv_cache: size = 1 MiB, K (f32): 1 MiB, V (f32): 1 MiB\n"
    log.write_text(trial + LOG.read_text(encoding="utf-8"), encoding="utf-8")
    assert config(log) == config()


def test_more_of_the_configuration(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(
        "srv load_model: prompt cache is disabled - use `--cache-ram N` to enable it\n"
        "spec common_specu: adding speculative implementation 'ngram-simple'\n"
        "spec common_specu: adding speculative implementation 'ngram-mod'\n",
        encoding="utf-8",
    )
    found = config(log)
    assert (found["cache_ram"], found["speculative"]) == ("disabled", "ngram-simple,ngram-mod")
    line = "spec common_specu: no implementations specified for speculative decoding"
    log.write_text(line, encoding="utf-8")
    assert config(log)["speculative"] == "none"


def test_what_a_terse_log_hides_is_unknown(tmp_path: Path) -> None:
    assert config(tmp_path / "none")["kv_dtype"] is None
    log = tmp_path / "server.log"
    log.write_text("0.00.446.154 I srv          init: listening on http://127.0.0.1:1\n", encoding="utf-8")
    assert config(log)["kv_dtype"] is None
    assert "speculative" not in config(log)


def test_generation() -> None:
    client = Canned(completion=recorded("llamacpp-completion-cold.json"))
    request = GenerateRequest(prompt=(1, 2), max_tokens=12, ignore_eos=True, min_tokens=12, request_id="r")
    found = LLAMACPP.generate(client, request)
    path, body, headers = client.asked[0]
    assert (path, headers) == ("/completion", {"X-Request-Id": "r"})
    assert body["prompt"] == [1, 2]
    assert (body["n_predict"], body["temperature"], body["ignore_eos"]) == (12, 0.0, True)
    assert found.finish_reason == "length"
    assert (found.prompt_tokens, found.completion_tokens, len(found.ids)) == (23, 12, 12)
    assert found.cached == CachedTokens(total=0)
    assert found.accept is not None
    assert found.accept.proposed is not None
    assert found.text.startswith(" 9, 10")


def test_generation_from_the_cache_with_logprobs() -> None:
    client = Canned(completion=recorded("llamacpp-completion-warm-logprobs.json"))
    found = LLAMACPP.generate(client, GenerateRequest(prompt="1,", max_tokens=4, logprobs=True))
    assert client.asked[0][1]["n_probs"] == 1
    assert found.cached.total == 22
    assert len(found.logprobs) == 4
    assert all(value <= 0 for value in found.logprobs)


@pytest.mark.parametrize(
    ("timings", "said"),
    [
        ({"cache_n": 22, "prompt_n": 23}, "22 cached and 23 computed tokens of a prompt of 23"),
        ({"draft_n": 8, "draft_n_accepted": 20}, "20 accepted of 8 drafted tokens"),
        ({"draft_n": 0, "draft_n_accepted": 7}, "7 accepted of 0 drafted tokens"),
    ],
)
def test_numbers_that_contradict_one_another(timings: dict[str, int], said: str) -> None:
    answer = recorded("llamacpp-completion-stop.json")
    client = Canned(completion={**answer, "timings": {**answer["timings"], **timings}})
    with pytest.raises(TargetError, match=said):
        LLAMACPP.generate(client, GenerateRequest(prompt="x", max_tokens=1))


def test_finish_reasons() -> None:
    answer = recorded("llamacpp-completion-stop.json")

    def reason(stop_type: str) -> str:
        client = Canned(completion={**answer, "stop_type": stop_type})
        return LLAMACPP.generate(client, GenerateRequest(prompt="x", max_tokens=1)).finish_reason

    assert [reason(word) for word in ("word", "eos", "limit", "none")] == ["stop", "stop", "length", "error"]


def test_without_a_draft_there_are_no_accept_counters() -> None:
    answer = recorded("llamacpp-completion-stop.json")
    drafted = LLAMACPP.generate(Canned(completion=answer), GenerateRequest(prompt="x", max_tokens=1))
    assert drafted.accept == AcceptCounters(proposed=10, accepted=10)
    del answer["timings"]["draft_n"]
    plain = LLAMACPP.generate(Canned(completion=answer), GenerateRequest(prompt="x", max_tokens=1))
    assert plain.accept is None


def test_a_minimum_of_tokens_cannot_be_asked() -> None:
    client = Canned()
    with pytest.raises(ConfigError, match="minimum number of tokens"):
        LLAMACPP.generate(client, GenerateRequest(prompt="x", max_tokens=4, min_tokens=4))
    assert client.asked == []


def test_counters() -> None:
    found = LLAMACPP.counters(Canned(metrics=(DATA / "llamacpp-metrics.txt").read_text(encoding="utf-8")))
    assert found["llamacpp:prompt_tokens_cached_total"] > 0
    assert found["llamacpp:spec_decode_num_accepted_tokens_total"] > 0
    assert "llamacpp:requests_processing" not in found  # a gauge
