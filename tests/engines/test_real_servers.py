"""The adapters against real servers of the CPU labs. Minutes long, so only on demand:

HARNESS_LAB_MODEL=/path/to/model pytest tests/engines/test_real_servers.py
"""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from harness.engines.base import Engine, GenerateRequest, Launch
from harness.engines.client import Client
from harness.engines.sglang.adapter import Sglang
from harness.engines.vllm.adapter import Vllm
from harness.errors import TargetError
from harness.scenario.model import FlagValue

MODEL = os.environ.get("HARNESS_LAB_MODEL", "")
START_S = 600.0
LONG_PROMPT = tuple(range(1000, 1260))
CASES: dict[str, tuple[Engine, dict[str, FlagValue], dict[str, str], str]] = {
    "vllm": (
        Vllm(),
        {"--max-model-len": 2048, "--enforce-eager": True, "--enable-prompt-tokens-details": True},
        {"VLLM_CPU_KVCACHE_SPACE": "1"},
        "vllm:prefix_cache_hits_total",
    ),
    "sglang": (
        Sglang(),
        {
            "--device": "cpu",
            "--attention-backend": "torch_native",
            "--sampling-backend": "pytorch",
            "--disable-overlap-schedule": True,
            "--cuda-graph-backend-decode": "disabled",
            "--cuda-graph-backend-prefill": "disabled",
            "--max-total-tokens": 4096,
            "--mem-fraction-static": 0.3,
            "--max-running-requests": 8,
            "--random-seed": 1,
            "--enable-metrics": True,
        },
        {},
        "sglang:cached_tokens_total{cache_source=device}",
    ),
}


def free_ports(names: tuple[str, ...]) -> dict[str, int]:
    sockets = [socket.socket() for _ in names]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = {name: one.getsockname()[1] for name, one in zip(names, sockets, strict=True)}
    for one in sockets:
        one.close()
    return ports


def launch_of(engine: Engine, flags: Mapping[str, FlagValue], env: Mapping[str, str], folder: Path) -> Launch:
    return Launch(
        lane="lane",
        role="normal",
        model_path=MODEL,
        served_name="smol",
        flags=flags,
        env=env,
        ports=free_ports(engine.ports("normal", flags)),
        folder=folder,
        cpus=(0,),
    )


@contextmanager
def running(engine: Engine, launch: Launch, log: Path) -> Iterator[Client]:
    """The server, up; afterwards its whole session is gone."""
    environment = {**os.environ, **engine.environment(launch)}
    with log.open("wb") as output:
        process = subprocess.Popen(
            engine.argv(launch),
            env=environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd=log.parent,
        )
    try:
        with Client(launch.base_url) as client:
            deadline = time.monotonic() + START_S
            while True:
                assert process.poll() is None, log.read_text(errors="replace")[-3000:]
                assert time.monotonic() < deadline, log.read_text(errors="replace")[-3000:]
                try:
                    engine.served_model(client)
                    engine.generate(client, GenerateRequest(prompt="Hello", max_tokens=1))
                    break
                except TargetError:
                    time.sleep(0.5)
            yield client
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.e2e
@pytest.mark.skipif(not MODEL, reason="HARNESS_LAB_MODEL names no model directory")
@pytest.mark.parametrize("name", CASES)
def test_a_real_server(name: str, tmp_path: Path) -> None:
    engine, flags, env, hits = CASES[name]
    launch = launch_of(engine, flags, env, tmp_path)
    if any(f"has no {name}" in problem for problem in engine.problems(launch)):
        pytest.skip(f"the {name} lab is not built")
    assert engine.problems(launch) == []
    assert engine.version(launch) != "unknown"
    log = tmp_path / "server.log"
    with running(engine, launch, log) as client:
        model = engine.served_model(client)
        assert (model.name, model.path) == ("smol", MODEL)
        config = engine.effective_config(client, log)
        assert config["max_length"] == model.max_length
        assert config["kv_dtype"] == "bfloat16"
        assert isinstance(config["kv_tokens"], int)
        before = engine.counters(client).get(hits, 0.0)
        request = GenerateRequest(
            prompt=LONG_PROMPT, max_tokens=4, min_tokens=4, logprobs=True, request_id="r-1"
        )
        cold, warm = (
            engine.generate(client, request),
            engine.generate(client, replace(request, request_id="r-2")),
        )
        assert cold.ids == warm.ids
        assert len(cold.ids) == len(cold.logprobs) == cold.completion_tokens == 4
        assert (cold.finish_reason, cold.prompt_tokens, cold.cached.total) == ("length", 260, 0)
        assert warm.cached.total is not None
        assert warm.cached.total >= 128
        assert engine.counters(client)[hits] == before + warm.cached.total
        with pytest.raises(TargetError):
            engine.generate(client, replace(request, prompt=LONG_PROMPT * 40))
        engine.served_model(client)  # and the server lives on
    again = replace(launch, ports=free_ports(engine.ports("normal", flags)))
    with running(engine, again, tmp_path / "again.log") as client:
        assert engine.effective_config(client, tmp_path / "again.log") == config
