"""How many requests run at once."""

from dataclasses import replace

import pytest

from harness.simulator.admission import OutputEstimate
from harness.simulator.types import Limits
from tests.simulator.core import SMALL, Engine, prompt


def test_the_estimate_moves_fast_and_then_slowly() -> None:
    estimate = OutputEstimate()
    assert estimate.tokens == 2048
    for _ in range(8):
        estimate.update(512)
    assert estimate.tokens == pytest.approx(630, abs=25)
    short = 0
    while estimate.tokens > 236:
        estimate.update(1)
        short += 1
    assert 20 <= short <= 30
    for _ in range(200):
        estimate.update(1)
    assert 64 <= estimate.tokens < 90


@pytest.mark.parametrize(
    ("estimate", "admitted"), [(2048, 5), (512, 5), (408, 5), (407, 6), (400, 6), (237, 7), (236, 8), (64, 8)]
)
def test_admission_follows_the_estimate(estimate: int, admitted: int) -> None:
    """257 + 512 tokens, eight times, in a pool of 4096."""
    engine = Engine(replace(SMALL, batch_max_tokens=4096))  # so that one pass may admit all
    engine.expect_outputs_of(estimate)
    for number in range(8):
        engine.add(prompt(257, str(number)), 512)
    engine.scheduler.step()
    assert len(engine.scheduler._running) == admitted


@pytest.mark.parametrize("careful", ["ignore_eos", "busy"])
def test_full_length_is_reserved_where_the_estimate_is_not_trusted(careful: str) -> None:
    ratio = 0.0 if careful == "busy" else 1.0
    limits = Limits(max_total_token_num=4096, max_req_total_len=3072, router_token_ratio=ratio)
    engine = Engine(limits)
    engine.expect_outputs_of(64)
    for number in range(8):
        engine.add(prompt(257, str(number)), 512, ignore_eos=careful == "ignore_eos")
    engine.scheduler.step()
    assert len(engine.scheduler._running) == 5


def test_no_more_run_than_may() -> None:
    limits = Limits(max_total_token_num=65536, max_req_total_len=8192, running_max_req_size=3)
    engine = Engine(limits)
    answers = engine.together([prompt(50, str(number)) for number in range(10)])
    assert all(answer.done.generated == 32 for answer in answers)
    assert engine.heard.of("released") == list(range(10))


def test_a_pass_admits_no_more_first_chunks_than_it_can_prefill() -> None:
    engine = Engine(SMALL)
    engine.expect_outputs_of(64)
    for number in range(8):
        engine.add(prompt(257, str(number)), 512)
    running = []
    for _ in range(3):
        engine.scheduler.step()
        running.append(len(engine.scheduler._running))
    assert running == [3, 6, 8]


def test_a_request_that_is_longer_than_expected_is_expected_to_go_on() -> None:
    """At 300 tokens it is expected to reach 330, and no longer to have ended already."""
    engine = Engine(Limits(max_total_token_num=1000, max_req_total_len=900, router_token_ratio=1.0))
    engine.expect_outputs_of(64)
    engine.add(prompt(500), 400)
    for _ in range(300):
        engine.scheduler.step()
    # It has 801 and expects 29 + 16 more, and so the newcomer's 131 make 1022; else it would be 964.
    engine.add(prompt(130, "late"), 64)
    engine.scheduler.step()
    assert len(engine.scheduler._running) == 1


def test_a_prompt_that_no_estimate_would_admit_runs_alone() -> None:
    """So many small chunks that the guess exceeds the pool, though the request fits."""
    engine = Engine(Limits(max_total_token_num=420, max_req_total_len=400, chunked_prefill_size=4))
    answers = engine.together([prompt(300, "a"), prompt(300, "b")], 20)
    assert [answer.done.generated for answer in answers] == [20, 20]
