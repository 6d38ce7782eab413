"""The LightLLM adapter: its command line, and what it makes of LightLLM's answers."""

import copy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.engines import ENGINES
from harness.engines.base import AcceptCounters, CachedTokens, GenerateRequest, Generation, KvCapacity, Launch
from harness.engines.lightllm.adapter import Lightllm
from harness.errors import TargetError
from harness.scenario.model import FlagValue
from tests.engines.canned import DATA, Canned, recorded

LIGHTLLM = Lightllm()
LOG = DATA / "lightllm-log.txt"
MODELS = {"object": "list", "data": [{"id": "glm53", "max_model_len": 8192, "owned_by": "lightllm"}]}
PARSER = """
import argparse
def {function}:
    {parser}
    for flag in ("--run_mode", "--model_dir", "--model_name", "--host", "--pd_master_ip"):
        parser.add_argument(flag)
    for flag in ("--port", "--nccl_port", "--tp", "--mtp_step", "--linear_att_cache_size"):
        parser.add_argument(flag, type=int)
    parser.add_argument("--mtp_mode", choices=["deepseekv3", None])
    parser.add_argument("--disable_cudagraph", action="store_true")
    return parser
"""


def launch(flags: Mapping[str, FlagValue] | None = None, **changes: Any) -> Launch:
    role = changes.get("role", "normal")
    ports = {name: 20300 + number for number, name in enumerate(LIGHTLLM.ports(role, {}))}
    fields: dict[str, Any] = {
        "lane": "lane",
        "role": "normal",
        "model_path": "/models/GLM-5.3-Flash",
        "served_name": "glm53",
        "flags": flags or {},
        "env": {},
        "ports": ports,
        "folder": Path("/tmp"),
        "python": "/venv/bin/python",
    }
    return Launch(**{**fields, **changes})


def generate(answer: Any, **request: Any) -> Generation:
    return LIGHTLLM.generate(
        Canned(generate=answer), GenerateRequest(**{"prompt": "x", "max_tokens": 3, **request})
    )


def config(answer: Any, log: Path = LOG) -> dict[str, Any]:
    return LIGHTLLM.effective_config(Canned(get_server_info=answer, v1__models=MODELS), log)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A little LightLLM from before flags were many, as a checkout: no metadata, and not importable."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HARNESS_LIGHTLLM_PYTHON", raising=False)
    monkeypatch.delenv("DEBUG_HEALTHCHECK_RETURN_FAIL", raising=False)
    monkeypatch.chdir(tmp_path)
    server = tmp_path / "checkout" / "lightllm" / "server"
    server.mkdir(parents=True)
    (server.parent / "__init__.py").write_text("raise ImportError('there is no CUDA here')")
    parser = PARSER.format(function="make_argument_parser()", parser="parser = argparse.ArgumentParser()")
    (server / "api_cli.py").write_text(parser)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    return tmp_path / "checkout"


def local(checkout: Path, flags: Mapping[str, FlagValue] | None = None, **changes: Any) -> Launch:
    model = str(checkout.parent / "model")
    env = {"PYTHONPATH": str(checkout)}
    return launch(flags, **{"python": sys.executable, "model_path": model, "env": env, **changes})


# its command line


def test_is_an_engine() -> None:
    assert ENGINES["lightllm"].name == LIGHTLLM.name


def test_command() -> None:
    flags: dict[str, FlagValue] = {
        "--disable_vision": True,
        "--tp": 4,
        "--llm_kv_type": "None",
        "--eos_id": [1, 2],
    }
    assert LIGHTLLM.argv(launch(flags)) == [
        *("/venv/bin/python", "-m", "lightllm.server.api_server"),
        *("--model_dir", "/models/GLM-5.3-Flash", "--model_name", "glm53"),
        *("--host", "127.0.0.1", "--port", "20300", "--nccl_port", "20301"),
        *("--disable_vision", "--tp", "4", "--llm_kv_type", "None", "--eos_id", "1", "2"),
    ]


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_command_of_a_node(role: str) -> None:
    node = launch(role=role, host="10.0.0.5", peers={"master": "http://127.0.0.1:20400"})
    words = " ".join(LIGHTLLM.argv(node))
    assert f"--host 10.0.0.5 --port 20300 --nccl_port 20301 --run_mode {role}" in words
    assert "--pd_master_ip 127.0.0.1 --pd_master_port 20400" in words


def test_command_of_a_master() -> None:
    master = launch(role="master")
    assert LIGHTLLM.ports("master", {}) == ("http",)
    assert LIGHTLLM.argv(master)[-4:] == ["--port", "20300", "--run_mode", "pd_master"]
    assert LIGHTLLM.environment(master)["CUDA_VISIBLE_DEVICES"] == ""


def test_environment() -> None:
    alone = LIGHTLLM.environment(launch(gpus=("2", "3"), env={"LOADWORKER": "8"}))
    assert (alone["CUDA_VISIBLE_DEVICES"], alone["LOADWORKER"]) == ("2,3", "8")
    assert (alone["LIGHTLLM_LOG_LEVEL"], alone["http_proxy"]) == ("debug", "")
    assert LIGHTLLM.environment(launch(env={"LIGHTLLM_LOG_LEVEL": "info"}))["LIGHTLLM_LOG_LEVEL"] == "info"
    node = LIGHTLLM.environment(launch(role="prefill", host="10.0.0.5"))
    assert node["NO_PROXY"].endswith(",10.0.0.5")


# what is wrong with a command


@pytest.mark.process
def test_an_old_checkout_says_what_it_lacks(checkout: Path) -> None:
    flags: dict[str, FlagValue] = {
        "--page_size": 16,
        "--enable_cpu_cache": False,
        "--linear_att_cache": 8,
        "--mtp_mode": "eagle_with_att",
        "--mtp_step": 2,
    }
    problems = LIGHTLLM.problems(local(checkout, flags))
    words = (
        "this LightLLM does not know --page_size; it needs one newer than 2026-08-21",
        "--linear_att_cache is an abbreviation of --linear_att_cache_size; write it out",
        "--mtp_mode has no choice `eagle_with_att`",
    )
    for word in words:
        assert sum(word in problem for problem in problems) == 1, (word, problems)
    assert len(problems) == len(words)
    assert LIGHTLLM.version(local(checkout)) == "unknown"
    assert "make_argument_parser" not in LIGHTLLM.arguments(local(checkout)).source


@pytest.mark.process
def test_a_parser_that_only_adds_arguments(checkout: Path) -> None:
    file = checkout / "lightllm" / "server" / "api_cli.py"
    file.write_text(PARSER.format(function="add_cli_args(parser)", parser="pass"))
    arguments = LIGHTLLM.arguments(local(checkout))
    assert arguments.find("--disable_cudagraph") is not None
    mode = arguments.find("--mtp_mode")
    assert mode is not None
    assert mode.choices == ("deepseekv3",)  # the default is no word that could be given
    assert LIGHTLLM.problems(local(checkout, {"--tp": 1})) == []


@pytest.mark.process
def test_the_checkout_in_the_current_folder(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m` looks there first, and so is what would run."""
    monkeypatch.chdir(checkout)
    assert LIGHTLLM.problems(local(checkout, {"--tp": 1}, env={})) == []


@pytest.mark.process
def test_a_package_without_its_parser(checkout: Path) -> None:
    (checkout / "lightllm" / "server" / "api_cli.py").unlink()
    assert LIGHTLLM.arguments(local(checkout)).source.startswith("packaged list")


@pytest.mark.process
def test_a_broken_parser(checkout: Path) -> None:
    (checkout / "lightllm" / "server" / "api_cli.py").write_text("import nothing_of_that_name")
    problems = LIGHTLLM.problems(local(checkout, {"--page_size": 16}))
    assert sum("cannot build its argument parser" in problem for problem in problems) == 1


@pytest.mark.process
def test_version_of_a_checkout(checkout: Path) -> None:
    """Metadata says 1.2.0 for every commit; the commit is what has to be equal in a pair."""
    info = checkout / "lightllm-1.2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lightllm\nVersion: 1.2.0\n")
    assert LIGHTLLM.version(local(checkout)) == "1.2.0"
    other = local(checkout, env={"PYTHONPATH": f"{checkout}:/nowhere"})
    (checkout / ".git").mkdir()  # no repository: git can say nothing, and that is no failure
    assert LIGHTLLM.version(other) == "1.2.0"


@pytest.mark.process
def test_a_simulated_lightllm_is_known_by_its_version(checkout: Path) -> None:
    info = checkout / "lightllm-2026.9+simulator.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lightllm\nVersion: 2026.9+simulator\n")
    assert LIGHTLLM.version(local(checkout)) == "2026.9+simulator"


@pytest.mark.process
def test_problems_without_lightllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the packaged list: everything that is wrong, at once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DEBUG_HEALTHCHECK_RETURN_FAIL", "true")
    (tmp_path / "config.json").write_text("{}")
    flags: dict[str, FlagValue] = {
        "--linear_att_hash_page": 512,
        "--nccl_port": 1,
        "--nnodes": 2,
        "--mtp_mode": "None",
        "--performance_mode": "personal",
        "--llm_kv_type": "fp8",
    }
    problems = LIGHTLLM.problems(local(tmp_path / "none", flags, model_path=str(tmp_path)))
    words = (
        "has no lightllm; put a checkout on PYTHONPATH",
        "--linear_att_hash_page is an abbreviation of --linear_att_hash_page_size",
        "--nccl_port is set by the harness",
        "--nnodes: a lane's servers run on this machine",
        "--mtp_mode has no choice `None`",
        "--mtp_mode needs `--mtp_step` above 0",
        "--performance_mode: it quietly replaces",
        "--llm_kv_type has no choice `fp8`",
        "DEBUG_HEALTHCHECK_RETURN_FAIL is set to `true`",
    )
    for word in words:
        assert sum(word in problem for problem in problems) == 1, (word, problems)
    assert len(problems) == len(words)


@pytest.mark.process
def test_a_node_needs_a_master_and_a_network_card(checkout: Path) -> None:
    lonely = LIGHTLLM.problems(local(checkout, role="prefill"))
    assert any("needs a server with the role `master`" in problem for problem in lonely)
    assert any("needs a network card's address" in problem for problem in lonely)
    peers = {"master": "http://127.0.0.1:20400"}
    joined = LIGHTLLM.problems(local(checkout, role="prefill", host="10.0.0.5", peers=peers))
    assert joined == ["--max_req_total_len must be written out: master, prefill and decode must agree on it"]


# its answers


def test_served_model() -> None:
    answers = {"get_model_name": {"model_name": "glm53"}, "v1__models": MODELS}
    model = LIGHTLLM.served_model(Canned(**answers, get_server_info={"model_dir": "/models/GLM-5.3-Flash"}))
    assert (model.name, model.max_length, model.path) == ("glm53", 8192, "/models/GLM-5.3-Flash")
    assert LIGHTLLM.served_model(Canned(**answers, get_server_info=404)).path is None


@pytest.mark.parametrize("answer", [{}, [], None, {"data": []}, "text", 3])
def test_another_server_on_the_port(answer: Any) -> None:
    with pytest.raises(TargetError, match="does not use"):
        LIGHTLLM.served_model(Canned(get_model_name=[answer], v1__models=MODELS, get_server_info=[answer]))
    with pytest.raises(TargetError, match="does not use"):
        config([answer])
    with pytest.raises(TargetError, match="does not use"):
        generate([answer])


def test_effective_config() -> None:
    found = config(recorded("lightllm-server_info.json"))
    expected = {
        "model": "/models/GLM-5.3-Flash",
        "dtype": "bfloat16",
        "kv_dtype": "fp8kv_dsa",
        "kv_tokens": 1403772,
        "max_length": 8192,
        "max_req_total_len": 8192,
        "page_size": 16,
        "mtp_step": 2,
        "cpu_tokens": 0,
        "hit_unit": 16,  # the model is not here, and so not known as one with linear attention
        "mem_manager": "FP8PerTokenGroupQuantDeepseek3_2MemoryManager",
        "prefill_att_backend": "NsaFlashMlaFp8SparseAttBackend",
    }
    assert {name: found[name] for name in expected} == expected
    assert not {"host", "port", "nccl_port", "zmq_mode", "pd_node_id", "pd_master_ip"} & set(found)


@pytest.mark.parametrize(("kind", "hits"), [("glm5_next", [2048, 2048, 2560]), ("llama", [2288, 2304, 2560])])
def test_hits_are_computed(tmp_path: Path, kind: str, hits: list[int]) -> None:
    (tmp_path / "config.json").write_text(f'{{"model_type": "{kind}"}}')
    found = config({**recorded("lightllm-server_info.json"), "model_dir": str(tmp_path)})
    assert [LIGHTLLM.expected_hit(tokens, found) for tokens in (2304, 2305, 2561)] == hits
    with pytest.raises(TargetError, match="no number `hit_unit`"):
        LIGHTLLM.expected_hit(2304, {})


def test_capacity(tmp_path: Path) -> None:
    answer = recorded("lightllm-server_info.json")
    assert LIGHTLLM.capacity(config(answer)) == KvCapacity(device=1403772, host=0)
    assert LIGHTLLM.capacity(config({**answer, "enable_cpu_cache": True})) == KvCapacity(device=1403772)
    log = tmp_path / "log"
    log.write_text(
        "INFO 09-20 03:04:05 [manager.py:538] cache placement capacities in tokens: gpu=3276, "
        "physical_gpu=4096, gpu_ratio=0.8000, cpu=500000, disk=0\n"
    )
    assert LIGHTLLM.capacity(config({**answer, "enable_cpu_cache": True}, log)).host == 500000


def test_a_request_without_the_cache() -> None:
    client = Canned(generate=recorded("lightllm-generate-warm.json"))
    LIGHTLLM.generate(client, GenerateRequest(prompt="x", max_tokens=3, use_cache=False))
    LIGHTLLM.generate(client, GenerateRequest(prompt="x", max_tokens=3))
    sent = [body["parameters"]["disable_prompt_cache"] for _, body, _ in client.asked]
    assert sent == [True, False]
    assert LIGHTLLM.tokenize(client, "x") is None


def test_log_facts() -> None:
    text = (DATA / "lightllm-requests.txt").read_text(encoding="utf-8")
    facts = LIGHTLLM.log_facts(enumerate(text.splitlines(), 1))
    reloaded, stress = facts.requests["abc-0-reloaded"], facts.requests["stress"]
    assert reloaded.cached == CachedTokens(total=2176, device=0, host=2176, storage=0)
    assert reloaded.accept == AcceptCounters(proposed=28, accepted=18, steps=14)
    assert reloaded.first_token_s == pytest.approx(0.0934, abs=1e-4)
    assert (stress.paused, stress.recovered) == ((11,), (13,))
    assert facts.requests["abc-0-cold"].cached == CachedTokens()  # never finished
    assert facts.pauses == (11,)
    assert (facts.pool_lost, facts.output_estimate) == (0, 64)
    leaking = text.replace("refed token num 0", "refed token num 7").replace(
        "hold token num 1024", "hold token num 1000"
    )
    assert LIGHTLLM.log_facts(enumerate(leaking.splitlines(), 1)).pool_lost == 31
    nothing = LIGHTLLM.log_facts([])
    assert (nothing.pool_lost, nothing.output_estimate, nothing.requests) == (None, None, {})


def test_effective_config_is_equal_after_a_second_start() -> None:
    one, other = recorded("lightllm-server_info.json"), recorded("lightllm-server_info.json")
    place = {"port": 20016, "nccl_port": 20017, "zmq_mode": "ipc:///tmp/_fedcba9876543210_0_"}
    other |= {**place, "pd_node_id": 7, "cpu_kv_cache_shm_id": 5, "multinode_router_gloo_port": 4}
    assert config(one) == config(other)
    other["page_size"] = 1
    assert config(one) != config(other)


def test_effective_config_of_a_bf16_cache_and_without_a_log(tmp_path: Path) -> None:
    answer = {**recorded("lightllm-server_info.json"), "llm_kv_type": "None", "data_type": "bf16"}
    found = config(answer, tmp_path / "none")
    assert (found["kv_dtype"], found["dtype"], found["kv_tokens"]) == ("bfloat16", "bfloat16", 65536)
    assert found["mem_manager"] is None


def test_the_log_overrules_what_was_asked_for(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("INFO 09-20 03:04:05 [mem_utils.py:40] mode setting params: None\n")
    assert config(recorded("lightllm-server_info.json"), log)["kv_dtype"] == "bfloat16"


def test_effective_config_from_the_log_of_an_older_release() -> None:
    found = config(404)
    assert (found["tp"], found["kv_dtype"], found["dtype"]) == (4, "fp8kv_dsa", "bfloat16")
    assert (found["kv_tokens"], found["max_length"]) == (1403772, 8192)
    assert "zmq_mode" not in found


def test_an_older_release_without_its_log(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="no arguments are in its log"):
        config(404, tmp_path / "none")


def test_every_sampling_field_is_sent() -> None:
    client = Canned(generate=recorded("lightllm-generate-warm.json"))
    LIGHTLLM.generate(client, GenerateRequest(prompt=(1, 2), max_tokens=3, request_id="abc-0", stop=("\n",)))
    path, body, headers = client.asked[0]
    assert (path, headers) == ("/generate", {"X-Request-Id": "abc-0"})
    assert body["inputs"] == [1, 2]
    sent = body["parameters"]
    assert (sent["do_sample"], sent["top_k"], sent["stop_sequences"]) == (False, 1, ["\n"])
    assert (sent["max_new_tokens"], sent["min_new_tokens"]) == (3, 1)
    penalties = ("presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p")
    assert [sent[name] for name in penalties] == [0.0, 0.0, 1.0, 1.0, 1.0]
    assert sent["return_details"] is True


def test_sampled() -> None:
    client = Canned(generate=recorded("lightllm-generate-warm.json"))
    request = GenerateRequest(prompt="x", max_tokens=9, min_tokens=9, temperature=0.7, ignore_eos=True)
    LIGHTLLM.generate(client, request)
    sent = client.asked[0][1]["parameters"]
    assert (sent["do_sample"], sent["temperature"], sent["top_k"]) == (True, 0.7, -1)
    assert (sent["ignore_eos"], sent["min_new_tokens"]) == (True, 9)


def test_generation() -> None:
    found = generate(recorded("lightllm-generate-warm.json"))
    assert (found.text, found.ids, found.finish_reason) == (" four", (3040, 89, 81), "length")
    assert (found.prompt_tokens, found.completion_tokens) == (2305, 3)
    assert found.cached == CachedTokens(total=2048)
    assert found.accept == AcceptCounters(proposed=2, accepted=1, steps=1)
    assert found.logprobs == (-0.01, -0.2, 0.0)


def test_the_same_in_lists_of_one() -> None:
    answer = recorded("lightllm-generate-warm.json")
    listed = copy.deepcopy(answer)
    for name in ("count_output_tokens", "finish_reason", "tokens", "logprobs"):
        listed[name] = [listed[name]]
    one, other = generate(answer), generate(listed)
    assert (one.ids, one.finish_reason, one.completion_tokens, one.cached) == (
        *(other.ids, other.finish_reason, other.completion_tokens, other.cached),
    )


def test_an_older_release_tells_less() -> None:
    answer = recorded("lightllm-generate-warm.json")
    for token in answer["tokens"]:
        for name in ("prompt_cache_len", "mtp_verify_token_num", "mtp_verify_step_num"):
            del token[name]
    found = generate(answer)
    assert found.cached.total is None
    assert found.accept == AcceptCounters(accepted=1)
    del answer["tokens"][-1]["mtp_accepted_token_num"]
    assert generate(answer).accept is None


@pytest.mark.parametrize(
    ("told", "meant"), [("stop", "stop"), ("abort", "abort"), ("error", "error"), ("x", "error")]
)
def test_finish_reasons(told: str, meant: str) -> None:
    answer = recorded("lightllm-generate-warm.json")
    answer["finish_reason"] = told
    answer["tokens"].append({"id": None, "text": "", "logprob": None})  # the end of an aborted request
    found = generate(answer)
    assert (found.finish_reason, found.ids) == (meant, (3040, 89, 81))
    answer["tokens"] = []
    assert generate(answer).ids == ()


def test_a_master_refuses_token_ids() -> None:
    with pytest.raises(TargetError, match="it takes text prompts only"):
        generate(417, prompt=(1, 2))
    with pytest.raises(TargetError) as refused:
        generate(417)
    assert "master" not in str(refused.value)


def test_counters() -> None:
    text = (DATA / "lightllm-metrics.txt").read_text(encoding="utf-8")
    assert LIGHTLLM.counters(Canned(metrics=text)) == {
        "lightllm_request_count_total": 12,
        "lightllm_request_failure_total": 1,
        "lightllm_cache_length_count": 12,
        "lightllm_cache_length_sum": 8192,
    }
    for strange in ("<html>", "", "# TYPE x gauge\nx 1"):
        with pytest.raises(TargetError, match="does not use"):
            LIGHTLLM.counters(Canned(metrics=strange))
