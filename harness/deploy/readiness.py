"""Ready means all of: alive, listening on a port that is ours, the right model, a clean log, and one real
generation. A health endpoint alone proves nothing.

A prefill or decode node cannot generate by itself: it is ready when its log says so, too. In its place the
master or router is asked, once all nodes have joined it.
"""

import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from harness.deploy.server import RunningServer
from harness.engines.base import GenerateRequest, Generation, ServedModel
from harness.engines.client import Client, RequestFailed
from harness.engines.watched import watched
from harness.errors import HarnessError, TargetError
from harness.findings import Code
from harness.host.ports import listener
from harness.host.sockets import listening
from harness.scenario.model import Timeouts

T = TypeVar("T")
POLL_S = 0.05
JOIN_POLL_S = 0.25  # a master asks its nodes each time, and a router logs every question
PROBE_TIMEOUT_S = 10.0
HALF = ("prefill", "decode")  # roles that need a partner for a generation
WARMUP = GenerateRequest(prompt="1 + 1 =", max_tokens=4)


@dataclass(frozen=True, slots=True)
class Ready:
    """When a server was listening, and when it had answered its first generation (a prefill or decode node:
    when it said that it is ready), in seconds since launch."""

    listening_s: float
    ready_s: float
    model: ServedModel


class Deadline:
    """Ends `quiet_s` after the last sign of progress that was seen, and in any case `cap_s` after `started`,
    by the monotonic clock; the present moment unless given. A healthy server that loads slowly is not killed;
    one that hangs is."""

    def __init__(self, quiet_s: float, cap_s: float, started: float | None = None) -> None:
        self.quiet_s = quiet_s
        self.cap_s = cap_s
        self._last = time.monotonic()
        self._start = self._last if started is None else started
        self._seen = -1

    def saw(self, progress: int) -> None:
        """Tell the number of progress signs so far; a growth moves the deadline."""
        if progress > self._seen:
            self._seen = progress
            self._last = time.monotonic()

    def left_s(self) -> float:
        """Seconds to the hard limit; below 0 once it has passed."""
        return self._start + self.cap_s - time.monotonic()

    def exceeded(self) -> str | None:
        """Which limit has passed, in words; None while there is time."""
        now = time.monotonic()
        if self.left_s() <= 0:
            return f"the hard limit of {self.cap_s:.0f} s (timeouts.start_cap_s)"
        if now - self._last > self.quiet_s:
            return f"{self.quiet_s:.0f} s without visible progress (timeouts.start_s)"
        return None


def wait_ready(server: RunningServer, timeouts: Timeouts, nodes: Sequence[RunningServer] = ()) -> Ready:
    """Block until the server truly serves. `nodes` are those that must have joined it: a master or router.

    Raises TargetError (SERVER_EXITED, FATAL_LOG, START_TIMEOUT, WRONG_MODEL, WARMUP_FAILED, PD_NOT_JOINED,
    PD_MISMATCH) or HarnessError (NOT_OUR_PORT).
    """
    # The cap counts while the lane's other servers are waited for, since this one loads meanwhile.
    deadline = Deadline(timeouts.start_s, timeouts.start_cap_s, server.started)
    missing: list[RunningServer] | None = None
    listening_s: float | None = None
    with Client(server.launch.base_url, timeout_s=PROBE_TIMEOUT_S) as client:
        while True:
            server.assert_alive(serving=False)
            deadline.saw(server.scanner.progress_count + len(server.scanner.phases))
            if _listens(server.launch.host, server.launch.ports["http"]) and (
                listening_s or _is_ours(server)
            ):
                listening_s = listening_s or time.monotonic() - server.started
                missing, model = _watched(server, deadline, lambda: _look(server, client, nodes))
                if model is not None and _works(server, timeouts, deadline):
                    server.assert_alive(serving=False)
                    return Ready(listening_s, time.monotonic() - server.started, model)
            if missing:
                _check_joined(deadline, server, missing)
            _check(deadline, server)
            time.sleep(JOIN_POLL_S if missing else POLL_S)


def _watched(server: RunningServer, deadline: Deadline, call: Callable[[], T]) -> T:
    """`call()`, given up when the hard limit has passed: whatever the server sends, and however slowly."""

    def pulse() -> None:
        server.pulse()
        if deadline.left_s() <= 0:
            _check(deadline, server)

    return watched(call, pulse)


def _look(
    server: RunningServer, client: Client, nodes: Sequence[RunningServer]
) -> tuple[list[RunningServer] | None, ServedModel | None]:
    """Which nodes have not joined, and the served model once all have."""
    missing = _missing(server, client, nodes)
    return missing, None if missing != [] else _probe(server, client)


def _missing(
    server: RunningServer, client: Client, nodes: Sequence[RunningServer]
) -> list[RunningServer] | None:
    """Nodes that have not joined; None while the server does not answer."""
    if not nodes:
        return []
    try:
        joined = server.engine.joined(client)
    except TargetError:
        return None
    return [node for node in nodes if node.role not in joined]


def _works(server: RunningServer, timeouts: Timeouts, deadline: Deadline) -> bool:
    """A real generation; of a node that has no answers of its own, its word."""
    if server.role in HALF:
        return server.scanner.ready_line is not None
    _warm_up(server, timeouts.request_s, deadline)
    return True


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


def _warm_up(server: RunningServer, request_s: float, deadline: Deadline) -> None:
    """One real generation; refusals are repeated while the server may still be warming up."""

    def generate() -> Generation:
        with Client(server.launch.base_url, timeout_s=request_s) as client:
            return server.engine.generate(client, WARMUP)

    while True:
        try:
            answer = _watched(server, deadline, generate)
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


def _is_ours(server: RunningServer) -> bool:
    """Whether the listener belongs to the server. False where there is none any more: the server died in this
    very moment. Raises HarnessError where it is somebody else's."""
    port, host = server.launch.ports["http"], server.launch.host
    if server.process.owns_port(port, host):
        return True
    if not listening(port, host):
        return False
    other = listener(port)
    who = f"pid {other.pid}: {other.command}" if other else "a process that cannot be seen"
    raise HarnessError(
        f"port {port} answers, but the listener is not the server that was started ({who})",
        cause="another server took the port between the lease and the bind",
        fix="end that server if it is yours, and run again",
        evidence=str(server.log),
        code=Code.NOT_OUR_PORT,
    )


def _check_joined(deadline: Deadline, server: RunningServer, missing: Sequence[RunningServer]) -> None:
    limit = deadline.exceeded()
    if limit is None:
        return
    names = " and ".join(node.role for node in missing)
    raise TargetError(
        f"{names} did not join the {server.role} of lane `{server.launch.lane}` within {limit}",
        cause="the nodes' settings differ, they cannot reach its address, or they know another one",
        fix=f"compare the commands of the servers{missing[0].last_words()}",
        evidence=", ".join(str(node.log) for node in missing),
        code=Code.PD_NOT_JOINED,
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
        fix=f"raise that limit if it was still working{server.last_words()}",
        evidence=str(server.log),
        code=Code.START_TIMEOUT,
    )


def _listens(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(0.5)
        return probe.connect_ex((host, port)) == 0
