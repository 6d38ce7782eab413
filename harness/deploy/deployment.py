"""The servers of one lane: started in order, ready one by one, stopped in reverse, release verified."""

import contextlib
import os
import shlex
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from harness.deploy.readiness import Ready, wait_ready
from harness.deploy.release import owner_of, verify_released
from harness.deploy.server import RunningServer
from harness.engines.base import Engine, Launch
from harness.engines.client import Client
from harness.errors import HarnessError, Problem
from harness.events import Watcher
from harness.evidence.files import write_atomic, write_json
from harness.evidence.record import ServerRecord
from harness.findings import Code, Finding
from harness.host.guard import Guard
from harness.host.ports import listener
from harness.host.process import ManagedProcess, StopOutcome
from harness.host.redact import redact_argv, redact_env, redact_settings, secret_values, telling
from harness.host.scrub import scrub
from harness.host.shm import ShmSnapshot, snapshot, used_by
from harness.scenario.model import Timeouts


@dataclass(slots=True)
class Deployment:
    """What is up, and what was written about it. `findings` are those of the release."""

    servers: list[RunningServer] = field(default_factory=list)
    records: list[ServerRecord] = field(default_factory=list)
    ready: list[Ready] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)
    secrets: set[str] = field(default_factory=set)  # given to the servers, who may log them
    shm: set[str] = field(default_factory=set)  # names in /dev/shm that the servers were seen to use
    named: set[str] = field(default_factory=set)  # roles whose names' patterns the guard knows
    stopping: bool = False

    @property
    def entry(self) -> RunningServer:
        """The server that clients talk to: the last one started (the only one, or the master/router)."""
        return self.servers[-1]

    def assert_alive(self) -> None:
        """Raise TargetError as soon as any server of the lane has died or logged a fatal line. The dead are
        told first: what the others log then is mostly the consequence."""
        for server in self._dead_first():
            server.assert_alive(serving=True)

    def check_others(self, server: RunningServer) -> None:
        """While one server is waited for, the others must not die unseen."""
        if server.process.poll() is not None:
            return  # its own end is what is to be told
        for other in self._dead_first():
            if other is not server:
                other.check(serving=len(self.ready) > self.servers.index(other))

    def _dead_first(self) -> list[RunningServer]:
        return sorted(self.servers, key=lambda server: server.process.poll() is None)

    def hurry(self, number: int) -> None:
        """Send a signal to the servers from another thread, so that whoever waits for an answer of theirs
        waits no longer. Does nothing once they are being stopped anyway."""
        for server in () if self.stopping else tuple(self.servers):
            server.process.signal(number)


@contextlib.contextmanager
def deploy(
    up: Deployment,
    launches: list[tuple[Engine, Launch]],
    *,
    run_id: str,
    timeouts: Timeouts,
    guard: Guard,
    watcher: Watcher,
    pulse: Callable[[], None] = lambda: None,
    launched: Callable[[], None] = lambda: None,
    neighbours: Callable[[], Sequence[Deployment]] = tuple,
) -> Iterator[None]:
    """Start every server and wait until each truly serves; on leaving, stop all and verify the release.

    Fills the empty `up` as it goes, so that a start that failed half-way is on record too. Whatever happens
    inside, every started process is stopped; the first error is the one that is seen. `launched` is called
    once when all processes run, `pulse` again and again while somebody waits; `neighbours` are the other
    lanes of the run, whose leftovers are not this one's. Raises TargetError or HarnessError, and whatever
    those two raise. What the release left behind is in `up.findings`.
    """
    before = snapshot()
    lane = launches[0][1].lane
    try:
        watcher.lane_phase(lane, "launching")
        for engine, launch in launches:  # all at once: prefill and decode load the same weights side by side
            server = _start(engine, launch, run_id=run_id, guard=guard, alone=len(launches) == 1, up=up)
            server.pulse = partial(_pulse, up, server, guard, pulse)
        launched()
        watcher.lane_phase(lane, "loading")
        for server, record in zip(up.servers, up.records, strict=True):
            nodes = up.servers[:-1] if server is up.entry else []
            up.ready.append(wait_ready(server, timeouts, nodes))
            _note_config(server, record)
            _note_shm(up)
            guard.watch_shm(up.shm - before)
            _watch_names(up, guard)
        up.phases["ready"] = max(ready.ready_s for ready in up.ready)
        yield
        up.assert_alive()  # one that ended by itself after the last check did not hold out
    finally:
        release = partial(_release, up, before, neighbours)
        _take_down(up, launches[0][1], release, grace_s=timeouts.stop_s, watcher=watcher)


def _take_down(
    up: Deployment, first: Launch, release: Callable[[], None], *, grace_s: float, watcher: Watcher
) -> None:
    """Stop all, verify the release, clear up; each step is tried whatever the others raise."""
    began = time.monotonic()
    up.stopping = True
    with contextlib.ExitStack() as steps:  # unwinds from the last to the first
        steps.callback(shutil.rmtree, first.scratch, ignore_errors=True)
        steps.callback(_scrub, up, first.folder)
        steps.callback(lambda: up.phases.update(stop=time.monotonic() - began))
        steps.callback(release)
        steps.callback(_stop_all, up, grace_s)
        steps.callback(_note_shm, up)
        steps.callback(watcher.lane_phase, first.lane, "stopping")


def _release(up: Deployment, before: ShmSnapshot, neighbours: Callable[[], Sequence[Deployment]]) -> None:
    """The phase `release` stands in the record only if all of it was verified."""
    began = time.monotonic()

    def foreign(names: Collection[str]) -> list[str]:
        others = [owner_of(tuple(other.servers), frozenset(other.shm)) for other in neighbours()]
        return [name for name in names if any(owns(name) for owns in others)]

    up.findings.extend(verify_released(up.servers, before, up.shm, foreign))
    up.phases["release"] = time.monotonic() - began


def _start(
    engine: Engine, launch: Launch, *, run_id: str, guard: Guard, alone: bool, up: Deployment
) -> RunningServer:
    _require_free_ports(launch)
    argv = engine.argv(launch)
    difference = engine.environment(launch)
    log = launch.folder / ("server.log" if alone else f"{launch.role}.log")
    secrets = telling(secret_values(argv, {**os.environ, **difference}))
    up.secrets |= secrets
    shown, shown_env = redact_argv(argv, secrets), redact_env(difference, secrets)
    _write_command(launch, shown, shown_env, alone=alone)
    record = ServerRecord(
        role=launch.role,
        engine=engine.name,
        version=engine.version(launch),
        argv=shown,
        env=shown_env,
        ports=dict(launch.ports),
        gpus=list(launch.gpus),
        cpus=list(launch.cpus),
    )
    marker = f"{run_id}:{launch.lane}:{launch.role}"
    guard.watch(marker)
    process = ManagedProcess.start(
        argv,
        env={**os.environ, **difference},
        cwd=Path.cwd(),  # where the person is: relative paths in flags mean what the plan showed
        log=log,
        marker=marker,
        cpus=launch.cpus,
        name=f"{launch.lane}/{launch.role}",
    )
    record.pid = process.pid
    server = RunningServer(
        role=launch.role, engine=engine, launch=launch, process=process, log=log, secrets=secrets
    )
    up.servers.append(server)
    up.records.append(record)
    guard.watch(process)
    return server


def _require_free_ports(launch: Launch) -> None:
    for port in launch.ports.values():
        if (other := listener(port)) is not None:
            raise HarnessError(
                f"port {port} is already answered by pid {other.pid} ({other.command})",
                cause="a server of an earlier run or of somebody else",
                fix="end it if it is yours, and run again",
                code=Code.PORT_TAKEN,
            )


def _pulse(up: Deployment, server: RunningServer, guard: Guard, pulse: Callable[[], None]) -> None:
    pulse()
    if len(up.ready) < len(up.servers):  # the harness may be killed while they load
        _watch_names(up, guard)
    up.check_others(server)


def _watch_names(up: Deployment, guard: Guard) -> None:
    """Each server's own names, as soon as its log tells them."""
    for server in up.servers:
        if server.role not in up.named and (patterns := server.engine.traces(server.log).patterns):
            guard.watch_names(patterns)
            up.named.add(server.role)


def _note_config(server: RunningServer, record: ServerRecord) -> None:
    with Client(server.launch.base_url, timeout_s=30) as client:
        told = server.engine.effective_config(client, server.log)
    config = redact_settings(told, server.secrets)
    record.effective_config = config
    write_json(server.launch.folder / f"effective-config.{server.role}.json", config)


def _note_shm(up: Deployment) -> None:
    """Only while a process lives can it be seen which shared memory is its own."""
    for server in up.servers:
        up.shm |= used_by({member.pid for member in server.process.members()})


def _scrub(up: Deployment, folder: Path) -> None:
    """Servers log their arguments: once all is stopped, what they were told in secret is masked."""
    try:
        scrub(folder, up.secrets)
    except HarnessError as error:
        up.findings.append(error.finding())


def _write_command(launch: Launch, argv: list[str], env: Mapping[str, str], *, alone: bool) -> None:
    """`command.txt`: a line that a person can paste into a shell. Secrets are masked by now."""
    words = [f"{name}={shlex.quote(value)}" for name, value in env.items()]
    words += [shlex.quote(word) for word in argv]
    name = "command.txt" if alone else f"command.{launch.role}.txt"
    write_atomic(launch.folder / name, " \\\n  ".join(words) + "\n")
    suffix = "" if alone else f".{launch.role}"
    write_json(launch.folder / f"environment{suffix}.json", env)


def _stop_all(up: Deployment, grace_s: float) -> None:
    """Reverse order, every one tried; how each ended is recorded."""
    for server, record in reversed(list(zip(up.servers, up.records, strict=False))):
        dead = server.process.poll() is not None
        try:
            outcome = server.process.stop(grace_s)
        except (OSError, Problem) as error:
            message = f"stopping {server.role} failed: {error}"
            up.findings.append(Finding(code=Code.RELEASE_PROCESS, message=message, where=str(server.log)))
            continue
        record.exit_code = outcome.exit_code
        record.stop = outcome.how
        if outcome.forced:
            up.findings.append(_forced(server, outcome, dead=dead))


def _forced(server: RunningServer, outcome: StopOutcome, *, dead: bool) -> Finding:
    """Whom SIGKILL was needed for: the server, or what it had started. `dead`: before the stop."""
    pids = ", ".join(map(str, outcome.forced))
    if server.process.pid in outcome.forced:
        what = f"server `{server.role}` did not end on SIGTERM: killed"
    elif dead:
        what = f"server `{server.role}` was dead already; processes that it left behind were killed"
    else:
        what = f"server `{server.role}` ended on SIGTERM, but processes that it had started did not: killed"
    message = f"{what} (pid {pids}; the stop took {outcome.seconds:.1f} s)"
    return Finding(code=Code.FORCED_KILL, message=message, where=str(server.log))
