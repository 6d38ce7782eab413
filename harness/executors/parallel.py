"""Lanes side by side, as far as GPUs go. Every lane runs in a thread of its own; this one only deals out."""

import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack

from harness.errors import Problem
from harness.evidence.record import LaneRecord
from harness.executors.lane import run_lane
from harness.executors.planned import PlannedLane
from harness.executors.withheld import unless_pointless
from harness.executors.workshop import Workshop
from harness.host.cpus import cores
from harness.host.gpu import GpuLease

POLL_S = 0.2
PATIENCE_S = 3.0  # after a halt, for lanes to notice by themselves
TERM_S = 10.0  # then, for a server to end so that whoever waits for its answer waits no longer


def run_lanes(lanes: Sequence[PlannedLane], shop: Workshop, finish: Callable[[LaneRecord], None]) -> None:
    """Run all lanes, each as soon as its GPUs are free, in the given order; return when the last has ended.

    Lanes without GPUs run one at a time beside the others: they share the processor. `finish` is called in
    the lane's thread when it has ended, and judges it. A lane whose every check refers to one that delivered
    nothing is skipped. An interrupt, or a bug of ours in a lane, halts the others: all are
    released before it is raised here.
    """
    waiting, running = list(lanes), dict[Future[LaneRecord], PlannedLane]()
    with ThreadPoolExecutor(max_workers=max(1, len(lanes)), thread_name_prefix="lane") as pool:
        try:
            deadline = time.monotonic() + shop.gpu_wait_s
            while waiting or running:
                for planned, lease in _startable(waiting, running, shop, deadline):
                    waiting.remove(planned)
                    running[pool.submit(_one, planned, shop, lease, finish)] = planned
                if not running:
                    time.sleep(POLL_S)  # for GPUs that others hold
                done, _ = wait(running, timeout=POLL_S, return_when=FIRST_COMPLETED)
                for future in done:
                    del running[future]
                    record = future.result()
                    shop.ended[record.name] = record
                    waiting = [unless_pointless(planned, shop.ended, shop.run) for planned in waiting]
                    deadline = time.monotonic() + shop.gpu_wait_s  # GPUs came back: patience begins anew
        except BaseException as error:
            shop.halt.call(str(error) or type(error).__name__)
            _unwind(running, shop)
            raise


def _startable(
    waiting: Sequence[PlannedLane],
    running: dict[Future[LaneRecord], PlannedLane],
    shop: Workshop,
    deadline: float,
) -> list[tuple[PlannedLane, GpuLease | Problem | None]]:
    """The lanes that can start now, with the GPUs they got; or with the reason why they never will."""
    started: list[tuple[PlannedLane, GpuLease | Problem | None]] = []
    processor_free = all(planned.gpus for planned in running.values())
    unfinished = {planned.lane.name for planned in (*waiting, *running.values())}
    for planned in waiting:
        if planned.needs & unfinished:
            continue
        if not _has_cores(planned, [*running.values(), *(other for other, _ in started)]):
            continue
        if planned.skip:
            started.append((planned, None))
        elif not planned.gpus:
            if processor_free:
                started.append((planned, None))
                processor_free = False
        elif (
            lease := shop.gpus.try_lease(planned.gpus, suitable=planned.suits, link=planned.link)
        ) is not None:
            started.append((planned, lease))
        elif not any(other.gpus for other in running.values()) and not any(lease for _, lease in started):
            # nobody in this run will give any back: somebody else has them, or they are broken
            hopeless = not shop.gpus.peek(planned.gpus, suitable=planned.suits, link=planned.link)
            if hopeless or time.monotonic() > deadline:
                started.append((planned, _last_try(planned, shop)))
            else:
                _say_what_is_awaited(planned, shop)
    return started


def _has_cores(planned: PlannedLane, others: Sequence[PlannedLane]) -> bool:
    """Whether the lanes of this run leave it its cores: it would wait for them with its GPUs in hand."""
    held = sum(other.cpus for other in others)
    return not planned.cpus or not held or held + planned.cpus <= len(cores())


def _say_what_is_awaited(planned: PlannedLane, shop: Workshop) -> None:
    """Once for each lane."""
    name = planned.lane.name
    if name not in shop.awaiting:
        shop.awaiting.add(name)
        suitable = (gpu for gpu in shop.gpus.inventory.gpus if planned.suits(gpu))
        reasons = [f"{gpu}: {why}" for gpu in suitable if (why := shop.gpus.in_the_way(gpu))]
        shop.watcher.note(name, f"waiting for {planned.gpus} GPU(s): {'; '.join(reasons) or 'none is idle'}")


def _last_try(planned: PlannedLane, shop: Workshop) -> GpuLease | Problem:
    """The GPUs after all, or the error that names what is wrong with each of them."""
    try:
        return shop.gpus.lease(
            planned.gpus, deadline_s=0, stop=shop.halt.check, suitable=planned.suits, link=planned.link
        )
    except Problem as error:
        return error


def _one(
    planned: PlannedLane,
    shop: Workshop,
    lease: GpuLease | Problem | None,
    finish: Callable[[LaneRecord], None],
) -> LaneRecord:
    with ExitStack() as stack:
        if isinstance(lease, GpuLease):
            stack.enter_context(lease)
        record = run_lane(planned, shop, lease)
        finish(record)
    return record


def _unwind(running: dict[Future[LaneRecord], PlannedLane], shop: Workshop) -> None:
    """Wait for every lane's release. One that waits for its server's answer is freed by ending the server."""
    for number, patience in ((signal.SIGTERM, PATIENCE_S), (signal.SIGKILL, TERM_S)):
        wait(running, timeout=patience)
        for future, planned in running.items():
            if not future.done():
                shop.hurry(planned.lane.name, number)
    wait(running)
