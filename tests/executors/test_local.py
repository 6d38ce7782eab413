"""The end of a run: whatever happens on the way, its record has one. The lanes are pretended."""

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.errors import HarnessError, Interrupted
from harness.evidence.record import LaneRecord, RunRecord
from harness.evidence.run_dir import RunDir
from harness.executors import local
from harness.executors.local import run_plan
from harness.executors.planned import Plan, PlannedLane
from harness.executors.workshop import Workshop
from harness.findings import Code, Finding
from harness.host.gpu import GpuBook, Inventory
from harness.host.ports import PortBook
from harness.scenario.model import Lane, ModelSpec, Pair, Scenario, ServerSpec
from harness.verdict import Verdict

pytestmark = pytest.mark.process  # the guardian

LANES = {
    name: Lane(name=name, engine="lightllm", model=ModelSpec(), servers=(ServerSpec(),)) for name in "ab"
}
Lanes = Callable[[Sequence[PlannedLane], Workshop, Callable[[LaneRecord], None]], None]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[RunDir, RunRecord]]:
    """A run whose lanes do what the test says."""
    monkeypatch.setenv("HARNESS_LOCK_DIR", str(tmp_path / "locks"))
    source = SimpleNamespace(inventory=lambda: Inventory((), "none"))

    def go(lanes: Lanes, *, reuse: bool = False, runs: str = "runs") -> tuple[RunDir, RunRecord]:
        monkeypatch.setattr(local, "run_lanes", lanes)
        earlier = cast("Any", SimpleNamespace()) if reuse else None
        planned = [
            PlannedLane(lane=lane, servers=(), checks=(), reuse=earlier if name == "a" else None)
            for name, lane in LANES.items()
        ]
        pairs = {"p": Pair(name="p", baseline="a", candidate="b", check="gsm8k")}
        scenario = Scenario(name="s", source=Path("s.yaml"), lanes=LANES, pairs=pairs)
        return run_plan(
            Plan(scenario=scenario, lanes=tuple(planned), problems=()),
            runs_dir=tmp_path / runs,
            watcher=cast("Any", SimpleNamespace(lane_verdict=lambda *_: None)),
            ports=PortBook(),
            gpus=GpuBook(cast("Any", source)),
        )

    return go


def test_a_bug_of_ours_ends_the_record(run: Callable[..., tuple[RunDir, RunRecord]]) -> None:
    def lanes(*_: Any) -> None:
        raise ZeroDivisionError("in a thread of a lane")

    place, record = run(lanes)
    assert place.read() == record
    assert (record.status, record.verdict, record.exit_code) == ("failed", Verdict.INFRA, 4)
    (finding,) = record.findings
    assert finding.code is Code.HARNESS_BUG
    assert "ZeroDivisionError: in a thread of a lane" in finding.message
    assert record.finished_at
    assert (place.path / "summary.txt").is_file()


def test_a_copy_that_cannot_be_removed_ends_the_record(
    run: Callable[..., tuple[RunDir, RunRecord]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise OSError(16, "Device or resource busy", str(path))

    def lanes(planned: Sequence[PlannedLane], shop: Workshop, finish: Any) -> None:
        shop.run.lane("a").mkdir()
        for name in LANES:
            finish(LaneRecord(name=name, status="done"))

    monkeypatch.setattr(local, "late_objections", lambda *_: ["kv_dtype was bf16 then"])
    monkeypatch.setattr("harness.executors.reuse.shutil.rmtree", refuse)
    place, record = run(lanes, reuse=True)
    assert (place.read().status, record.verdict) == ("failed", Verdict.INFRA)
    assert "cannot be removed: Device or resource busy" in record.findings[0].message


def test_a_baseline_that_could_not_be_copied_is_run_in_the_end(
    run: Callable[..., tuple[RunDir, RunRecord]],
) -> None:
    seen: list[list[tuple[str, tuple[str, ...], bool]]] = []

    def lanes(planned: Sequence[PlannedLane], shop: Workshop, finish: Callable[[LaneRecord], None]) -> None:
        seen.append([(each.lane.name, each.rerun, each.reuse is not None) for each in planned])
        for each in planned:
            record = LaneRecord(name=each.lane.name, status="done")
            if each.reuse:
                problem = HarnessError("the copy failed", fix="free space", code=Code.DISK_FULL)
                record = LaneRecord(name="a", status="failed", findings=[problem.finding()])
                (shop.run.lane("a") / "gsm8k").mkdir(parents=True)
            else:
                assert not shop.run.lane(each.lane.name).exists()
            finish(record)

    _, record = run(lanes, reuse=True)
    assert seen == [[("a", (), True), ("b", (), False)], [("a", ("the copy failed",), False)]]
    assert record.lanes["a"].status == "done"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_run_is_judged_takes_nothing_away(
    run: Callable[..., tuple[RunDir, RunRecord]], monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    real = local.judge_and_report

    def interrupted(place: RunDir, record: RunRecord) -> None:
        os.kill(os.getpid(), number)
        real(place, record)

    monkeypatch.setattr(local, "judge_and_report", interrupted)
    place, record = run(lambda *_: None)
    assert place.read() == record
    assert record.status == "done"
    assert record.exit_code is not None
    assert record.findings == []


def test_the_first_signal_while_lanes_run_interrupts_them(
    run: Callable[..., tuple[RunDir, RunRecord]],
) -> None:
    after: list[int] = []

    def lanes(*_: Any) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.kill(os.getpid(), signal.SIGINT)  # the clean-up goes on
            after.append(1)

    before = signal.getsignal(signal.SIGTERM)
    place, record = run(lanes)
    assert after == [1]
    assert (place.read().status, record.exit_code) == ("interrupted", 130)
    assert [(item.code, item.message) for item in record.findings] == [
        (Code.INTERRUPTED, "interrupted by SIGTERM")
    ]
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_before_the_lanes_lets_none_start(
    run: Callable[..., tuple[RunDir, RunRecord]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "become_subreaper", lambda: os.kill(os.getpid(), signal.SIGTERM))
    begun: list[Any] = []
    place, record = run(lambda *_: begun.append(1))
    assert begun == []
    assert (place.read().status, record.exit_code) == ("interrupted", 130)


def test_interrupted_by_itself_is_no_bug(run: Callable[..., tuple[RunDir, RunRecord]]) -> None:
    def lanes(*_: Any) -> None:
        raise Interrupted("halted")

    _, record = run(lanes)
    assert [item.code for item in record.findings] == [Code.INTERRUPTED]
    assert Finding(code=Code.INTERRUPTED, message="halted", where="harness run") in record.findings
