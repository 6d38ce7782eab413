"""Pause and recovery in a small pool."""

import asyncio
from dataclasses import replace

import pytest

from harness.simulator.answer import Answer as Spoken
from harness.simulator.answer import Distortion
from harness.simulator.core_faults import CoreFaults
from harness.simulator.faults import Planted
from harness.simulator.types import Limits
from tests.simulator.core import SMALL, TOKENIZER, Answer, Engine, prompt

SPECULATING = replace(SMALL, mtp_step=2)
PROMPTS = [prompt(257, f"stress {number}") for number in range(8)]


def stressed(faults: CoreFaults | None = None, limits: Limits = SPECULATING) -> tuple[Engine, list[Answer]]:
    """Eight requests of 257 + 512 tokens at once, with an estimate that admits them all."""
    engine = Engine(limits, faults)
    engine.expect_outputs_of(200)
    return engine, engine.together(PROMPTS, 512)


def serial() -> list[list[int]]:
    return [Engine(SPECULATING).ask(ids, 512).ids for ids in PROMPTS]


@pytest.mark.parametrize("mtp_step", [0, 1, 2])
def test_requests_pause_recover_and_end_whole(mtp_step: int) -> None:
    engine, answers = stressed(limits=replace(SPECULATING, mtp_step=mtp_step))
    heard = engine.heard
    assert heard.of("paused")
    assert sorted(heard.of("paused")) == sorted(heard.of("recovered"))
    for req_id in set(heard.of("paused")):
        mine = [event for event, number in heard.events if number == req_id]
        assert mine == ["paused", "recovered"] * (len(mine) // 2) + ["released"]
    assert [answer.done.generated for answer in answers] == [512] * 8
    assert [answer.ids for answer in answers] == serial()
    ((refed, held, free, total),) = heard.idles
    assert (refed, held + free) == (0, total)


def test_nothing_pauses_in_a_large_pool() -> None:
    engine, answers = stressed(limits=replace(SPECULATING, max_total_token_num=65536))
    assert engine.heard.of("paused") == []
    assert [answer.ids for answer in answers] == serial()


def test_nothing_pauses_where_the_estimate_admits_five() -> None:
    engine = Engine(SPECULATING)
    engine.together(PROMPTS, 512)
    assert engine.heard.of("paused") == []


def test_serial_references_and_short_requests_bring_the_estimate_down() -> None:
    engine = Engine(SPECULATING)
    references = [engine.ask(ids, 512) for ids in PROMPTS]
    for number in range(27):
        engine.ask(prompt(30, f"short {number}"), 8)
    answers = engine.together(PROMPTS, 512)
    assert engine.heard.of("paused")
    assert [answer.ids for answer in answers] == [answer.ids for answer in references]


def test_only_two_pause_in_a_pass_in_which_all_eight_run_short() -> None:
    """Eight requests of 512 tokens fill the pool, and all need the next page in the same pass."""
    limits = replace(SPECULATING, page_size=64, hash_page=64, batch_max_tokens=4096, mtp_step=0)
    engine = Engine(limits)
    engine.expect_outputs_of(200)
    for ids in PROMPTS:
        engine.add(ids, 512)
    while not engine.heard.of("paused"):
        engine.scheduler.step()
        assert engine.scheduler._passes < 1000
    assert engine.heard.of("paused") == [0, 1]
    assert engine.pool.available == 2 * 512


def test_recovery_is_tried_every_hundred_passes_and_nothing_new_starts_before() -> None:
    engine = Engine(SPECULATING)
    engine.expect_outputs_of(200)
    for ids in PROMPTS:
        engine.add(ids, 512)
    passes = 0
    late: Answer | None = None
    while engine.scheduler.busy:
        recovered = len(engine.heard.of("recovered"))
        engine.scheduler.step()
        passes += 1
        if len(engine.heard.of("recovered")) > recovered:
            assert passes % 100 == 0
        if engine.scheduler._paused:
            if late is None:
                late = engine.add(prompt(20, "late"), 5)[1]
            assert not late.tokens
    assert late is not None
    assert late.done.generated == 5
    assert engine.heard.statuses[0][2] >= 0
    assert max(status[2] for status in engine.heard.statuses) > 0


def test_two_that_just_fill_the_pool_do_not_pause_each_other_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Prefilled they leave 3 tokens, each next step needs 4, and paused both fit again at once."""
    engine = Engine(Limits(max_total_token_num=908, max_req_total_len=908, mtp_step=1))
    monkeypatch.setattr(engine.scheduler._admission, "fits", lambda *_: True)
    answers = engine.together([prompt(504, "a"), prompt(401, "b")], 264)
    assert engine.heard.of("paused")
    assert [answer.done.generated for answer in answers] == [264, 264]


def test_a_recovered_request_reports_the_hit_of_its_recovery() -> None:
    engine, answers = stressed()
    paused = set(engine.heard.of("paused"))
    hits = {req_id: answer.done.gpu_cached for req_id, answer in enumerate(answers)}
    assert all(hits[req_id] == 0 for req_id in hits if req_id not in paused)
    assert any(hits[req_id] > 0 for req_id in paused)


# Faults


def test_never_pauses() -> None:
    engine, answers = stressed(CoreFaults(never_pauses=True))
    assert engine.heard.of("paused") == []
    assert [answer.done.generated for answer in answers] == [512] * 8


def test_loses_paused() -> None:
    engine, answers = stressed(CoreFaults(loses_paused=True))
    paused = engine.heard.of("paused")
    assert paused
    assert engine.heard.of("recovered") == []
    for req_id, answer in enumerate(answers):
        assert (answer.done.reason == "abort") == (req_id in paused)
        assert (answer.done.generated < 512) == (req_id in paused)


def test_shortens_paused() -> None:
    engine, answers = stressed(CoreFaults(shortens_paused=True))
    paused = set(engine.heard.of("paused"))
    assert paused == set(engine.heard.of("recovered"))
    for req_id, answer in enumerate(answers):
        assert (answer.done.generated < 512) == (req_id in paused)


def test_resume_corrupts() -> None:
    engine, answers = stressed(CoreFaults(resume_corrupts=True))
    paused = set(engine.heard.of("paused"))
    assert paused
    for req_id, (answer, whole) in enumerate(zip(answers, serial(), strict=True)):
        assert answer.done.generated == 512
        assert (answer.ids != whole) == (req_id in paused)


def repeated(answer: Answer) -> list[int]:
    """Its ids with the fault `repeat-answers` as well."""
    distortion = Distortion(Planted((), {}), TOKENIZER)
    ended = distortion.apply(Spoken.of(answer.tokens, answer.done), ("repeat-answers",), 512)
    return [token.id for token in asyncio.run(ended).tokens]


def test_repeated_answers_hide_neither_what_was_shortened_nor_what_was_damaged() -> None:
    healthy = [repeated(Engine(SPECULATING).ask(ids, 512)) for ids in PROMPTS]
    assert all(ids == ids[:8] * 64 for ids in healthy)
    engine, answers = stressed(CoreFaults(shortens_paused=True))
    paused = set(engine.heard.of("paused"))
    assert paused
    assert {req_id for req_id, one in enumerate(answers) if len(repeated(one)) < 512} == paused
    engine, answers = stressed(CoreFaults(resume_corrupts=True))
    paused = set(engine.heard.of("paused"))
    spoken = [repeated(one) for one in answers]
    assert [len(ids) for ids in spoken] == [512] * 8
    assert {req_id for req_id, ids in enumerate(spoken) if ids != healthy[req_id]} == paused
