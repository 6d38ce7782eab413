"""Lanes side by side: who starts when, and what an end before the time does to the others."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.errors import Interrupted, Problem
from harness.evidence.record import LaneRecord
from harness.executors import parallel
from harness.executors.halt import Halt
from harness.executors.parallel import run_lanes
from harness.executors.planned import PlannedLane
from harness.executors.workshop import Workshop
from harness.host.gpu import GpuBook, Link
from harness.host.gpu.described import load_inventory

EIGHT = Path(__file__).parents[2] / "labs" / "inventory-8xh200.yaml"


@pytest.fixture(autouse=True)
def own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_LOCK_DIR", str(tmp_path / "locks"))


def planned(
    name: str, gpus: int = 0, needs: tuple[str, ...] = (), skip: str = "", cpus: int = 0
) -> PlannedLane:
    lane = SimpleNamespace(
        lane=SimpleNamespace(name=name),
        gpus=gpus,
        cpus=cpus,
        needs=frozenset(needs),
        skip=skip,
        reuse=None,
        checks=(),
        suits=lambda gpu: True,
        link=Link.UNKNOWN,
    )
    return cast("PlannedLane", lane)


class Stage:
    """Runs pretended lanes and remembers who was there together."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, behave: Callable[[str, "Stage"], None]) -> None:
        self.book = GpuBook(load_inventory(EIGHT))
        self.halt = Halt()
        self.began: list[str] = []
        self.ended: list[str] = []
        self.together: set[frozenset[str]] = set()
        self.gpus: dict[str, Any] = {}
        self.notes: list[tuple[str, str]] = []
        self.on: set[str] = set()
        self._mutex = threading.Lock()
        self._behave = behave
        monkeypatch.setattr(parallel, "run_lane", self._lane)
        monkeypatch.setattr(parallel, "POLL_S", 0.01)

    def _lane(self, lane: PlannedLane, shop: Workshop, gpus: Any) -> LaneRecord:
        name = lane.lane.name
        with self._mutex:
            self.began.append(name)
            self.on.add(name)
            self.together.add(frozenset(self.on))
            self.gpus[name] = gpus
        try:
            self._behave(name, self)
        finally:
            with self._mutex:
                self.on.discard(name)
                self.ended.append(name)
        return LaneRecord(name=name)

    def run(self, *lanes: PlannedLane, gpu_wait_s: float = 5.0) -> None:
        shop = SimpleNamespace(
            gpus=self.book,
            halt=self.halt,
            gpu_wait_s=gpu_wait_s,
            hurry=lambda *_: None,
            ended={},
            run=None,
            awaiting=set(),
            watcher=SimpleNamespace(note=lambda lane, text: self.notes.append((lane, text))),
        )
        run_lanes(lanes, cast("Workshop", shop), lambda record: None)


def short(name: str, stage: Stage) -> None:
    time.sleep(0.05)


def test_two_fours_fit_on_eight_and_a_third_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, short)
    stage.run(planned("a", 4), planned("b", 4), planned("c", 4))
    assert frozenset({"a", "b"}) in stage.together
    assert max(len(group) for group in stage.together) == 2
    assert stage.began[-1] == "c"


def test_a_smaller_lane_fills_what_a_wide_one_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, short)
    stage.run(planned("six", 6), planned("eight", 8), planned("two", 2))
    assert frozenset({"six", "two"}) in stage.together
    assert stage.began[-1] == "eight"


def test_lanes_without_gpus_run_one_at_a_time_beside_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, short)
    stage.run(planned("cpu1"), planned("cpu2"), planned("gpu", 8))
    assert frozenset({"cpu1", "cpu2"}) not in stage.together
    assert any({"gpu"} < group for group in stage.together)


def test_a_lane_whose_cores_another_has_takes_no_gpus_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "cores", lambda: {number: (number,) for number in range(8)})
    stage = Stage(monkeypatch, short)
    stage.run(planned("a", 2, cpus=6), planned("b", 2, cpus=6), planned("c", 2, cpus=2), planned("d", 2))
    assert stage.began == ["a", "c", "d", "b"]
    assert not any({"a", "b"} <= group for group in stage.together)


def test_a_lane_that_wants_more_cores_than_there_are_runs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "cores", lambda: {0: (0,)})
    stage = Stage(monkeypatch, short)
    stage.run(planned("a", 2, cpus=64), planned("b", 2, cpus=1))
    assert stage.together == {frozenset({"a"}), frozenset({"b"})}


def test_a_lane_waits_for_the_one_it_refers_to(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, short)
    stage.run(planned("judged", 1, needs=("reference",)), planned("reference", 1))
    assert stage.began == ["reference", "judged"]
    assert stage.together == {frozenset({"reference"}), frozenset({"judged"})}


def test_a_skipped_lane_takes_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, short)
    stage.run(planned("skipped", 0, skip="no such hardware"))
    assert stage.gpus == {"skipped": None}


def test_gpus_that_others_hold_are_named_after_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, short)
    with GpuBook(load_inventory(EIGHT), "somebody's run").lease(3, deadline_s=0):
        stage.run(planned("wide", 8), gpu_wait_s=0.2)
    reason = stage.gpus["wide"]
    assert isinstance(reason, Problem)
    assert reason.code == "GPU_BUSY"
    assert "somebody's run" in str(reason)
    ((lane, note),) = stage.notes  # once, and not only at the end
    assert lane == "wide"
    assert note.startswith("waiting for 8 GPU(s): ")
    assert note.count("somebody's run") == 3


def test_waiting_for_gpus_is_no_busy_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, short)
    asked: list[int] = []
    real = stage.book.try_lease

    def counted(count: int, **more: Any) -> Any:
        asked.append(count)
        return real(count, **more)

    monkeypatch.setattr(stage.book, "try_lease", counted)
    monkeypatch.setattr(parallel, "POLL_S", 0.1)
    with GpuBook(load_inventory(EIGHT), "somebody's run").lease(3, deadline_s=0):
        stage.run(planned("wide", 8), gpu_wait_s=0.5)
    assert len(asked) < 20


def test_a_quarantine_that_leaves_too_few_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, short)
    stage.book.quarantine(stage.book.inventory.gpus[0], "its memory did not come back")
    stage.run(planned("wide", 8), gpu_wait_s=60)
    assert isinstance(stage.gpus["wide"], Problem)
    assert "did not come back" in str(stage.gpus["wide"])
    assert stage.notes == []


def test_an_interrupt_in_one_lane_halts_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def behave(name: str, stage: Stage) -> None:
        if name == "bad":
            raise Interrupted("by SIGINT")
        while True:
            stage.halt.check()
            time.sleep(0.01)

    stage = Stage(monkeypatch, behave)
    with pytest.raises(Interrupted, match="SIGINT"):
        stage.run(planned("good", 4), planned("bad", 4), planned("never", 8))
    assert sorted(stage.ended) == ["bad", "good"]
    assert "never" not in stage.began


def test_a_lane_that_waits_for_its_server_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    freed = threading.Event()

    def behave(name: str, stage: Stage) -> None:
        if name == "bad":
            raise Interrupted("by SIGINT")
        assert freed.wait(20)
        raise Interrupted("its server was ended")

    stage = Stage(monkeypatch, behave)
    monkeypatch.setattr(parallel, "PATIENCE_S", 0.1)
    hurried: list[tuple[str, int]] = []

    def hurry(lane: str, number: int) -> None:
        hurried.append((lane, number))
        freed.set()

    shop = SimpleNamespace(gpus=stage.book, halt=stage.halt, gpu_wait_s=1.0, hurry=hurry)
    with pytest.raises(Interrupted):
        run_lanes([planned("stuck", 4), planned("bad", 4)], cast("Workshop", shop), lambda record: None)
    assert hurried[0][0] == "stuck"


@pytest.fixture(autouse=True)
def nothing_held(own_locks: None) -> Iterator[None]:
    yield
    book = GpuBook(load_inventory(EIGHT))
    with book.lease(8, deadline_s=0):
        pass
