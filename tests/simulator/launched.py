"""Starts the simulator as the real server is started, and answers without a process for the quick tests."""

import asyncio
import contextlib
import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

import harness.simulator
from harness.simulator import start_args
from harness.simulator.api import Api
from harness.simulator.assembly import Told, assemble
from harness.simulator.faults import Planted
from harness.simulator.http import Request, Response
from harness.simulator.log import Log
from harness.simulator.model import Model
from harness.simulator.settings import Settings
from tests.simulator.parser import parser

SITE = Path(harness.simulator.__file__).parent / "site"
DEADLINE_S = 20.0
GLM = {
    "model_type": "glm5_next",
    "max_position_embeddings": 131072,
    "index_topk": 2048,
    "eos_token_id": 257,
    "torch_dtype": "bfloat16",
}


def model_dir(folder: Path, config: Mapping[str, Any] = GLM) -> Path:
    """A model directory that has just enough."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(folder: Path, settings: Mapping[str, Any] | None) -> dict[str, str]:
    front = {name: value for name, value in os.environ.items() if not name.startswith("LIGHTLLM_")}
    front["PYTHONPATH"] = str(SITE)
    front.pop("HARNESS_SIMULATOR", None)
    if settings is not None:
        path = folder / "simulator.json"
        path.write_text(json.dumps(settings))
        front["HARNESS_SIMULATOR"] = str(path)
    return front


@dataclass
class Launched:
    """A server process in a session of its own, and its log."""

    process: "subprocess.Popen[bytes]"
    port: int
    path: Path

    @property
    def log(self) -> str:
        return self.path.read_text(encoding="utf-8")

    def wait_for(self, text: str) -> str:
        """Until the log has this; the log."""
        until(lambda: text in self.log or self.process.poll() is not None, f"{text!r} in {self.path}")
        assert text in self.log, self.log[-3000:]
        return self.log

    def ready(self) -> "Launched":
        self.wait_for("Running on http")
        return self

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send the signal; the exit code."""
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"http://127.0.0.1:{self.port}{path}", timeout=DEADLINE_S, trust_env=False)

    def post(self, path: str, body: Any, timeout: float = DEADLINE_S) -> httpx.Response:
        url = f"http://127.0.0.1:{self.port}{path}"
        return httpx.post(url, json=body, timeout=timeout, trust_env=False)

    def generate(self, text: str = "hello", tokens: int = 4) -> httpx.Response:
        return self.post("/generate", {"inputs": text, "parameters": {"max_new_tokens": tokens}})


@contextmanager
def launched(
    folder: Path,
    *flags: str,
    settings: Mapping[str, Any] | None = None,
    model: Mapping[str, Any] = GLM,
    env: Mapping[str, str] | None = None,
) -> Iterator[Launched]:
    """Ends with SIGKILL for the whole session, whatever the test did."""
    port, path = free_port(), folder / "server.log"
    quick = {"load_seconds": 0, "speed": 0, "parent_poll_seconds": 0.1, **(settings or {})}
    command = [sys.executable, "-m", "lightllm.server.api_server", "--port", str(port)]
    command += ["--model_dir", str(model_dir(folder / "model", model)), *flags]
    with path.open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**environment(folder, quick), **(env or {})},
            cwd=folder,
            start_new_session=True,
        )
    server = Launched(process, port, path)
    try:
        yield server
    finally:
        _kill_session(process)
        _sweep(server.log)


def _kill_session(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(DEADLINE_S)


def _sweep(log: str) -> None:
    """Remove what a killed server left on this machine."""
    for uniq in re.findall(r"zmq mode head: ipc:///tmp/_(\w+)_$", log, re.MULTILINE):
        for path in names_of(uniq):
            path.unlink()
    for segment in re.findall(r"Shared memory ID: (\d+)", log):
        ctypes.CDLL(None).shmctl(int(segment), 0, None)


def names_of(uniq: str) -> list[Path]:
    """Files of the server with this unique name."""
    return [path for folder in ("/dev/shm", "/tmp") for path in Path(folder).glob(f"*{uniq}*")]


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.02)


@dataclass
class Inside:
    """The server's answers without process and socket."""

    api: Api
    log_path: Path

    async def send(self, method: str, path: str, body: Any = None, **headers: str) -> Response:
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.api.handle(Request(method, path, named, data))

    async def post(self, path: str, body: Any, **headers: str) -> Any:
        """The body of a 200."""
        response = await self.send("POST", path, body, **headers)
        assert response.status == 200, response
        return json.loads(response.body)

    async def events(self, path: str, body: Any) -> list[str]:
        response = await self.send("POST", path, body)
        assert response.stream is not None, response
        text = b"".join([piece async for piece in response.stream]).decode()
        return [event.removeprefix("data:") for event in text.split("\n\n") if event]

    @property
    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8")


@asynccontextmanager
async def inside(
    *flags: str, settings: Mapping[str, Any] | None = None, model: Mapping[str, Any] = GLM
) -> AsyncGenerator[Inside, None]:
    with tempfile.TemporaryDirectory() as name:
        folder = model_dir(Path(name) / "model", model)
        told = Settings.model_validate({"speed": 0, **(settings or {})})
        read = Model.of(folder)
        args = start_args.resolve(parser().parse_args(["--model_dir", str(folder), *flags]), read)
        with (Path(name) / "log").open("wb") as log:
            planted = Planted(told.faults, args, told.seed)
            made = assemble(
                Told(args=args, model=read, settings=told, planted=planted, log=Log(log.fileno()))
            )
            running = [asyncio.create_task(work()) for work in made.work]
            try:
                yield Inside(made.api, Path(name) / "log")
            finally:
                for task in running:
                    task.cancel()


def fault(name: str, **aim: Any) -> dict[str, Any]:
    """Settings with one fault."""
    return {"faults": [{"fault": name, **aim}]}


def words(text: str) -> list[str]:
    return text.split()


def ids(response: Any) -> Sequence[int]:
    return [token["id"] for token in response["tokens"]]


def answered(work: Callable[[Inside], Awaitable[Any]], *flags: str, **more: Any) -> Any:
    async def whole() -> Any:
        async with inside("--model_name", "glm53", *flags, **more) as server:
            return await asyncio.wait_for(work(server), 20)

    return asyncio.run(whole())


def shape(value: Any) -> Any:
    """Names and types: what a client depends on."""
    if isinstance(value, dict):
        return {name: shape(item) for name, item in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return type(value)
