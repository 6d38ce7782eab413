"""Locks of the tests are the tests' own; processes of the tests end with the test."""

import os
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from harness.host import proc
from harness.host.members import handles
from harness.host.process import ManagedProcess

CHILD = Path(__file__).with_name("child.py")


@pytest.fixture(autouse=True)
def lock_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "locks"
    monkeypatch.setenv("HARNESS_LOCK_DIR", str(folder))
    return folder


def run_processes(run_id: str) -> list[psutil.Process]:
    """All living processes that carry a mark of this run, of whichever server."""
    everyone = proc.everybody().values()
    return handles([each for each in everyone if (proc.mark_of(each.pid) or "").startswith(f"{run_id}:")])


def wait_for(condition: Callable[[], object], what: str, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    process = proc.stat(pid)
    return process is not None and process.living


def free_port() -> int:
    """Of the kernel's choice: test processes that run side by side do not know of each other's locks."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


Start = Callable[..., ManagedProcess]


@pytest.fixture
def run_id() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def start(tmp_path: Path, run_id: str) -> Iterator[Start]:
    """Starts `child.py MODE ...` and waits for its `ready`; whatever a test leaves is killed after it."""

    def _start(
        *arguments: object, name: str = "lane", ready: bool = True, cpus: tuple[int, ...] = ()
    ) -> ManagedProcess:
        log = tmp_path / f"{name}.log"
        process = ManagedProcess.start(
            [sys.executable, str(CHILD), *map(str, arguments)],
            env=dict(os.environ),
            cwd=tmp_path,
            log=log,
            marker=f"{run_id}:{name}",
            cpus=cpus,
            name=name,
        )
        started.append(process)
        if ready:
            wait_for(lambda: b"ready" in log.read_bytes(), f"{name} is ready")
        return process

    started: list[ManagedProcess] = []
    yield _start
    for process in started:
        process.stop(0)
    for stray in run_processes(run_id):
        stray.kill()
