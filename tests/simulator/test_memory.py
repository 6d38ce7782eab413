"""Prefix hits on the GPU, and copies from the CPU tier."""

from dataclasses import replace

import pytest

from harness.simulator.types import Limits
from tests.simulator.core import Answer, Engine, prompt

LARGE = Limits(max_total_token_num=65536, max_req_total_len=8192, page_size=16, hash_page=512)
ROOMY = Limits(
    max_total_token_num=9216,
    max_req_total_len=3072,
    page_size=16,
    hash_page=256,
    batch_max_tokens=1024,
    cpu_tokens=16384,
    cpu_page=256,
)


@pytest.mark.parametrize(
    ("hash_page", "expected"),
    [(512, [2048] * 4), (128, [2176, 2304, 2304, 2304]), (16, [2288, 2304, 2304, 2304])],
)
def test_warm_hits_are_what_the_arithmetic_says(hash_page: int, expected: list[int]) -> None:
    limits = Limits(max_total_token_num=65536, max_req_total_len=8192, page_size=16, hash_page=hash_page)
    for length, hit in zip((2304, 2305, 2306, 2307), expected, strict=True):
        engine = Engine(limits)
        cold, warm, again = (engine.ask(prompt(length)) for _ in range(3))
        assert [each.done.gpu_cached for each in (cold, warm, again)] == [0, hit, hit]
        assert cold.ids == warm.ids == again.ids
        assert {token.prompt_cached for token in warm.tokens} == {hit}


def test_an_answer_continues_into_the_cache() -> None:
    """Prompt and output are kept in whole hash pages; the last token never is."""
    limits = Limits(max_total_token_num=65536, max_req_total_len=8192, page_size=16, hash_page=128)
    engine = Engine(limits)
    first = engine.ask(prompt(200), 57)
    follow_up = (*prompt(200), *first.ids, *prompt(40, "next"))
    assert engine.ask(follow_up).done.gpu_cached == 256
    assert engine.ask((*prompt(200), *Engine(limits).ask(prompt(200), 56).ids, 1)).done.gpu_cached == 256


def test_another_prompt_shares_only_its_common_pages() -> None:
    engine = Engine(LARGE)
    engine.ask(prompt(2304))
    ids = list(prompt(2304))
    ids[1700] += 1
    assert engine.ask(tuple(ids)).done.gpu_cached == 1536
    assert engine.ask(prompt(2304, "other")).done.gpu_cached == 0


def test_without_cache_a_request_is_cold() -> None:
    engine = Engine(LARGE)
    first = engine.ask(prompt(2304))
    second = engine.ask(prompt(2304), use_cache=False)
    assert second.done.gpu_cached == 0
    assert second.ids == first.ids


def test_a_hit_saves_time() -> None:
    engine = Engine(LARGE)
    engine.add(prompt(2304), 1)
    cold = engine.drain()
    engine.add(prompt(2304), 1)
    assert engine.drain() < cold / 2


def test_idle_is_told_at_the_last_release_and_adds_up() -> None:
    engine = Engine(LARGE)
    engine.together([prompt(1000, str(number)) for number in range(5)])
    ((refed, held, free, total),) = engine.heard.idles
    assert refed == 0
    assert held == 5 * 1024
    assert held + free == total == 65536


def evicted(engine: Engine, target: tuple[int, ...]) -> Answer:
    """The target's answer after others have taken its place in the GPU pool."""
    for number in range(5):
        engine.ask(prompt(2304, f"evict {number}"), 1)
    return engine.ask(target)


@pytest.mark.parametrize(("length", "hit"), [(2304, 2048), (2305, 2304), (2306, 2304), (2307, 2304)])
def test_an_evicted_prompt_comes_back_from_the_cpu_tier(length: int, hit: int) -> None:
    engine = Engine(ROOMY)
    target = prompt(length)
    cold, warm = engine.ask(target), engine.ask(target)
    reloaded = evicted(engine, target)
    assert (warm.done.gpu_cached, warm.done.cpu_cached) == (hit, 0)
    done = reloaded.done
    assert (done.gpu_cached, done.cpu_cached, done.cpu_copied) == (0, hit, hit)
    assert reloaded.tokens[0].prompt_cached == hit
    assert reloaded.ids == cold.ids == warm.ids
    assert engine.ask(target).done.gpu_cached == hit, "the copied pages are in the GPU's cache again"


def test_without_the_cpu_tier_it_does_not() -> None:
    limits = Limits(max_total_token_num=9216, max_req_total_len=3072, page_size=16, hash_page=256)
    engine = Engine(limits)
    engine.ask(prompt(2304))
    assert evicted(engine, prompt(2304)).done.cpu_cached == 0


def test_a_small_cpu_hit_is_reported_and_not_copied() -> None:
    """The trap: the copy is decided after the report."""
    limits = Limits(
        max_total_token_num=1024,
        max_req_total_len=1000,
        page_size=16,
        cpu_tokens=4096,
        cpu_page=64,
        hash_page=16,
    )
    engine = Engine(limits)
    target = prompt(120)
    engine.ask(target, 1)
    for number in range(5):
        engine.ask(prompt(500, f"evict {number}"), 1)
    done = engine.ask(target).done
    assert (done.gpu_cached, done.cpu_cached, done.cpu_copied) == (0, 64, 0)


def test_outputs_do_not_go_to_the_cpu_tier() -> None:
    engine = Engine(ROOMY)
    target = prompt(500)
    first = engine.ask(target, 400)
    longer = (*target, *first.ids, 1)
    assert evicted(engine, longer).done.cpu_cached == 256


def test_the_cpu_tier_forgets_what_is_beyond_its_capacity() -> None:
    limits = Limits(
        max_total_token_num=4096, max_req_total_len=3072, page_size=16, hash_page=256, cpu_tokens=4096
    )
    engine = Engine(limits)
    engine.ask(prompt(2304))
    assert evicted(engine, prompt(2304)).done.cpu_cached == 0


def test_a_prompt_that_was_aborted_halfway_does_not_go_to_the_cpu_tier() -> None:
    engine = Engine(ROOMY)
    request, _ = engine.add(prompt(2304), 5)
    engine.scheduler.step()
    request.aborted = True
    engine.drain()
    done = evicted(engine, prompt(2304)).done
    assert (done.gpu_cached, done.cpu_cached) == (0, 0)


def test_a_recovery_that_hits_nothing_reports_no_hit() -> None:
    engine = Engine(replace(LARGE, cpu_tokens=0))
    engine.ask(prompt(2304))
    engine.add(prompt(2304), 5)
    engine.scheduler.step()
    (running,) = engine.scheduler._running
    assert running.gpu_cached == 2048
    memory = engine.scheduler._memory
    memory.leave(running)
    assert memory.pool.tree.evict(65536) > 0
    memory.enter(running)
    assert (running.gpu_cached, running.computed, running.node) == (0, 0, None)
