"""The SGLang adapter, against answers of a real SGLang 0.5.23."""

import copy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.engines.base import AcceptCounters, CachedTokens, GenerateRequest, Launch
from harness.engines.sglang.adapter import Sglang
from harness.errors import TargetError
from harness.scenario.model import FlagValue
from tests.engines.canned import Canned, recorded

SGLANG = Sglang()
ALLOCATED = (
    "[2026-11-30 10:25:21 TP0] KV Cache is allocated. dtype: torch.{}, #tokens: 4096, K size: 0.04 GB\n"
)


def launch(flags: Mapping[str, FlagValue] | None = None, **changes: Any) -> Launch:
    flags = flags or {}
    ports = {name: 20300 + number for number, name in enumerate(SGLANG.ports("normal", flags))}
    fields: dict[str, Any] = {
        "lane": "lane",
        "role": "normal",
        "model_path": "/models/smol",
        "served_name": "smol",
        "flags": flags,
        "env": {},
        "ports": ports,
        "folder": Path("/tmp"),
        "python": "/venv/bin/python",
    }
    return Launch(**{**fields, **changes})


def config(answer: Any, log: Path = Path("/none")) -> dict[str, Any]:
    return SGLANG.effective_config(Canned(server_info=answer, v1__models=recorded("sglang-models.json")), log)


def generate(answer: Any, **request: Any) -> Any:
    return SGLANG.generate(
        Canned(generate=answer), GenerateRequest(**{"prompt": "x", "max_tokens": 1, **request})
    )


def test_command() -> None:
    assert SGLANG.argv(launch({"--device": "cpu", "--enable-metrics": True})) == [
        *("/venv/bin/python", "-m", "sglang.launch_server"),
        *("--model-path", "/models/smol", "--served-model-name", "smol"),
        *("--host", "127.0.0.1", "--port", "20300", "--nccl-port", "20301"),
        *("--device", "cpu", "--enable-metrics"),
    ]


def test_ports() -> None:
    assert SGLANG.ports("normal", {"--dp-size": 1, "--tp-size": 8}) == ("http", "nccl")
    # Each replica takes its own rendezvous; one given to all would collide.
    assert SGLANG.ports("normal", {"--data-parallel-size": 2}) == ("http",)
    assert "--nccl-port" not in SGLANG.argv(launch({"--dp-size": 2}))
    for flags in ({"--enable-dp-attention": True, "--dp-size": 8}, {"--attn-dp-size": 8}):
        assert SGLANG.ports("normal", flags) == ("http", "nccl", *(f"dist_{n}" for n in range(7)))
        assert "--dist-init-addr 127.0.0.1:20302" in " ".join(SGLANG.argv(launch(flags)))


def test_environment() -> None:
    cpu = SGLANG.environment(launch({"--device": "cpu"}, cpus=(1,)))
    assert (cpu["SGLANG_USE_CPU_ENGINE"], cpu["OMP_NUM_THREADS"]) == ("1", "1")
    assert cpu["SGLANG_CUDA_COREDUMP_BEFORE_CRASH"] == cpu["SGLANG_PYSPY_DUMP_BEFORE_CRASH"] == "0"
    gpu = SGLANG.environment(launch(gpus=("3",), env={"SGLANG_PYSPY_DUMP_BEFORE_CRASH": "1"}))
    assert "SGLANG_USE_CPU_ENGINE" not in gpu
    assert gpu["CUDA_VISIBLE_DEVICES"] == "3"
    assert gpu["SGLANG_PYSPY_DUMP_BEFORE_CRASH"] == "1"


@pytest.mark.process
def test_problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under an interpreter without SGLang: everything that is wrong, at once."""
    monkeypatch.setenv("SGLANG_SIMULATE_ACC_LEN", "3.2")
    (tmp_path / "config.json").touch()
    flags: dict[str, FlagValue] = {
        "--tp": 2,
        "--api-key": "x",
        "--load-format": "dummy",
        "--nccl-init-addr": "x:1",
    }
    env = {"SGLANG_TEST_RETRACT": "1"}
    problems = SGLANG.problems(launch(flags, python=sys.executable, model_path=str(tmp_path), env=env))
    words = (
        "has no sglang; `make lab-sglang`",
        "--tp is an abbreviation of --tp-size",
        "--api-key: ",
        "random weights",
        "--nccl-init-addr is set by the harness",
        "SGLANG_SIMULATE_ACC_LEN is set to `3.2`",
    )
    for word in words:
        assert sum(word in problem for problem in problems) == 1, (word, problems)
    assert len(problems) == len(words)


def test_served_model() -> None:
    answers = {"model_info": recorded("sglang-model_info.json"), "v1__models": recorded("sglang-models.json")}
    model = SGLANG.served_model(Canned(**answers))
    assert (model.name, model.max_length, model.path) == ("smol", 8192, "/models/smollm2-135m")


@pytest.mark.parametrize("answer", [{}, [], None, {"data": []}, {"meta_info": {}}, {"internal_states": {}}])
def test_another_server_on_the_port(answer: Any) -> None:
    with pytest.raises(TargetError, match="does not use"):
        SGLANG.served_model(Canned(model_info=answer, v1__models=recorded("sglang-models.json")))
    with pytest.raises(TargetError, match="does not use"):
        config(answer)
    with pytest.raises(TargetError, match="does not use"):
        generate(answer)


def test_effective_config() -> None:
    found = config(recorded("sglang-server_info.json"))
    expected = {
        "model": "/models/smollm2-135m",
        "max_length": 8192,
        "kv_tokens": 4096,
        "kv_dtype": "auto",  # no log to tell better
        "attention_backend": "torch_native",
        "random_seed": 1,
        "cuda_graph_config.decode.backend": "disabled",
        "cuda_graph_config.decode.bs": "[1, 2, 3]",
        "version": "0.5.23",
        "world_size": 1,
        "disable_chunked_prefix_cache": True,  # the launcher says False, the scheduler decided
        "pp_max_micro_batch_size": 8,
    }
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("resolved", "allocated", "means"),
    [
        ("auto", "bfloat16", "bfloat16"),
        ("auto", "float8_e4m3fn", "fp8_e4m3"),
        ("fp8_e5m2", "float8_e5m2", "fp8_e5m2"),
        ("fp8_e4m3", "bfloat16", "bfloat16"),  # asked for, not done
        ("nvfp4", "uint8", "nvfp4"),  # a container that does not tell
        ("auto", "uint8", "uint8"),
        ("bf16", "", "bf16"),
    ],
)
def test_kv_dtype_is_that_of_the_pool(tmp_path: Path, resolved: str, allocated: str, means: str) -> None:
    log = tmp_path / "server.log"
    line = ALLOCATED.format(allocated) if allocated else "KV Cache is allocated. #tokens: 4096\n"
    log.write_bytes(
        b"\xff\xfe odd bytes \x1b[1;33m\r\n" * 50 + line.encode() + ALLOCATED.format("half").encode()
    )
    answer = recorded("sglang-server_info.json")
    answer["kv_cache_dtype"] = answer["internal_states"][0]["kv_cache_dtype"] = resolved
    if allocated:
        assert config(answer, log)["kv_dtype"] == means
    else:
        assert config(answer, tmp_path / "none.log")["kv_dtype"] == means


def test_effective_config_is_equal_over_two_starts() -> None:
    first = recorded("sglang-server_info.json")
    second = copy.deepcopy(first)
    for part in (second, second["internal_states"][0]):
        part.update(
            port=1, nccl_port=2, launch_command="x", startup_time={"scheduler_e2e": 9.9}, dist_init_addr="y"
        )
    second["internal_states"][0]["last_gen_throughput"] = 77.0
    second["internal_states"][0]["memory_usage"]["startup_available"] = 1.0
    assert config(first) == config(second)


def test_effective_config_shows_a_changed_setting() -> None:
    first = recorded("sglang-server_info.json")
    second = copy.deepcopy(first)
    second["internal_states"][0].update(random_seed=2)
    second["page_size"] = second["internal_states"][0]["page_size"] = 64
    one, other = config(first), config(second)
    assert {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)} == {
        "random_seed",
        "page_size",
    }


def test_generate_token_ids() -> None:
    client = Canned(generate=recorded("sglang-generate-warm.json"))
    request = GenerateRequest(
        prompt=(504, 3575), max_tokens=24, min_tokens=2, ignore_eos=True, request_id="a-1"
    )
    answer = SGLANG.generate(client, request)
    assert len(answer.ids) == answer.completion_tokens == 24
    assert (answer.finish_reason, answer.prompt_tokens) == ("length", 235)
    assert answer.cached == CachedTokens(total=234, device=234, host=0)
    assert answer.accept is None
    ((path, body, headers),) = client.asked
    assert (path, headers) == ("/generate", None)
    assert body == {
        "input_ids": [504, 3575],
        "rid": "a-1",
        "return_logprob": False,
        "sampling_params": {
            "max_new_tokens": 24,
            "min_new_tokens": 2,
            "temperature": 0.0,
            "ignore_eos": True,
        },
    }


def test_generate_text_with_stop_and_logprobs() -> None:
    client = Canned(generate=recorded("sglang-generate-stop.json"))
    request = GenerateRequest(prompt="Q", max_tokens=24, stop=("\n",), logprobs=True)
    assert SGLANG.generate(client, request).finish_reason == "stop"
    ((_, body, _),) = client.asked
    assert (body["text"], body["sampling_params"]["stop"], body["return_logprob"]) == ("Q", ["\n"], True)
    answer = generate(recorded("sglang-generate-logprob.json"))
    assert answer.logprobs == pytest.approx((-0.26394, -0.39790, -1.07980, -0.89737), abs=1e-4)


def test_generate_cold_tells_the_total_only() -> None:
    assert generate(recorded("sglang-generate-cold.json")).cached == CachedTokens(total=5, device=5, host=0)
    answer = recorded("sglang-generate-warm.json")
    answer["meta_info"].update(cached_tokens=0, cached_tokens_details=None)
    assert generate(answer).cached == CachedTokens(total=0)


def test_generate_tiers_and_accept_counters() -> None:
    answer = recorded("sglang-generate-warm.json")
    answer["meta_info"].update(
        cached_tokens_details={"device": 1, "host": 2, "storage": 3, "storage_backend": "file"},
        spec_verify_ct=10,
        spec_num_proposed_drafts=30,
        spec_num_correct_drafts=14,
    )
    found = generate(answer)
    assert found.cached == CachedTokens(total=234, device=1, host=2, storage=3)
    assert found.accept == AcceptCounters(proposed=30, accepted=14, steps=10)


@pytest.mark.parametrize(
    ("finish", "means"),
    [
        ({"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}, "abort"),
        ({"type": "abort", "message": "Out of memory", "status_code": 500, "err_type": "x"}, "error"),
        ({"type": "surprise"}, "error"),
    ],
)
def test_an_abort_inside_a_good_answer_is_seen(finish: dict[str, Any], means: str) -> None:
    answer = recorded("sglang-generate-warm.json")
    answer["meta_info"]["finish_reason"] = finish
    assert generate(answer).finish_reason == means


def test_counters() -> None:
    text = '# TYPE sglang:cached_tokens_total counter\nsglang:cached_tokens_total{cache_source="host"} 2\n'
    assert SGLANG.counters(Canned(metrics=text)) == {"sglang:cached_tokens_total{cache_source=host}": 2.0}
    with pytest.raises(TargetError, match="--enable-metrics"):
        SGLANG.counters(Canned(metrics=404))
