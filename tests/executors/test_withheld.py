"""A check whose reference delivered nothing is not run, and its lane takes no GPUs for nothing."""

import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.checks.exchange import EXCHANGES
from harness.errors import HarnessError
from harness.events import Silent
from harness.evidence.record import LaneRecord, RunRecord
from harness.evidence.run_dir import RunDir
from harness.executors import lane as lane_module
from harness.executors import parallel
from harness.executors.halt import Halt
from harness.executors.judge import judge_lane, judge_run
from harness.executors.lane import run_lane
from harness.executors.parallel import run_lanes
from harness.executors.planned import PlannedLane, PlannedServer
from harness.executors.planned_check import PlannedCheck, parse_check
from harness.executors.withheld import cut_off, unless_pointless, withheld
from harness.executors.workshop import Workshop
from harness.findings import Code, Finding
from harness.host.gpu import GpuBook
from harness.host.gpu.described import load_inventory
from harness.scenario.model import Lane, ModelSpec, ServerSpec
from harness.verdict import Verdict
from tests.checks.evidence_files import Story, exchange, mark

EIGHT = Path(__file__).parents[2] / "labs" / "inventory-8xh200.yaml"
JUDGED = {"pause-resume": {"reference": "roomy"}}
WHOSE = "with whose answers it would be compared,"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    monkeypatch.setenv("HARNESS_LOCK_DIR", str(tmp_path / "locks"))
    return RunDir.create(tmp_path / "runs", "test")


def planned(name: str, checks: dict[str, dict[str, Any]], *, gpus: int = 4, **more: Any) -> PlannedLane:
    spec = ServerSpec(gpus=gpus)
    server = PlannedServer(spec=spec, engine=cast("Any", None), launch=cast("Any", None), port_names=())
    lane = Lane(name=name, engine="lightllm", model=ModelSpec(), servers=(spec,), checks=checks, **more)
    parsed = tuple(parse_check(check, given) for check, given in checks.items())
    return PlannedLane(lane=lane, servers=(server,), checks=parsed, skip=lane.skip)


def _answers(run: RunDir) -> LaneRecord:
    """The lane `roomy` as it should be: two requests, both answered."""
    story = Story([exchange("alone", "1"), exchange("alone", "2")], [mark("begin")])
    story.write(run.check("roomy", "pause-resume"))
    return LaneRecord(name="roomy", status="done", check_params={"pause-resume": {}})


def _skipped(run: RunDir) -> LaneRecord:
    lane = LaneRecord(name="roomy", status="done", check_params={"pause-resume": {}})
    lane.findings.append(Finding(code=Code.NOT_RUN, message="needs 4 hopper GPUs", where="roomy"))
    return lane


def _exited(run: RunDir) -> LaneRecord:
    run.lane("roomy").mkdir(parents=True)
    lane = LaneRecord(name="roomy", status="failed", check_params={"pause-resume": {}})
    message = "the server exited with 1; likely cause: no memory"
    lane.findings.append(Finding(code=Code.SERVER_EXITED, message=message))
    return lane


def _stalled(run: RunDir) -> LaneRecord:
    lane = _answers(run)
    lane.collect_findings["pause-resume"] = [Finding(code=Code.STALLED, message="no answer within 600 s")]
    return lane


def _cannot(run: RunDir) -> LaneRecord:
    """The check was skipped, and the lane failed elsewhere: that is not why."""
    lane = _answers(run)
    Story(notes={"skipped": "this engine never pauses"}).write(run.check("roomy", "pause-resume"))
    lane.findings.append(Finding(code=Code.FATAL_LOG, message="a fatal line"))
    return lane


def _unanswered(run: RunDir) -> LaneRecord:
    lane = _answers(run)
    Story([exchange("alone", "1", error="HTTP 500")]).write(run.check("roomy", "pause-resume"))
    return lane


def _cut(run: RunDir) -> LaneRecord:
    lane = _answers(run)
    (run.check("roomy", "pause-resume") / EXCHANGES).write_text('{"seq": 0, "leg"')
    return lane


def _gone(run: RunDir) -> LaneRecord:
    lane = _answers(run)
    (run.check("roomy", "pause-resume") / EXCHANGES).unlink()
    return lane


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        (_skipped, f"lane `roomy`, {WHOSE} was skipped: needs 4 hopper GPUs"),
        (
            _exited,
            f"lane `roomy`, {WHOSE} ended as FAIL before its check `pause-resume`: the server exited with 1",
        ),
        (
            _stalled,
            f"check `pause-resume` of lane `roomy`, {WHOSE} left no usable evidence: no answer within",
        ),
        (_cannot, f"check `pause-resume` of lane `roomy`, {WHOSE} was skipped: this engine never pauses"),
        (_unanswered, "left no usable evidence: none of its requests was answered"),
        (_cut, "left no usable evidence: the check's own evidence is missing or broken"),
        (_gone, "left no usable evidence: the check's own evidence is missing or broken"),
    ],
)
def test_a_reference_that_delivered_nothing_is_named(
    run: RunDir, reference: Callable[[RunDir], LaneRecord], reason: str
) -> None:
    record = reference(run)
    judge_lane(run, record)
    found = withheld(planned("tight", JUDGED), {"roomy": record}, run)
    assert list(found) == ["pause-resume"]
    assert reason in found["pause-resume"]


def test_answers_that_its_judge_dislikes_are_answers(run: RunDir) -> None:
    """INVALID as a check of its own, and yet there is something to compare with."""
    record = _answers(run)
    judge_lane(run, record)
    assert record.checks["pause-resume"].verdict is Verdict.INVALID
    assert withheld(planned("tight", JUDGED), {"roomy": record}, run) == {}


def test_what_may_still_be_delivered_is_not_missing(run: RunDir) -> None:
    lane = planned("tight", JUDGED)
    assert withheld(lane, {}, run) == {}
    assert unless_pointless(lane, {}, run) is lane


def test_a_check_that_refers_to_a_withheld_one_is_withheld_too(run: RunDir) -> None:
    record = _skipped(run)
    judge_lane(run, record)
    again = {"kind": "pause-resume", "reference": "tight/pause-resume"}
    lane = planned("tight", {**JUDGED, "smoke": {}, "again": again})
    found = withheld(lane, {"roomy": record}, run)
    assert list(found) == ["pause-resume", "again"]
    assert unless_pointless(lane, {"roomy": record}, run).skip == ""


class House:
    """Runs planned lanes for real, but for the servers: `reference` stands for what `roomy` leaves."""

    def __init__(
        self, run: RunDir, monkeypatch: pytest.MonkeyPatch, reference: Callable[[RunDir], LaneRecord]
    ) -> None:
        self.run = run
        self.leased: dict[str, int] = {}
        self.collected: dict[str, list[str]] = {}
        self.notes: list[str] = []
        self._reference = reference
        self.records: dict[str, LaneRecord] = {}
        monkeypatch.setattr(parallel, "run_lane", self._lane)
        monkeypatch.setattr(lane_module, "_run", self._serve)
        monkeypatch.setattr(parallel, "POLL_S", 0.01)

    def _lane(self, lane: PlannedLane, shop: Workshop, gpus: Any) -> LaneRecord:
        self.leased[lane.lane.name] = len(gpus.gpus) if gpus is not None else 0
        if lane.lane.name == "roomy" and not lane.skip:
            return self._reference(self.run)
        return run_lane(lane, shop, gpus)

    def _serve(self, lane: PlannedLane, shop: Workshop, record: LaneRecord, gpus: Any) -> None:
        self.collected[lane.lane.name] = [check.name for check in lane.checks]
        for check in lane.checks:
            Story(notes={"skipped": "pretended"}).write(self.run.check(lane.lane.name, check.name))

    def __call__(self, *lanes: PlannedLane) -> RunRecord:
        shop = SimpleNamespace(
            run=self.run,
            gpus=GpuBook(load_inventory(EIGHT)),
            halt=Halt(),
            gpu_wait_s=5.0,
            hurry=lambda *_: None,
            save=lambda record: None,
            watcher=SimpleNamespace(note=lambda lane, text: self.notes.append(text)),
            ended={},
        )
        run_lanes(lanes, cast("Workshop", shop), self._finish)
        fields: dict[str, Any] = {
            "run_id": "r",
            "scenario": "s",
            "harness_version": "0",
            "command": [],
            "started_at": "now",
            "status": "done",
            "lanes": self.records,
        }
        record = RunRecord(**fields)
        judge_run(self.run, record)
        return record

    def _finish(self, record: LaneRecord) -> None:
        judge_lane(self.run, record)
        self.records[record.name] = record


@pytest.mark.parametrize(("reference", "exit_code"), [(_exited, 1), (_stalled, 1), (_unanswered, 5)])
def test_a_lane_without_any_check_left_takes_no_gpu(
    run: RunDir,
    monkeypatch: pytest.MonkeyPatch,
    reference: Callable[[RunDir], LaneRecord],
    exit_code: int,
) -> None:
    house = House(run, monkeypatch, reference)
    record = house(planned("tight", JUDGED), planned("roomy", {"pause-resume": {}}))
    assert house.leased == {"roomy": 4, "tight": 0}
    assert house.collected == {}
    tight = record.lanes["tight"]
    assert (tight.verdict, tight.status) == (Verdict.SKIPPED, "done")
    assert tight.checks["pause-resume"].verdict is Verdict.SKIPPED
    (finding,) = tight.findings
    assert finding.code is Code.NOT_RUN
    assert "lane `roomy`, with whose answers it would be compared," in finding.message
    assert record.exit_code == exit_code, "the reference keeps its own verdict"


def test_a_lane_that_is_skipped_by_plan_takes_its_dependent_with_it(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = House(run, monkeypatch, _answers)
    roomy = planned("roomy", {"pause-resume": {}}, required=False, skip="needs 4 hopper GPUs")
    record = house(planned("tight", JUDGED, required=False), roomy)
    assert house.leased == {"roomy": 0, "tight": 0}
    assert "was skipped: needs 4 hopper GPUs" in record.lanes["tight"].findings[0].message
    assert (record.verdict, record.exit_code) == (Verdict.SKIPPED, 0), "both are optional"


def test_a_lane_runs_its_other_checks(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(run, monkeypatch, _exited)
    record = house(planned("tight", {**JUDGED, "smoke": {}}), planned("roomy", {"pause-resume": {}}))
    assert house.leased == {"roomy": 4, "tight": 4}
    assert house.collected == {"tight": ["smoke"]}
    tight = record.lanes["tight"]
    assert list(tight.check_params) == ["pause-resume", "smoke"], "the record knows them all"
    (finding,) = tight.checks["pause-resume"].findings
    assert finding.message.startswith(f"not run: lane `roomy`, {WHOSE} ended as FAIL")
    assert tight.checks["pause-resume"].verdict is Verdict.SKIPPED
    assert any("pause-resume is not run" in note for note in house.notes)
    before = record.model_dump_json()
    judge_run(run, record)
    assert json.loads(record.model_dump_json()) == json.loads(before), "judged again it is the same"


def test_a_sound_reference_lets_its_dependent_run(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(run, monkeypatch, _answers)
    house(planned("tight", JUDGED), planned("roomy", {"pause-resume": {}}))
    assert house.leased == {"roomy": 4, "tight": 4}
    assert house.collected == {"tight": ["pause-resume"]}


def test_the_baseline_of_a_pair_is_no_such_reference(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(run, monkeypatch, _exited)
    house(planned("roomy", {"pause-resume": {}}), planned("candidate", {"pause-resume": {}}))
    assert house.collected == {"candidate": ["pause-resume"]}


def _asked_after(name: str) -> PlannedCheck:
    return parse_check("again", {"kind": "pause-resume", "reference": f"roomy/{name}"})


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        (_answers, ""),
        (_stalled, f"check `pause-resume`, {WHOSE} left no usable evidence: no answer within 600 s"),
        (_unanswered, "left no usable evidence: none of its requests was answered"),
        (_cut, "left no usable evidence: the check's own evidence is missing or broken"),
    ],
)
def test_a_check_of_the_same_lane_that_broke_off_is_no_reference(
    run: RunDir, reference: Callable[[RunDir], LaneRecord], reason: str
) -> None:
    """Nothing of the lane has been judged yet."""
    found = cut_off(_asked_after("pause-resume"), reference(run), run)
    assert reason in found
    assert bool(found) == bool(reason)


def test_a_reference_of_another_lane_is_not_asked_again(run: RunDir) -> None:
    (check,) = planned("tight", JUDGED).checks
    assert cut_off(check, LaneRecord(name="tight"), run) == ""
    assert cut_off(parse_check("smoke", {}), LaneRecord(name="tight"), run) == ""


def test_what_refers_to_a_check_that_broke_off_is_skipped(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the lane itself: the first check stalls, the second refers to it, the third to the second."""
    ran: list[str] = []

    def collect(check: PlannedCheck, lane: Any, up: Any, shop: Any, record: LaneRecord, early: Any) -> None:
        ran.append(check.name)
        record.collect_findings[check.name] = [Finding(code=Code.STALLED, message="no answer within 600 s")]

    nothing = contextlib.nullcontext
    monkeypatch.setattr(lane_module, "collect", collect)
    monkeypatch.setattr(lane_module, "deploy", lambda *_, **__: nothing())
    monkeypatch.setattr(lane_module, "Early", lambda *_: nothing(SimpleNamespace(pulse=None, begin=None)))
    for name in ("_lease", "assert_expected", "_write_fingerprint"):
        monkeypatch.setattr(lane_module, name, lambda *_: None)
    monkeypatch.setattr(lane_module, "resolved_otherwise", lambda *_: [])
    shop = SimpleNamespace(
        run=run,
        up={},
        ended={},
        guard=None,
        save=lambda record: None,
        watcher=SimpleNamespace(note=lambda *_: None, lane_phase=lambda *_: None),
    )
    checks = {
        "first": {"kind": "pause-resume"},
        "second": {"kind": "pause-resume", "reference": "roomy/first"},
        "third": {"kind": "pause-resume", "reference": "roomy/second"},
        "smoke": {},
    }
    record = run_lane(planned("roomy", checks), cast("Workshop", shop), None)
    assert ran == ["first", "smoke"]
    judge_lane(run, record)
    assert record.checks["second"].verdict is record.checks["third"].verdict is Verdict.SKIPPED
    assert "check `first`, with whose answers" in record.checks["second"].findings[0].message


def test_a_baseline_that_cannot_be_copied_fails_by_itself(run: RunDir) -> None:
    class Earlier:
        def take_over(self, lane: str, folder: Path) -> LaneRecord:
            folder.mkdir()
            raise HarnessError("no space left on device", code=Code.DISK_FULL)

    lane = replace(planned("roomy", {"smoke": {}}), reuse=cast("Any", Earlier()))
    record = run_lane(lane, cast("Workshop", SimpleNamespace(run=run)), None)
    assert (record.status, [item.code for item in record.findings]) == ("failed", [Code.DISK_FULL])
    judge_lane(run, record)
    assert record.verdict is Verdict.INFRA


@pytest.mark.parametrize(("gpus", "wait_s"), [(0, lane_module.CPU_WAIT_S), (4, 60.0)])
def test_a_lane_with_gpus_in_hand_does_not_wait_long_for_cores(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, gpus: int, wait_s: float
) -> None:
    asked: list[float] = []

    def lease_cpus(count: int | None, wait_s: float, **_: Any) -> Any:
        asked.append(wait_s)
        raise HarnessError("no cores")

    monkeypatch.setattr(lane_module, "lease_cpus", lease_cpus)
    ports = SimpleNamespace(lease=lambda names: contextlib.nullcontext())
    shop = SimpleNamespace(run=run, ports=ports, halt=Halt(), watcher=Silent())
    with contextlib.ExitStack() as stack, pytest.raises(HarnessError):
        lane_module._lease(planned("roomy", {}, gpus=gpus), cast("Workshop", shop), stack, None)
    assert asked == [wait_s]
