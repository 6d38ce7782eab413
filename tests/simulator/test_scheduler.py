"""Admission, chunked prefill, speculation and the two cache tiers."""

import pytest

from harness.simulator.scheduler import Scheduler, Speed
from harness.simulator.types import Limits, SimulatedEngine
from tests.simulator.core import SMALL, TOKENIZER, Engine, prompt

LARGE = Limits(max_total_token_num=65536, max_req_total_len=8192, page_size=16, hash_page=512)


def test_an_idle_engine_does_nothing() -> None:
    engine = Engine(LARGE)
    assert not engine.scheduler.busy
    assert engine.scheduler.step() == 0.0
    assert engine.scheduler.load() == (0.0, 0.0, 0.0)


def test_tokens_come_one_by_one_and_then_done() -> None:
    engine = Engine(LARGE)
    answer = engine.ask(prompt(100), 20)
    assert [token.index for token in answer.tokens] == list(range(1, 21))
    assert (answer.done.reason, answer.done.generated) == ("length", 20)
    assert answer.text == TOKENIZER.decode(answer.ids)
    assert engine.heard.events == [("released", 0)]


def test_a_natural_stop_ends_with_the_end_token() -> None:
    answer = Engine(LARGE).ask(prompt(100), 300, exactly=False)
    last = answer.tokens[-1]
    assert answer.done.reason == "stop"
    assert (last.id, last.special, last.text) == (TOKENIZER.eos_id, True, "")
    assert answer.done.generated == len(answer.tokens) <= 200


def test_ignore_eos_and_min_new_tokens_go_on() -> None:
    engine = Engine(LARGE)
    assert engine.ask(prompt(100), 300, exactly=False, ignore_eos=True).done.reason == "length"
    answer = engine.ask(prompt(100), 300)
    assert answer.done.generated == 300
    assert TOKENIZER.eos_id not in answer.ids[:-1]


def test_the_last_of_min_new_tokens_may_be_the_end_token() -> None:
    """The mask ends one token early, as the server's does: then the reason is `stop` at full length."""
    engine = Engine(LARGE)
    reasons = {engine.ask(prompt(60, str(n)), 210).done.reason for n in range(40)}
    assert reasons == {"stop", "length"}


@pytest.mark.parametrize("length", [1, 5])
def test_a_stop_sequence_ends_the_text(length: int) -> None:
    engine = Engine(LARGE)
    free = engine.ask(prompt(100), 60)
    stop = free.text[20 : 20 + length]
    answer = engine.ask(prompt(100), 60, exactly=False, stop=("no such text", stop, ""))
    assert answer.done.reason == "stop"
    assert answer.text == free.text[: free.text.index(stop) + length]


def test_a_seed_changes_the_text() -> None:
    engine = Engine(LARGE)
    assert engine.ask(prompt(100)).ids != engine.ask(prompt(100), seed=1).ids


@pytest.mark.parametrize("ids", [(), (-1,), (2**32,)])
def test_impossible_prompts_are_refused(ids: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="request 0"):
        Engine(LARGE).add(ids)


def test_limits_must_fit_each_other() -> None:
    with pytest.raises(ValueError, match="chunked_prefill_size"):
        Engine(Limits(max_total_token_num=100, max_req_total_len=99, batch_max_tokens=4))
    with pytest.raises(ValueError, match="multiple"):
        Engine(Limits(max_total_token_num=100, max_req_total_len=99, page_size=16, hash_page=24))


def test_a_long_prompt_is_prefilled_in_chunks() -> None:
    engine = Engine(SMALL)
    _, answer = engine.add(prompt(1000), 5)
    for expected in (257, 514, 771):
        engine.scheduler.step()
        assert engine.scheduler._running[0].computed == expected
        assert not answer.tokens
    engine.scheduler.step()
    assert len(answer.tokens) == 1


def test_a_pass_prefills_no_more_than_the_batch_may_hold() -> None:
    engine = Engine(SMALL)
    for number in range(8):
        engine.add(prompt(600, str(number)), 5)
    done = 0
    while engine.scheduler.busy:
        before = sum(each.computed for each in engine.scheduler._running)
        engine.scheduler.step()
        present = sum(each.computed for each in engine.scheduler._running)
        assert present - before <= 1024 + 8
        done += 1
    assert done > 5


def test_time_grows_with_work() -> None:
    engine = Engine(LARGE)
    short = engine.ask(prompt(100, "a"), 1)
    assert short.done.generated == 1
    speed = Speed()
    engine.add(prompt(100, "b"), 1)
    assert engine.scheduler.step() == pytest.approx(speed.step + 100 * speed.prefill_token)
    engine.add(prompt(100, "c"), 3)
    engine.scheduler.step()
    assert engine.scheduler.step() == pytest.approx(speed.step + speed.decode_request)


def test_what_else_is_in_the_batch_changes_nothing() -> None:
    prompts = [prompt(300 + number, str(number)) for number in range(12)]
    alone = [Engine(LARGE).ask(ids, 40).tokens for ids in prompts]
    engine = Engine(LARGE)
    assert [answer.tokens for answer in engine.together(prompts, 40)] == alone


def test_load() -> None:
    engine = Engine(SMALL)
    engine.add(prompt(256), 100)
    engine.add(prompt(256), 100)
    engine.scheduler.step()
    current, most, expected = engine.scheduler.load()
    assert current == 512 / 4096
    assert most == 712 / 4096
    assert current < expected < 1


def test_an_aborted_request_ends_wherever_it_is() -> None:
    engine = Engine(SMALL)
    requests = [engine.add(prompt(600, str(number)), 400) for number in range(6)]
    for _ in range(4):
        engine.scheduler.step()
    assert engine.scheduler._waiting
    for request, _ in requests:
        request.aborted = True
    engine.drain()
    assert [answer.done.reason for _, answer in requests] == ["abort"] * 6
    assert engine.pool.owned == engine.pool.tree.refed == 0
    assert len(engine.heard.idles) == 1


def test_it_is_the_protocol() -> None:
    engine: SimulatedEngine = Engine(LARGE).scheduler
    assert isinstance(engine, Scheduler)


def test_a_character_cut_off_by_the_end_is_not_swallowed() -> None:
    engine = Engine(LARGE)
    engine.scheduler.language._words = [TOKENIZER.encode("€", False)]
    answer = engine.ask(prompt(10), 5)
    assert [token.text for token in answer.tokens] == ["", "", "€", "", "\ufffd"]
