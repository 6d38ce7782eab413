"""The embedded llama.cpp server: its flags, how it fails and ends, and the adapter against it."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness import models
from harness.engines.base import GenerateRequest, Launch
from harness.engines.client import Client
from harness.engines.llamacpp import llama_server
from harness.engines.llamacpp.adapter import LlamaCpp
from harness.errors import TargetError
from harness.scenario.model import FlagValue

LLAMACPP = LlamaCpp()
READY_S = 120.0
END_S = 30.0
COUNTING = "1, 2, 3, 4, 5, 6, 7, 8,"
FLAGS: dict[str, FlagValue] = {
    "--ctx-size": 2048,
    "--parallel": 2,
    "--no-kv-unified": True,
    "--cache-type-k": "q8_0",
    "--cache-type-v": "bf16",
    "--flash-attn": "on",
    "--batch-size": 512,
    "--ubatch-size": 256,
    "--cache-ram": 100,
    "--seed": 42,
}


@dataclass(frozen=True, slots=True)
class Running:
    process: subprocess.Popen[bytes]
    client: Client
    log: Path


@pytest.fixture(scope="module")
def model() -> Path:
    path = models.locate("smollm2-135m")
    if path is None and os.environ.get("HARNESS_REQUIRE_MODEL") == "1":
        pytest.fail("smollm2-135m is not on this machine; get it with: harness models pull smollm2-135m")
    if path is None:
        pytest.skip("needs the model: harness models pull smollm2-135m")
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def launch_of(model_path: str, folder: Path, flags: dict[str, FlagValue], port: int | None = None) -> Launch:
    return Launch(
        lane="lane",
        role="normal",
        model_path=model_path,
        served_name="smol",
        flags=flags,
        env={},
        ports={"http": port or free_port()},
        folder=folder,
        cpus=(0,),
    )


@contextmanager
def started(launch: Launch) -> Iterator[Running]:
    log = launch.folder / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            LLAMACPP.argv(launch),
            env={**os.environ, **LLAMACPP.environment(launch)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        with Client(launch.base_url) as client:
            yield Running(process, client, log)
    finally:
        process.kill()
        process.wait()


def wait_until_ready(server: Running) -> None:
    deadline = time.monotonic() + READY_S
    while True:
        assert server.process.poll() is None, server.log.read_text(encoding="utf-8", errors="replace")
        try:
            server.client.get_json("/health")
        except TargetError:
            assert time.monotonic() < deadline, server.log.read_text(encoding="utf-8", errors="replace")
            time.sleep(0.05)
        else:
            return


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with started(launch_of(str(model), tmp_path_factory.mktemp("lane"), FLAGS)) as running:
        wait_until_ready(running)
        yield running


def parse(text: str) -> dict[str, llama_server.Value]:
    return llama_server.parse(text.split())


def test_flags_are_read() -> None:
    assert parse("-c 4096 -np -1 --no-cache-prompt -sps 0.5 -ctk q8_0 --spec-type ngram-mod,none") == {
        "n_ctx": 4096,
        "n_parallel": -1,
        "cache_prompt": False,
        "slot_prompt_similarity": 0.5,
        "cache_type_k": "q8_0",
        "speculative.types": "ngram-mod,none",
    }
    assert parse("--cache-prompt --no-cache-prompt -c 1 -c 2") == {"cache_prompt": False, "n_ctx": 2}


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("--ctx-siz 1", "invalid argument: --ctx-siz"),
        ("--ctx-size=1", "invalid argument: --ctx-size=1"),
        ("-c1", "invalid argument: -c1"),
        ("stray", "invalid argument: stray"),
        ("-c", "expected value for argument"),
        ("-c many", "error while handling argument"),
        ("-sps much", "error while handling argument"),
        ("-ctk q9", "'q9' is not one of f32"),
        ("--slot-save-path /no/such", "not a directory"),
    ],
)
def test_wrong_flags(argv: str, said: str) -> None:
    with pytest.raises(llama_server.BadFlag, match=re.escape(said)):
        parse(argv)


def test_every_field_exists_in_the_library(tmp_path: Path) -> None:
    """Every flag reaches the library's parameters, and none is set to what the library would refuse."""
    library = pytest.importorskip("xllamacpp")
    sample: dict[str, llama_server.Value] = {"int": 3, "float": 0.25, "folder": f"{tmp_path}/"}
    sample |= {"on": True, "off": False}
    for option in llama_server.OPTIONS:
        value = option.choices[0] if option.choices else sample.get(option.kind, "text")
        params = llama_server.configure(library, {option.field: value})
        target = params
        for part in option.field.split("."):
            target = getattr(target, part)
        if option.kind in ("int", "folder", "on", "off"):
            assert target == value, option


def end(server: Running) -> tuple[int, str]:
    code = server.process.wait(timeout=END_S)
    return code, server.log.read_text(encoding="utf-8", errors="replace")


@pytest.mark.process
def test_a_bad_flag_ends_it_with_1(tmp_path: Path) -> None:
    with started(launch_of("/no.gguf", tmp_path, {"--no-such": 1})) as running:
        code, log = end(running)
    assert code == 1
    assert log == "error: invalid argument: --no-such\n"


@pytest.mark.process
@pytest.mark.parametrize(
    ("content", "said"), [(None, "failed to open GGUF file"), (b"GGUX" * 99, "invalid magic")]
)
def test_a_model_that_cannot_be_loaded_ends_it_with_1(
    tmp_path: Path, content: bytes | None, said: str
) -> None:
    path = tmp_path / "m.gguf"
    if content is not None:
        path.write_bytes(content)
    with started(launch_of(str(path), tmp_path, {})) as running:
        code, log = end(running)
    assert code == 1
    assert said in log
    assert "Traceback" not in log
    assert any(rule.pattern.search(line) for rule in LLAMACPP.grammar.fatal for line in log.splitlines())


@pytest.mark.process
def test_what_it_logged_is_written_before_it_ends(tmp_path: Path) -> None:
    """llama.cpp logs from a thread of its own. No exit handler runs here: without waiting for that thread,
    one start in eight lost the line that says why."""
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUX" * 99)
    code = "import os, sys, llama_server; os._exit(llama_server.main(sys.argv[1:]))"
    argv = [sys.executable, "-c", code, "--model", str(path), "--port", str(free_port()), "--verbosity", "4"]
    for _ in range(20):
        folder = str(Path(llama_server.__file__).parent)
        said = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": folder})
        assert said.returncode == 1
        assert "invalid magic" in said.stderr
        assert said.stderr.splitlines()[-1].startswith("error: "), said.stderr


def test_a_build_without_the_hook_is_given_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr("harness.engines.llamacpp.llama_server.time.sleep", waited.append)
    llama_server.flush_log(json)  # a library with no such function
    assert waited == [llama_server.LAST_WORDS_S]


@pytest.mark.process
def test_a_taken_port_ends_it_with_1(tmp_path: Path, model: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with started(launch_of(str(model), tmp_path, {}, taken.getsockname()[1])) as running:
            code, log = end(running)
    assert code == 1
    assert "couldn't bind HTTP server socket" in log


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_at_once(tmp_path: Path, model: Path, number: signal.Signals) -> None:
    with started(launch_of(str(model), tmp_path, FLAGS)) as running:
        wait_until_ready(running)
        running.process.send_signal(number)
        assert end(running)[0] == -number


@pytest.mark.process
def test_a_signal_ends_it_while_it_loads(tmp_path: Path, model: Path) -> None:
    with started(launch_of(str(model), tmp_path, FLAGS)) as running:
        deadline = time.monotonic() + READY_S
        while "loading model" not in running.log.read_text(encoding="utf-8", errors="replace"):
            assert time.monotonic() < deadline
            time.sleep(0.005)
        running.process.terminate()
        assert end(running)[0] == -signal.SIGTERM


@pytest.mark.process
def test_log_and_identity(server: Running, model: Path) -> None:
    log = server.log.read_text(encoding="utf-8", errors="replace")
    assert any(LLAMACPP.grammar.ready.search(line) for line in log.splitlines())
    served = LLAMACPP.served_model(server.client)
    assert (served.name, served.max_length, served.path) == ("smol", 1024, str(model))


@pytest.mark.process
def test_the_running_server_has_the_flags(server: Running) -> None:
    found = LLAMACPP.effective_config(server.client, server.log)
    expected = {
        "kv_dtype": "q8_0/bf16",
        "max_length": 1024,
        "n_ctx": 2048,
        "n_parallel": 2,
        "n_batch": 512,
        "n_ubatch": 256,
        "flash_attn": "enabled",
        "kv_unified": False,
        "cache_ram": "100 MiB",
        "n_threads": 1,
        "model_ftype": "Q4_1",
        "sampling.seed": 42,
    }
    assert {key: found[key] for key in expected} == expected


@pytest.mark.process
def test_generations(server: Running) -> None:
    before = LLAMACPP.counters(server.client)["llamacpp:prompt_tokens_cached_total"]
    ids = server.client.post_json("/tokenize", {"content": COUNTING})["tokens"]
    cold = LLAMACPP.generate(server.client, GenerateRequest(prompt=COUNTING, max_tokens=8))
    assert (cold.prompt_tokens, cold.completion_tokens, len(cold.ids)) == (len(ids), 8, 8)
    assert cold.finish_reason == "length"
    assert cold.text.startswith(" 9, 10")
    assert cold.cached.total == 0
    assert cold.accept is None
    warm = LLAMACPP.generate(
        server.client, GenerateRequest(prompt=tuple(ids), max_tokens=8, logprobs=True, ignore_eos=True)
    )
    assert warm.ids == cold.ids
    assert warm.cached.total == len(ids) - 1
    assert len(warm.logprobs) == 8
    after = LLAMACPP.counters(server.client)["llamacpp:prompt_tokens_cached_total"]
    assert after - before == len(ids) - 1
    stopped = LLAMACPP.generate(server.client, GenerateRequest(prompt=COUNTING, max_tokens=32, stop=(" 10",)))
    assert (stopped.text, stopped.finish_reason) == (" 9,", "stop")


@pytest.mark.process
def test_a_refusal_is_the_servers(server: Running) -> None:
    with pytest.raises(TargetError, match="exceed"):
        LLAMACPP.generate(server.client, GenerateRequest(prompt=(1,) * 2000, max_tokens=1))
