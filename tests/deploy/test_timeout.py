"""A server that was not ready in time is told with what its log shows of the cause."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.codes import Code
from harness.deploy.readiness import Deadline, _check, _warm_up, wait_ready
from harness.deploy.server import RunningServer
from harness.engines import ENGINES
from harness.engines.base import Launch
from harness.errors import TargetError
from harness.scenario.model import Timeouts
from tests.servers.scripted import Received, Scripted


class _Alive:
    """A process that runs and does nothing."""

    def poll(self) -> None:
        return None


def _server(tmp_path: Path, log: str, port: int = 1) -> RunningServer:
    (tmp_path / "server.log").write_text(log, encoding="utf-8")
    launch = Launch(
        lane="a",
        role="normal",
        model_path="/m",
        served_name="m",
        flags={},
        env={},
        ports={"http": port},
        folder=tmp_path,
    )
    process: Any = _Alive()
    return RunningServer("normal", ENGINES["vllm"], launch, process, tmp_path / "server.log")


def _timed_out(tmp_path: Path, log: str) -> TargetError:
    with pytest.raises(TargetError) as caught:
        _check(Deadline(quiet_s=-1, cap_s=100), _server(tmp_path, log))
    assert caught.value.code is Code.START_TIMEOUT
    return caught.value


def test_a_traceback_that_never_ended_is_the_likely_cause(tmp_path: Path) -> None:
    log = """\
(EngineCore pid=7) INFO 11-30 10:00:00 [core.py:1] Initializing a V1 LLM engine
(EngineCore pid=7) ERROR 11-30 10:00:01 [core.py:2] Traceback (most recent call last):
(EngineCore pid=7) ERROR 11-30 10:00:01 [core.py:2]   File "/x/core.py", line 1, in run
"""
    error = _timed_out(tmp_path, log)
    assert "line 2" in error.cause
    assert "hangs" not in error.cause


def test_a_log_that_shows_nothing_leaves_both_possible(tmp_path: Path) -> None:
    assert _timed_out(tmp_path, "").cause == "it hangs, or it loads more slowly than the scenario allows"


def test_a_server_whose_turn_comes_late_has_no_cap_of_its_own(tmp_path: Path) -> None:
    server = _server(tmp_path, "")
    server.started = time.monotonic() - 31
    with pytest.raises(TargetError, match="hard limit of 30 s") as caught:
        wait_ready(server, Timeouts(start_s=20, start_cap_s=30))
    assert caught.value.code is Code.START_TIMEOUT


@pytest.mark.process
@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: "])
def test_a_first_answer_that_comes_by_drops_is_given_up_at_the_cap(tmp_path: Path, head: bytes) -> None:
    def dripping(request: Received) -> Iterator[bytes]:
        yield head
        for _ in range(1000):
            time.sleep(0.02)
            yield b" "

    began = time.monotonic()
    with Scripted(dripping) as upstream:
        server = _server(tmp_path, "", int(upstream.url.rpartition(":")[2]))
        with pytest.raises(TargetError, match="hard limit of 1 s") as caught:
            _warm_up(server, 600, Deadline(quiet_s=600, cap_s=1))
    assert caught.value.code is Code.START_TIMEOUT
    assert time.monotonic() - began < 10  # all drops would take 20 s
