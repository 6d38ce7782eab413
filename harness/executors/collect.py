"""One check of a lane is collected: what it may touch, and the programs it starts."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from harness.checks.base import Begun, CheckContext, ServerView
from harness.deploy.deployment import Deployment
from harness.errors import Problem, TargetError
from harness.evidence.record import LaneRecord
from harness.executors.planned import PlannedLane
from harness.executors.planned_check import PlannedCheck
from harness.executors.workshop import Workshop
from harness.findings import Code
from harness.host.process import ManagedProcess

TICK_S = 0.2
PROGRAM_GRACE_S = 10.0


class Early:
    """The first check of a lane, begun while the server still loads; a context manager."""

    def __init__(self, planned: PlannedLane, up: Deployment, shop: Workshop) -> None:
        self._planned = planned
        self._up = up
        self._shop = shop
        self._begun: Begun | None = None

    def begin(self) -> None:
        """All processes of the lane run now. What goes wrong here goes wrong again, and is told, when the
        check is collected."""
        for check in self._planned.checks[:1]:
            try:
                self._begun = check.check.begin(
                    check.params, _context(check, self._planned, self._up, self._shop)
                )
            except Problem:
                self._begun = None

    def pulse(self) -> None:
        """Called while the server loads; raises Interrupted when the run is to end."""
        self._shop.halt.check()
        if self._begun is not None:
            self._begun.pulse()

    def take(self, check: PlannedCheck) -> Begun | None:
        """What was begun of this check; it is the caller's then."""
        if check is not self._planned.checks[0]:
            return None
        begun, self._begun = self._begun, None
        return begun

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._begun is not None:
            self._begun.close()


def collect(
    check: PlannedCheck,
    planned: PlannedLane,
    up: Deployment,
    shop: Workshop,
    record: LaneRecord,
    early: Early,
) -> None:
    """Fill the check's folder. What goes wrong is put on record and the other checks go on, unless a server
    of the lane is gone: then TargetError."""
    context = replace(_context(check, planned, up, shop), pulse=_limited(up, planned.lane.timeouts.check_s))
    shop.watcher.lane_phase(planned.lane.name, check.name)
    context.folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    try:
        check.check.collect(check.params, context, early.take(check))
    except Problem as problem:
        record.collect_findings[check.name] = [problem.finding()]
    finally:
        record.phases[check.name] = time.monotonic() - began
    up.assert_alive()


def _context(check: PlannedCheck, planned: PlannedLane, up: Deployment, shop: Workshop) -> CheckContext:
    lane = planned.lane
    return CheckContext(
        engine=up.entry.engine,
        base_url=up.entry.launch.base_url,
        served_name=lane.model.served_name,
        folder=shop.run.check(lane.name, check.name),
        server_log=up.entry.log,
        start_command=_Starter(up, shop, f"{lane.name}:{check.name}", lane.timeouts.check_s),
        progress=lambda done, total: shop.watcher.progress(lane.name, done, total),
        servers=tuple(
            ServerView(
                role=server.role,
                engine=server.engine,
                base_url=server.launch.base_url,
                log=server.log,
                config=dict(record.effective_config),
                version=record.version,
            )
            for server, record in zip(up.servers, up.records, strict=True)
        ),
        model_path=up.entry.launch.model_path,
        pulse=up.assert_alive,
    )


def _limited(up: Deployment, limit_s: float) -> Callable[[], None]:
    """What raises when a server has died, the run is to end, or the check has taken `limit_s` from now on."""
    deadline = time.monotonic() + limit_s

    def pulse() -> None:
        up.assert_alive()
        if time.monotonic() > deadline:
            what = f"the check did not end within {limit_s:g} s (timeouts.check_s)"
            raise TargetError(what, evidence=str(up.entry.log), code=Code.STALLED)

    return pulse


@dataclass(slots=True)
class _Starter:
    """Starts a check's program as a process of the run."""

    up: Deployment
    shop: Workshop
    place: str
    limit_s: float
    started: int = field(default=0)

    def __call__(self, argv: Sequence[str], env: Mapping[str, str], log: Path) -> "_Program":
        self.started += 1
        marker = f"{self.shop.run.run_id}:{self.place}:evaluator-{self.started}"
        self.shop.guard.watch(marker)
        process = ManagedProcess.start(
            list(argv), env={**os.environ, **env}, cwd=log.parent, log=log, marker=marker, name="evaluator"
        )
        self.shop.guard.watch(process)
        return _Program(process, self.up, log, self.limit_s)


@dataclass(frozen=True, slots=True)
class _Program:
    """A running program of a check; nothing in it hangs unseen."""

    process: ManagedProcess
    up: Deployment
    log: Path
    limit_s: float

    def wait(self, tick: Callable[[], None]) -> int:
        deadline = time.monotonic() + self.limit_s
        while (code := self.process.poll()) is None:
            self.up.assert_alive()
            tick()
            if time.monotonic() > deadline:
                what = f"the check's program did not end within {self.limit_s:.0f} s (timeouts.check_s)"
                raise TargetError(what, evidence=str(self.log), code=Code.STALLED)
            time.sleep(TICK_S)
        return code

    def stop(self) -> None:
        self.process.stop(PROGRAM_GRACE_S)
