"""Run a plan on this machine: the whole program on one page."""

import os
import platform
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from harness import __version__
from harness.errors import Interrupted
from harness.events import Watcher
from harness.evidence.record import LaneRecord, RunRecord
from harness.evidence.run_dir import RunDir
from harness.executors.judge import judge_lane, judge_run
from harness.executors.lane import Workshop, run_lane
from harness.executors.plan import Plan, require_sound
from harness.findings import Code, Finding
from harness.host.guard import Guard
from harness.host.ports import PortBook
from harness.host.process import become_subreaper
from harness.host.redact import redact_argv
from harness.report.summary import write_lane_summary, write_summary


def run_plan(
    plan: Plan, *, runs_dir: Path, watcher: Watcher, ports: PortBook, require_gate: bool = False
) -> tuple[RunDir, RunRecord]:
    """Run every lane, judge, report. The record is on disk before anything starts and after every step.

    Raises ConfigError when the plan has problems, HarnessError when no run directory can be made.
    """
    require_sound(plan)
    run = RunDir.create(runs_dir, plan.scenario.name)
    record = _opening(plan, run, require_gate)
    run.write(record)
    become_subreaper()

    def save(lane: LaneRecord) -> None:
        record.lanes[lane.name] = lane
        run.write(record)

    with _interruptible():
        try:
            with Guard(run.path) as guard:
                shop = Workshop(run=run, ports=ports, guard=guard, watcher=watcher)
                for planned in plan.lanes:
                    lane = run_lane(planned, shop, save)
                    judge_lane(run, lane)
                    save(lane)
                    watcher.lane_verdict(lane.name, lane.verdict)
        except Interrupted as stop:
            record.status = "interrupted"
            record.findings.append(Finding(code=Code.INTERRUPTED, message=str(stop), where="harness run"))
        if record.status == "started":
            record.status = "done"
        record.finished_at = datetime.now(UTC).isoformat(timespec="seconds")
        judge_and_report(run, record)
    return run, record


def judge_and_report(run: RunDir, record: RunRecord) -> None:
    """Judge what there is; write the record and every summary anew."""
    judge_run(run, record)
    run.write(record)
    write_summary(run, record)
    for lane in record.lanes.values():
        if run.lane(lane.name).is_dir():
            write_lane_summary(run, lane)


def _opening(plan: Plan, run: RunDir, require_gate: bool) -> RunRecord:
    lanes = {
        planned.lane.name: LaneRecord(
            name=planned.lane.name,
            required=planned.lane.required,
            check_params={check.name: dict(check.params_given) for check in planned.checks},
        )
        for planned in plan.lanes
    }
    return RunRecord(
        run_id=run.run_id,
        scenario=plan.scenario.name,
        description=plan.scenario.description,
        harness_version=__version__,
        command=redact_argv(sys.argv),
        require_gate=require_gate,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        host={
            "hostname": platform.node(),
            "kernel": platform.release(),
            "python": platform.python_version(),
            "cpus": os.cpu_count(),
        },
        lanes=lanes,
        pair_specs={pair.name: pair for pair in plan.pairs},
    )


@contextmanager
def _interruptible() -> Iterator[None]:
    """The first SIGINT, SIGTERM or SIGHUP raises Interrupted; later ones wait for the clean-up to finish."""
    seen: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        del frame
        seen.append(number)
        if len(seen) == 1:
            raise Interrupted(f"interrupted by {signal.Signals(number).name}")

    wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    kinds = [number for number in wanted if signal.getsignal(number) is not signal.SIG_IGN]  # nohup
    before = {number: signal.signal(number, on_signal) for number in kinds}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
