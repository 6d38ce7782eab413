"""Every fault of the caches changes what it must, and a clean engine does none of it."""

from dataclasses import fields, replace

import pytest

from harness.simulator.core_faults import CoreFaults
from harness.simulator.types import Limits
from tests.simulator.core import Answer, Engine, prompt

LIMITS = Limits(
    max_total_token_num=9216,
    max_req_total_len=3072,
    page_size=16,
    hash_page=256,
    batch_max_tokens=1024,
    cpu_tokens=16384,
    cpu_page=256,
    mtp_step=2,
)
TARGET = prompt(2304)


class Story:
    """Cold, warm, then again after eviction from the GPU pool."""

    def __init__(self, faults: CoreFaults, limits: Limits = LIMITS) -> None:
        self.engine = Engine(limits, faults)
        self.cold, self.cold_seconds = self._ask()
        self.warm, self.warm_seconds = self._ask()
        for number in range(5):
            self.engine.ask(prompt(2304, f"evict {number}"), 1)
        self.reloaded, self.reload_seconds = self._ask()

    def _ask(self) -> tuple[Answer, float]:
        answer = self.engine.add(TARGET, 60)[1]
        return answer, self.engine.drain()

    def hits(self) -> list[tuple[int, int, int]]:
        """(gpu, cpu reported, cpu copied) of the three."""
        ends = [answer.done for answer in (self.cold, self.warm, self.reloaded)]
        return [(end.gpu_cached, end.cpu_cached, end.cpu_copied) for end in ends]


@pytest.fixture(scope="module")
def clean() -> Story:
    return Story(CoreFaults())


CLEAN_HITS = [(0, 0, 0), (2048, 0, 0), (0, 2048, 2048)]


def rate(answer: Answer) -> float:
    return answer.done.generated / answer.done.mtp_steps


def test_the_clean_story(clean: Story) -> None:
    assert clean.hits() == CLEAN_HITS
    assert clean.cold.ids == clean.warm.ids == clean.reloaded.ids
    assert clean.warm_seconds < clean.reload_seconds < 0.75 * clean.cold_seconds
    assert {idle[0] for idle in clean.engine.heard.idles} == {0}
    assert min(map(rate, (clean.cold, clean.warm, clean.reloaded))) > 1.7


def test_all_faults_are_off_by_default() -> None:
    assert not any(getattr(CoreFaults(), each.name) for each in fields(CoreFaults))


def test_cold_hits(clean: Story) -> None:
    story = Story(CoreFaults(cold_hits=True))
    assert story.hits()[0] == (2048, 0, 0)
    assert story.cold_seconds < clean.cold_seconds / 1.2
    assert story.cold.ids == clean.cold.ids


def test_short_hit(clean: Story) -> None:
    story = Story(CoreFaults(short_hit=True))
    assert story.hits()[:2] == [(0, 0, 0), (1792, 256, 256)], "the CPU tier fills the gap"
    alone = Story(CoreFaults(short_hit=True), replace(LIMITS, cpu_tokens=0))
    assert alone.hits() == [(0, 0, 0), (1792, 0, 0), (0, 0, 0)]
    assert alone.warm.ids == clean.warm.ids


def test_warm_differs(clean: Story) -> None:
    story = Story(CoreFaults(warm_differs=True))
    assert story.hits() == CLEAN_HITS
    assert story.cold.ids == clean.cold.ids == story.reloaded.ids
    assert story.warm.ids != clean.warm.ids


def test_cpu_never_read(clean: Story) -> None:
    story = Story(CoreFaults(cpu_never_read=True))
    assert story.hits() == [(0, 0, 0), (2048, 0, 0), (0, 0, 0)]
    assert story.reload_seconds == pytest.approx(clean.cold_seconds)


def test_cpu_logged_not_copied(clean: Story) -> None:
    story = Story(CoreFaults(cpu_logged_not_copied=True))
    assert story.hits() == [(0, 0, 0), (2048, 0, 0), (0, 2048, 0)]
    assert story.reload_seconds == pytest.approx(clean.cold_seconds)
    assert story.reloaded.ids == clean.reloaded.ids


def test_reload_corrupts(clean: Story) -> None:
    story = Story(CoreFaults(reload_corrupts=True))
    assert story.hits() == CLEAN_HITS
    assert story.warm.ids == clean.warm.ids
    assert story.reloaded.ids != clean.reloaded.ids


def test_accept_collapse_after_reload(clean: Story) -> None:
    story = Story(CoreFaults(accept_collapse_after_reload=True))
    assert story.hits() == CLEAN_HITS
    assert story.reloaded.ids == clean.reloaded.ids
    assert rate(story.warm) == rate(clean.warm)
    assert story.reloaded.done.mtp_accepted == 0


def test_pool_leak(clean: Story) -> None:
    story = Story(CoreFaults(pool_leak=True))
    assert {idle[0] for idle in story.engine.heard.idles} == {256}
    assert all(held + free == total for _, held, free, total in story.engine.heard.idles)
    assert story.warm.ids == clean.warm.ids


def test_cut() -> None:
    story = Story(CoreFaults(cut=True))
    assert (story.cold.done.reason, story.cold.done.generated) == ("length", 30)
    assert Engine(LIMITS, CoreFaults(cut=True)).ask(prompt(20), 1).done.generated == 1
