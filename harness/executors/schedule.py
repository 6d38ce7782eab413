"""Which lane gets GPUs when: longest first, baselines before the candidates that need them.

Pure arithmetic over the expected durations. The same order decides at run time, where a lane starts as soon
as its GPUs are free: the plan is what would happen if every lane took exactly as long as it says.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, permutations

SEARCHED = 5040  # orders tried when longest-first leaves GPUs idle: all of seven lanes


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One lane: GPUs it holds, minutes it is expected to hold them, and lanes that must not start later
    (`before`) or must have ended (`needs`)."""

    name: str
    gpus: int
    minutes: float
    before: frozenset[str] = frozenset()
    needs: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Slot:
    """When a job runs, in minutes since the start."""

    name: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Schedule:
    """`slots` stand in the order of starting. `lower_bound` is what no order can beat, in minutes."""

    slots: tuple[Slot, ...]
    makespan: float
    lower_bound: float

    @property
    def order(self) -> tuple[str, ...]:
        return tuple(slot.name for slot in self.slots)


def pack(jobs: Sequence[Job], gpus: int) -> Schedule:
    """The best schedule found for a machine with so many GPUs; every job must fit on it by itself.

    Longest first, and if that is not yet as good as the lower bound, a bounded search over other orders.
    """
    bound = lower_bound(jobs, gpus)
    best = _laid(_longest_first(jobs), gpus)
    for order in islice(permutations(_longest_first(jobs)), SEARCHED):
        if _makespan(best) <= bound + 1e-9:
            break
        if _is_allowed(order):
            tried = _laid(order, gpus)
            if _makespan(tried) < _makespan(best) - 1e-9:
                best = tried
    return Schedule(tuple(best), _makespan(best), bound)


def lower_bound(jobs: Iterable[Job], gpus: int) -> float:
    """No schedule is shorter than the work divided by the GPUs, than any chain of jobs that need each other,
    or than the jobs that take more than half of the machine, one after the other."""
    by_name = {job.name: job for job in jobs}
    if not by_name:
        return 0.0
    work = sum(job.gpus * job.minutes for job in by_name.values()) / max(gpus, 1)
    wide = sum(job.minutes for job in by_name.values() if 2 * job.gpus > gpus)
    return max(work, wide, *(_chain(job, by_name) for job in by_name.values()))


def _chain(job: Job, by_name: dict[str, Job]) -> float:
    return job.minutes + max(
        (_chain(by_name[name], by_name) for name in job.needs if name in by_name), default=0
    )


def _longest_first(jobs: Sequence[Job]) -> list[Job]:
    """A baseline counts as long as its longest candidate, since that one cannot be judged without it."""
    weight = {job.name: job.minutes for job in jobs}
    for job in jobs:
        for name in (job.before | job.needs) & weight.keys():
            weight[name] = max(weight[name], job.minutes)
    followers = {name for job in jobs for name in job.before | job.needs}
    ranked = sorted(jobs, key=lambda job: (-weight[job.name], job.name not in followers))
    ordered: list[Job] = []
    while ranked:
        done = {job.name for job in ordered}
        known = {job.name for job in ranked}
        free = (job for job in ranked if not ((job.before | job.needs) & known) - done)
        chosen = next(free, ranked[0])  # a circle is told elsewhere; here it must only not hang
        ordered.append(chosen)
        ranked.remove(chosen)
    return ordered


def _is_allowed(order: Sequence[Job]) -> bool:
    place = {job.name: index for index, job in enumerate(order)}
    return all(
        place[name] < place[job.name] for job in order for name in job.before | job.needs if name in place
    )


def _laid(order: Sequence[Job], gpus: int) -> list[Slot]:
    """Whenever GPUs are free, the first job of the list that fits and whose needs have ended starts."""
    waiting, running, slots = list(order), list[tuple[float, str, int]](), list[Slot]()
    free, now, ended = gpus, 0.0, set[str]()
    known = {job.name for job in order}
    while waiting:
        fits = next((job for job in waiting if job.gpus <= free and not (job.needs & known) - ended), None)
        if fits is not None:
            waiting.remove(fits)
            free -= fits.gpus
            heapq.heappush(running, (now + fits.minutes, fits.name, fits.gpus))
            slots.append(Slot(fits.name, now, now + fits.minutes))
            continue
        if not running:
            raise ValueError(f"no job of {[job.name for job in waiting]} can ever start on {gpus} GPUs")
        now, name, back = heapq.heappop(running)
        free += back
        ended.add(name)
    return slots


def _makespan(slots: Iterable[Slot]) -> float:
    return max((slot.end for slot in slots), default=0.0)
