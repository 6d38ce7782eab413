"""Drafted tokens."""

from typing import Any

import pytest

from harness.simulator.speculation import Acceptance
from harness.simulator.types import Limits
from tests.simulator.core import Engine, prompt
from tests.simulator.launched import Inside, answered

LARGE = Limits(max_total_token_num=65536, max_req_total_len=8192, page_size=16, hash_page=512)


def test_without_drafts_every_step_gives_one_token() -> None:
    answer = Engine(LARGE).ask(prompt(100), 64)
    assert (answer.done.mtp_steps, answer.done.mtp_accepted) == (0, 0)


def speculating(mean: float | None = None) -> Engine:
    limits = Limits(max_total_token_num=65536, max_req_total_len=8192, mtp_step=2)
    return Engine(limits, accept_mean=mean)


@pytest.mark.parametrize(("mean", "expected"), [(None, 2.19), (1.0, 1.0), (1.5, 1.5), (3.0, 3.0)])
def test_drafts_are_accepted_at_the_set_rate(mean: float | None, expected: float) -> None:
    engine = speculating(mean)
    answers = engine.together([prompt(100, str(number)) for number in range(60)], 200)
    steps = sum(answer.done.mtp_steps for answer in answers)
    accepted = sum(answer.done.mtp_accepted for answer in answers)
    assert 1 + accepted / steps == pytest.approx(expected, rel=0.03)
    for answer in answers:
        done, last = answer.done, answer.tokens[-1]
        assert done.generated == 1 + done.mtp_steps + done.mtp_accepted
        assert (last.mtp_accepted, last.mtp_verified) == (done.mtp_accepted, 2 * done.mtp_steps)


def test_speculation_changes_speed_and_never_the_text() -> None:
    plain, fast = Engine(LARGE), speculating()
    one, two = plain.add(prompt(100), 200)[1], fast.add(prompt(100), 200)[1]
    slow_seconds, fast_seconds = plain.drain(), fast.drain()
    assert one.ids == two.ids
    assert fast_seconds < slow_seconds * 0.6


@pytest.mark.parametrize("max_new", range(1, 12))
def test_speculation_does_not_run_over_the_end(max_new: int) -> None:
    assert speculating(3.0).ask(prompt(100), max_new).done.generated == max_new


def test_an_impossible_rate_is_refused() -> None:
    for mean in (0.9, 3.1):
        with pytest.raises(ValueError, match="drafted"):
            Acceptance(2, mean)


def _told(settings: dict[str, Any], *flags: str) -> tuple[float, float]:
    """Tokens per step, and the seconds until the first token, of a server with these settings."""

    async def work(server: Inside) -> Any:
        same = {"max_new_tokens": 400, "min_new_tokens": 400, "ignore_eos": True, "return_details": True}
        answer = await server.post("/generate", {"inputs": "hello", "parameters": same})
        return answer["tokens"][-1], server.log

    token, log = answered(work, *flags, settings=settings)
    steps = token["mtp_verify_step_num"]
    cost = float(log.partition("first_token_cost:")[2].partition("ms")[0]) / 1000
    return (400 - 1) / steps if steps else 1.0, cost


def test_settings_reach_the_engine() -> None:
    flags = ("--mtp_mode", "eagle_with_att", "--mtp_step", "2")
    assert _told({"accept_mean": 1.3}, *flags)[0] == pytest.approx(1.3, abs=0.15)
    assert _told({"accept_mean": 2.9}, *flags)[0] == pytest.approx(2.9, abs=0.15)
    assert _told({"accept_mean": 2.9})[0] == 1.0  # another lane, which does not speculate
    slow = {"speed": 1, "costs": {"step": 0, "idle": 0, "prefill_token": 0.05, "decode_request": 0}}
    assert 0.25 < _told(slow)[1] < 2  # six tokens
