"""Packing lanes on GPUs."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.executors.schedule import Job, lower_bound, pack


def job(name: str, gpus: int, minutes: float, **more: frozenset[str]) -> Job:
    return Job(name=name, gpus=gpus, minutes=minutes, **more)


GLM = [
    job("bf16", 4, 45),
    job("fp8", 4, 45, before=frozenset({"bf16"})),
    job("bf16-mtp", 4, 35),
    job("fp8-mtp", 4, 35, before=frozenset({"bf16-mtp"})),
]


def test_two_at_a_time_on_eight_gpus() -> None:
    made = pack(GLM, 8)
    assert made.makespan == made.lower_bound == 80
    assert made.order == ("bf16", "fp8", "bf16-mtp", "fp8-mtp")


def test_one_after_the_other_on_four() -> None:
    assert pack(GLM, 4).makespan == 160


def test_a_baseline_starts_before_its_longer_candidate() -> None:
    made = pack([job("candidate", 1, 50, before=frozenset({"baseline"})), job("baseline", 1, 5)], 1)
    assert made.order == ("baseline", "candidate")


def test_a_lane_that_needs_another_waits_for_its_end() -> None:
    made = pack([job("pd", 4, 10, needs=frozenset({"normal"})), job("normal", 4, 20)], 8)
    assert [(slot.name, slot.start) for slot in made.slots] == [("normal", 0), ("pd", 20)]
    assert made.lower_bound == 30


def test_the_search_mends_what_longest_first_wastes() -> None:
    jobs = [job("a", 2, 3), job("b", 2, 3), job("c", 2, 2), job("d", 2, 2), job("e", 2, 2)]
    assert pack(jobs, 4).makespan == 6  # 3+3 beside 2+2+2; longest first alone gives 7


def test_a_job_that_never_fits_is_an_error() -> None:
    with pytest.raises(ValueError, match="can ever start"):
        pack([job("wide", 9, 1)], 8)


def test_a_circle_does_not_hang() -> None:
    circle = [job("a", 1, 1, before=frozenset({"b"})), job("b", 1, 1, before=frozenset({"a"}))]
    assert len(pack(circle, 1).slots) == 2


@settings(deadline=None)  # machines are noisy
@given(
    st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), st.integers(1, 60)), min_size=1, max_size=7),
)
def test_no_overlap_and_never_below_the_bound(shapes: list[tuple[int, int]]) -> None:
    jobs = [job(str(index), gpus, minutes) for index, (gpus, minutes) in enumerate(shapes)]
    made = pack(jobs, 8)
    assert made.makespan >= lower_bound(jobs, 8) - 1e-6
    wide = {one.name: one.gpus for one in jobs}
    for slot in made.slots:
        assert sum(wide[other.name] for other in made.slots if other.start <= slot.start < other.end) <= 8


def test_forty_lanes_are_packed_at_once() -> None:
    jobs = [job(str(index), 1 + index % 4, 5 + index % 7) for index in range(40)]
    made = pack(jobs, 8)
    assert made.makespan <= 1.2 * made.lower_bound
