"""Run a plan on this machine: the whole program on one page."""

import os
import platform
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Self

from harness import __version__
from harness.errors import HarnessError, Interrupted, Problem
from harness.events import Watcher
from harness.evidence.digests import FILE_NAME as DIGESTS
from harness.evidence.digests import write_digests
from harness.evidence.record import LaneRecord, RunRecord
from harness.evidence.run_dir import RunDir
from harness.executors.halt import Halt
from harness.executors.judge import judge_lane, judge_run
from harness.executors.parallel import run_lanes
from harness.executors.plan import require_sound
from harness.executors.planned import Plan, PlannedLane
from harness.executors.reuse import discard, late_objections
from harness.executors.revision import revision
from harness.executors.simulate import is_simulated
from harness.executors.workshop import Workshop
from harness.findings import Code, Finding
from harness.host.gpu import GpuBook
from harness.host.guard import Guard
from harness.host.ports import PortBook
from harness.host.process import become_subreaper
from harness.host.redact import redact_argv
from harness.report.summary import write_lane_summary, write_summary
from harness.verdict import Verdict, exit_code


def run_plan(
    plan: Plan,
    *,
    runs_dir: Path,
    watcher: Watcher,
    ports: PortBook,
    gpus: GpuBook,
    require_gate: bool = False,
    gpu_wait_s: float = 600.0,
) -> tuple[RunDir, RunRecord]:
    """Run every lane, judge, report. The record is on disk before anything starts and after every step.

    Raises ConfigError when the plan has problems, HarnessError when no run directory can be made.
    """
    require_sound(plan)
    run = RunDir.create(runs_dir, plan.scenario.name)
    with run.hold(), _Signals() as signals:
        ledger = _Ledger(run, _opening(plan, run, gpus, require_gate), watcher)
        run.write(ledger.record)
        become_subreaper()
        guard = Guard(run.path)
        try:
            with signals.interrupting(), guard:
                shop = Workshop(
                    run=run,
                    ports=ports,
                    gpus=gpus,
                    guard=guard,
                    watcher=watcher,
                    halt=Halt(),
                    save=ledger.save,
                    gpu_wait_s=gpu_wait_s,
                )
                run_lanes(plan.lanes, shop, ledger.finish)
                run_lanes(_once_more(plan, run, ledger.record), shop, ledger.finish)
        except Interrupted as stop:
            ledger.record.status = "interrupted"
            ledger.note(Code.INTERRUPTED, str(stop))
        except Problem as problem:  # evidence could not be written, or judged: what is known is told
            ledger.record.status = "failed"
            ledger.record.findings.append(problem.finding())
        except Exception:  # noqa: BLE001 - a bug of ours must not leave a record without an end
            ledger.record.status = "failed"
            trace = traceback.format_exc(limit=5)
            ledger.note(Code.HARNESS_BUG, f"the harness itself failed while it ran the lanes:\n{trace}")
        for loss in guard.losses:
            ledger.note(Code.GUARDIAN_LOST, loss)
        ledger.close()
    return run, ledger.record


@dataclass(slots=True)
class _Ledger:
    """The record of a run that is going on, shared by the threads of its lanes."""

    run: RunDir
    record: RunRecord
    watcher: Watcher
    _mutex: threading.Lock = field(default_factory=threading.Lock)

    def save(self, lane: LaneRecord) -> None:
        """Called in the lane's own thread, which goes on to change it: the record gets a copy."""
        copy = lane.model_copy(deep=True)
        with self._mutex:
            self.record.lanes[lane.name] = copy
            self.run.write(self.record)

    def finish(self, lane: LaneRecord) -> None:
        """The lane has ended: fix its evidence by digests, judge it, say so."""
        try:
            folder = self.run.lane(lane.name)
            if folder.is_dir() and not (folder / DIGESTS).exists():  # a lane taken over brings its own
                write_digests(self.run.lane(lane.name))
        except HarnessError as error:
            lane.findings.append(error.finding())
        judge_lane(self.run, lane)
        self.save(lane)
        self.watcher.lane_verdict(lane.name, lane.verdict)

    def note(self, code: Code, message: str) -> None:
        self.record.findings.append(Finding(code=code, message=message, where="harness run"))

    def close(self) -> None:
        """Judge the whole and report. A disk that is full by now costs the files, not what is known."""
        record = self.record
        if simulated := [name for name, lane in record.lanes.items() if is_simulated(lane)]:
            self.note(
                Code.SIMULATED, f"{', '.join(simulated)}: on the simulator; this says nothing of an engine"
            )
        if record.status == "started":
            record.status = "done"
        record.finished_at = datetime.now(UTC).isoformat(timespec="seconds")
        try:
            judge_and_report(self.run, record)
        except HarnessError as error:
            record.findings.append(error.finding())
            record.verdict = Verdict.INFRA
            record.exit_code = exit_code(record.verdict)


def _once_more(plan: Plan, run: RunDir, record: RunRecord) -> list[PlannedLane]:
    """Baselines that could not be taken over, or turned out not to fit their candidates: run after all."""
    again = []
    for planned in plan.lanes:
        name = planned.lane.name
        if not planned.reuse:
            continue
        lane = record.lanes[name]
        if lane.status == "failed":
            reasons = [finding.headline for finding in lane.findings]
        else:
            reasons = late_objections(run, plan.scenario, name)
        if reasons:
            discard(run.lane(name))
            again.append(replace(planned, reuse=None, rerun=tuple(reasons)))
    return again


def judge_and_report(run: RunDir, record: RunRecord) -> None:
    """Judge what there is; write the record and every summary anew. The first verdicts are kept."""
    if record.exit_code is not None and not record.judged_first:  # by a harness that did not keep them
        record.judged_first = record.verdicts()
    judge_run(run, record)
    record.judged_first = record.judged_first or record.verdicts()
    run.write(record)
    write_summary(run, record)
    for lane in record.lanes.values():
        if run.lane(lane.name).is_dir():
            write_lane_summary(run, lane)


def _opening(plan: Plan, run: RunDir, gpus: GpuBook, require_gate: bool) -> RunRecord:
    lanes = {
        name: LaneRecord(
            name=name,
            required=lane.required,
            check_params={check: dict(given) for check, given in lane.checks.items()},
        )
        for name, lane in plan.scenario.lanes.items()
    }
    return RunRecord(
        run_id=run.run_id,
        scenario=plan.scenario.name,
        description=plan.scenario.description,
        harness_version=__version__,
        harness_revision=revision(),
        command=redact_argv(sys.argv),
        require_gate=require_gate,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        host={
            "hostname": platform.node(),
            "kernel": platform.release(),
            "python": platform.python_version(),
            "cpus": os.cpu_count(),
            "gpus": gpus.inventory.summary(),
        },
        lanes=lanes,
        pair_specs={pair.name: pair for pair in plan.pairs},
    )


class _Signals:
    """SIGINT, SIGTERM and SIGHUP while a run goes on; a context manager.

    They are noted, and end nothing by themselves: judging is short, and its record would have no end. Within
    `interrupting` the first one raises Interrupted; later ones wait for the clean-up to finish.
    """

    def __init__(self) -> None:
        self._seen: list[int] = []
        self._raising = False

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        self._raising = True
        try:
            if self._seen:
                self._interrupt()
            yield
        finally:
            self._raising = False

    def __enter__(self) -> Self:
        wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        kinds = [number for number in wanted if signal.getsignal(number) is not signal.SIG_IGN]  # nohup
        self._before = {number: signal.signal(number, self._on_signal) for number in kinds}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._seen.append(number)
        if self._raising and len(self._seen) == 1:
            self._interrupt()

    def _interrupt(self) -> None:
        raise Interrupted(f"interrupted by {signal.Signals(self._seen[0]).name}")
