"""The vLLM adapter, against answers of a real vLLM 0.32.0 and, where the lab is built, against a real one."""

import copy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.engines.base import AcceptCounters, CachedTokens, GenerateRequest, Launch
from harness.engines.vllm.adapter import Vllm
from harness.errors import TargetError
from harness.scenario.model import FlagValue
from tests.engines.canned import Canned, recorded

VLLM = Vllm()


def launch(flags: Mapping[str, FlagValue] | None = None, **changes: Any) -> Launch:
    flags = flags or {}
    ports = {name: 20300 + number for number, name in enumerate(VLLM.ports("normal", flags))}
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


def config(answer: Any) -> dict[str, Any]:
    return VLLM.effective_config(Canned(server_info=answer), Path("/none"))


def test_command() -> None:
    assert VLLM.argv(launch({"--kv-cache-dtype": "fp8", "--enforce-eager": True})) == [
        *("/venv/bin/python", "-m", "vllm.entrypoints.cli.main", "serve", "/models/smol"),
        *("--served-model-name", "smol", "--host", "127.0.0.1", "--port", "20300"),
        *("--kv-cache-dtype", "fp8", "--enforce-eager"),
    ]


def test_ports() -> None:
    assert VLLM.ports("normal", {}) == VLLM.ports("normal", {"--data-parallel-size": 1}) == ("http",)
    assert "VLLM_PORT" not in VLLM.environment(launch())
    parallel: dict[str, FlagValue] = {"-dp": 2}
    names = VLLM.ports("normal", parallel)
    assert names == ("http", "rpc", "base", "base_1", "base_2", "base_3", "base_4", "base_5")
    assert "--data-parallel-rpc-port 20301" in " ".join(VLLM.argv(launch(parallel)))
    assert VLLM.environment(launch(parallel))["VLLM_PORT"] == "20302"


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://moon:3128")
    cpu = VLLM.environment(launch(cpus=(2, 3), env={"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "0"}))
    assert cpu["OMP_NUM_THREADS"] == "2"
    assert cpu["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert cpu["CUDA_VISIBLE_DEVICES"] == ""
    assert cpu["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert cpu["HF_HUB_OFFLINE"] == "0"  # the lane's word is the last
    assert cpu["http_proxy"] == ""
    assert "127.0.0.1" in cpu["no_proxy"]
    gpu = VLLM.environment(launch(gpus=("0", "GPU-1")))
    assert gpu["CUDA_VISIBLE_DEVICES"] == "0,GPU-1"
    assert "VLLM_CPU_OMP_THREADS_BIND" not in gpu
    assert "OMP_NUM_THREADS" not in gpu


@pytest.mark.process
def test_problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under an interpreter without vLLM: everything that is wrong, at once."""
    monkeypatch.setenv("VLLM_MOE_ROUTING_SIMULATION_STRATEGY", "uniform_random")
    (tmp_path / "config.json").touch()
    flags: dict[str, FlagValue] = {
        "--kv-cache-dtype": "fp7",
        "--config": "x.yaml",
        "--load-format": "dummy",
        "--port": 1,
    }
    problems = VLLM.problems(launch(flags, python=sys.executable, model_path=str(tmp_path)))
    for word in (
        "has no vllm; `make lab-vllm`",
        "no choice `fp7`",
        "--config: flags in",
        "random weights",
        "--port is",
        "VLLM_MOE",
    ):
        assert sum(word in problem for problem in problems) == 1, (word, problems)
    assert len(problems) == 6


@pytest.mark.process
@pytest.mark.parametrize(
    "flags",
    [
        {"--speculative-config": '{"method": "ngram", "rejection_sample_method": "synthetic"}'},
        {"-sc.synthetic_acceptance_rates": "[1]"},
    ],
)
def test_made_up_acceptance_is_refused(flags: dict[str, FlagValue]) -> None:
    problems = VLLM.problems(launch(flags, python=sys.executable))
    assert sum("synthetic acceptance" in problem for problem in problems) == 1
    honest = VLLM.problems(launch({"--speculative-config": '{"method": "ngram"}'}, python=sys.executable))
    assert not any("synthetic" in problem for problem in honest)


def test_served_model() -> None:
    model = VLLM.served_model(Canned(v1__models=recorded("vllm-models.json")))
    assert (model.name, model.max_length, model.path) == ("smol", 2048, "/models/smollm2-135m")


def test_an_adapter_is_not_the_served_model() -> None:
    answer = recorded("vllm-models.json")
    answer["data"].insert(0, {"id": "lora", "parent": "smol"})
    assert VLLM.served_model(Canned(v1__models=answer)).name == "smol"


@pytest.mark.parametrize(
    "answer", [{}, {"data": []}, {"data": [{}]}, [], None, {"data": "x"}, {"data": [{"parent": 1}]}]
)
def test_another_server_on_the_port(answer: Any) -> None:
    with pytest.raises(TargetError, match="does not use"):
        VLLM.served_model(Canned(v1__models=answer))
    with pytest.raises(TargetError, match="does not use"):
        config(answer)
    with pytest.raises(TargetError, match="does not use"):
        VLLM.generate(Canned(v1__completions=answer), GenerateRequest(prompt="x", max_tokens=1))


def test_effective_config() -> None:
    found = config(recorded("vllm-server_info.json"))
    expected = {
        "model": "/models/smollm2-135m",
        "dtype": "bfloat16",
        "kv_dtype": "bfloat16",  # auto, resolved
        "max_length": 2048,
        "kv_tokens": 46592,
        "cache_config.block_size": 128,
        "model_config.seed": 0,
        "speculative_config": None,
        "vllm_env.VLLM_CPU_KVCACHE_SPACE": 1,
        "vllm_env.VLLM_DISABLE_COMPILE_CACHE": False,
        "system_env.torch_version": "2.13.0+cpu",
        "parallel_config.eplb_config.window_size": 1000,
        "compilation_config.custom_ops": '["all"]',
        "model_config.hf_overrides": "{}",
    }
    assert {name: found[name] for name in expected} == expected


def test_effective_config_is_equal_over_two_starts() -> None:
    first = recorded("vllm-server_info.json")
    second = copy.deepcopy(first)
    second["vllm_config"]["instance_id"] = "other"
    parallel = second["vllm_config"]["parallel_config"]
    parallel.update(
        data_parallel_rpc_port=1, master_port=2, _data_parallel_master_port_list=[3], master_addr="10.0.0.1"
    )
    second["vllm_config"]["compilation_config"].update(compilation_time=9.5, cache_dir="/elsewhere")
    second["vllm_env"].update(
        VLLM_OBJECT_STORAGE_SHM_BUFFER_NAME="other",
        VLLM_PORT=3,
        VLLM_HOST_IP="10.0.0.1",
        VLLM_CACHE_ROOT="/elsewhere",
    )
    second["system_env"]["cpu_info"] = "BogoMIPS: 1"
    assert config(first) == config(second)


def test_effective_config_shows_a_changed_setting() -> None:
    first = recorded("vllm-server_info.json")
    second = copy.deepcopy(first)
    second["vllm_config"]["cache_config"].update(
        cache_dtype="fp8", num_gpu_blocks=728, kv_cache_size_tokens=93184
    )
    second["vllm_config"]["speculative_config"] = {"method": "ngram"}
    second["vllm_env"]["VLLM_BATCH_INVARIANT"] = True
    one, other = config(first), config(second)
    assert {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)} == {
        "kv_dtype",
        "kv_tokens",
        "speculative_config.method",
        "vllm_env.VLLM_BATCH_INVARIANT",
    }


def test_effective_config_without_development_mode() -> None:
    with pytest.raises(TargetError, match="VLLM_SERVER_DEV_MODE"):
        config(404)
    with pytest.raises(TargetError, match="answered 500"):
        config(500)


def test_generate_token_ids() -> None:
    client = Canned(v1__completions=recorded("vllm-completion-warm.json"))
    request = GenerateRequest(
        prompt=(17872, 42), max_tokens=24, min_tokens=2, ignore_eos=True, request_id="a-1"
    )
    answer = VLLM.generate(client, request)
    assert answer.ids[:4] == (216, 38, 1232, 216)
    assert len(answer.ids) == answer.completion_tokens == 24
    assert (answer.finish_reason, answer.prompt_tokens) == ("length", 230)
    assert answer.cached == CachedTokens(total=128)
    assert answer.accept is None
    assert answer.logprobs == ()
    ((path, body, headers),) = client.asked
    assert (path, headers) == ("/v1/completions", {"X-Request-Id": "a-1"})
    assert body["prompt"] == [17872, 42]
    assert (body["max_tokens"], body["min_tokens"], body["ignore_eos"], body["temperature"]) == (
        24,
        2,
        True,
        0.0,
    )
    assert body["return_token_ids"] is True
    assert "stop" not in body
    assert "logprobs" not in body


def test_generate_text_with_logprobs_and_stop() -> None:
    client = Canned(v1__completions=recorded("vllm-completion-logprobs.json"))
    answer = VLLM.generate(client, GenerateRequest(prompt="The", max_tokens=3, stop=("\n",), logprobs=True))
    assert answer.logprobs == pytest.approx((-0.23994, -0.38893, -1.02610), abs=1e-4)
    ((_, body, headers),) = client.asked
    assert (body["prompt"], body["stop"], body["logprobs"], headers) == ("The", ["\n"], 0, None)


def test_generate_what_was_not_told_is_none_not_zero() -> None:
    answer = recorded("vllm-completion-warm.json")
    answer["usage"]["prompt_tokens_details"] = None
    answer["choices"][0]["finish_reason"] = "repetition"
    answer["metrics"] = {
        "speculative_decoding": {"num_draft_tokens": 32, "num_accepted_draft_tokens": 17, "num_spec_steps": 8}
    }
    found = VLLM.generate(Canned(v1__completions=answer), GenerateRequest(prompt="x", max_tokens=1))
    assert found.cached == CachedTokens()
    assert found.finish_reason == "error"
    assert found.accept == AcceptCounters(proposed=32, accepted=17, steps=8)


def test_refusals_are_target_errors() -> None:
    with pytest.raises(TargetError, match="answered 400"):
        VLLM.generate(Canned(v1__completions=400), GenerateRequest(prompt="x", max_tokens=1))


def test_counters() -> None:
    text = (
        '# TYPE vllm:num_preemptions_total counter\nvllm:num_preemptions_total{engine="0",model_name="m"} 3\n'
    )
    assert VLLM.counters(Canned(metrics=text)) == {"vllm:num_preemptions_total": 3.0}
    with pytest.raises(TargetError):
        VLLM.counters(Canned(metrics=404))
