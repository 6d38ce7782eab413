"""Ready means all of: alive, listening on a port that is ours, the right model, a clean log, and one real
generation. A health endpoint alone proves nothing.
"""

import socket
import time
from dataclasses import dataclass

from harness.deploy.server import RunningServer
from harness.engines.base import GenerateRequest, ServedModel
from harness.engines.client import Client, RequestFailed
from harness.errors import HarnessError, TargetError
from harness.findings import Code
from harness.host.ports import listener
from harness.scenario.model import Timeouts

POLL_S = 0.05
PROBE_TIMEOUT_S = 10.0
WARMUP = GenerateRequest(prompt="1 + 1 =", max_tokens=4)


@dataclass(frozen=True, slots=True)
class Ready:
    """When a server was listening, and when it had answered its first generation, in seconds since launch."""

    listening_s: float
    ready_s: float
    model: ServedModel


class Deadline:
    """Ends `quiet_s` after the last sign of progress, and in any case `cap_s` after the start. A healthy
    server that loads slowly is not killed; one that hangs is."""

    def __init__(self, quiet_s: float, cap_s: float) -> None:
        self.quiet_s = quiet_s
        self.cap_s = cap_s
        self._start = self._last = time.monotonic()
        self._seen = -1

    def saw(self, progress: int) -> None:
        """Tell the number of progress signs so far; a growth moves the deadline."""
        if progress > self._seen:
            self._seen = progress
            self._last = time.monotonic()

    def exceeded(self) -> str | None:
        """Which limit has passed, in words; None while there is time."""
        now = time.monotonic()
        if now - self._start > self.cap_s:
            return f"the hard limit of {self.cap_s:.0f} s (timeouts.start_cap_s)"
        if now - self._last > self.quiet_s:
            return f"{self.quiet_s:.0f} s without visible progress (timeouts.start_s)"
        return None


def wait_ready(server: RunningServer, timeouts: Timeouts) -> Ready:
    """Block until the server truly serves.

    Raises TargetError (SERVER_EXITED, FATAL_LOG, START_TIMEOUT, WRONG_MODEL, WARMUP_FAILED) or HarnessError
    (NOT_OUR_PORT).
    """
    deadline = Deadline(timeouts.start_s, timeouts.start_cap_s)
    listening_s: float | None = None
    with Client(server.launch.base_url, timeout_s=PROBE_TIMEOUT_S) as client:
        while True:
            server.assert_alive(serving=False)
            deadline.saw(server.scanner.progress_count + len(server.scanner.phases))
            if _listens(server.launch.host, server.launch.ports["http"]):
                if listening_s is None:
                    listening_s = time.monotonic() - server.started
                    _assert_ours(server)
                model = _probe(server, client)
                if model is not None:
                    with Client(server.launch.base_url, timeout_s=timeouts.request_s) as patient:
                        _warm_up(server, patient, deadline)
                    server.assert_alive(serving=False)
                    return Ready(listening_s, time.monotonic() - server.started, model)
            _check(deadline, server)
            time.sleep(POLL_S)


def _probe(server: RunningServer, client: Client) -> ServedModel | None:
    """The served model once the server tells it, None while it is still loading."""
    try:
        model = server.engine.served_model(client)
    except TargetError:
        return None
    expected = server.launch.served_name
    if model.name != expected:
        raise TargetError(
            f"port {server.launch.ports['http']} serves the model `{model.name}`, expected `{expected}`",
            cause="another model was loaded, or the served name is not what the scenario says",
            fix="compare model.served_name with the server's flags",
            evidence=str(server.log),
            code=Code.WRONG_MODEL,
        )
    return model


def _warm_up(server: RunningServer, client: Client, deadline: Deadline) -> None:
    """One real generation; refusals are repeated while the server may still be warming up."""
    while True:
        try:
            answer = server.engine.generate(client, WARMUP)
        except RequestFailed as error:
            server.assert_alive(serving=False)
            if 400 <= error.status < 500 or deadline.exceeded():
                raise _warmup_failed(server, str(error)) from error
        else:
            if answer.completion_tokens < 1:
                raise _warmup_failed(server, "it returned no token")
            return
        server.read_log()
        deadline.saw(server.scanner.progress_count + len(server.scanner.phases))
        time.sleep(POLL_S)


def _warmup_failed(server: RunningServer, reason: str) -> TargetError:
    return TargetError(
        f"the server listens but its first real generation failed: {reason}",
        cause="the engine behind the HTTP server does not work",
        fix="read the server's log; /health may be green all the same",
        evidence=str(server.log),
        code=Code.WARMUP_FAILED,
    )


def _assert_ours(server: RunningServer) -> None:
    port = server.launch.ports["http"]
    if server.process.owns_port(port):
        return
    other = listener(port)
    who = f"pid {other.pid}: {other.command}" if other else "a process that cannot be seen"
    raise HarnessError(
        f"port {port} answers, but the listener is not the server that was started ({who})",
        cause="another server took the port between the lease and the bind",
        fix="end that server if it is yours, and run again",
        evidence=str(server.log),
        code=Code.NOT_OUR_PORT,
    )


def _check(deadline: Deadline, server: RunningServer) -> None:
    limit = deadline.exceeded()
    if limit is None:
        return
    phases = server.scanner.phases
    last = f"the last phase seen was `{phases[-1].name}`" if phases else "its log shows no known phase"
    server.read_log()
    server.scanner.close()  # a traceback that was cut off counts now
    seen = [f"{each.cause} (line {each.line}: {each.text[:200]})" for each in server.scanner.causes()[:3]]
    raise TargetError(
        f"{server.engine.name} server `{server.launch.lane}` was not ready after {limit}; {last}",
        cause="; ".join(seen) or "it hangs, or it loads more slowly than the scenario allows",
        fix=f"raise timeouts.start_s if it was still working; last lines of its log:\n{server.log_tail()}",
        evidence=str(server.log),
        code=Code.START_TIMEOUT,
    )


def _listens(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(0.5)
        return probe.connect_ex((host, port)) == 0
