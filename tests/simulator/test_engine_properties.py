"""Whatever comes: everything ends, and the pool adds up."""

from dataclasses import fields

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.simulator.core_faults import CoreFaults
from harness.simulator.types import Limits
from tests.simulator.core import Engine, prompt


@given(
    requests=st.lists(
        st.tuples(st.integers(1, 300), st.integers(1, 60), st.sampled_from("abc"), st.booleans()), max_size=14
    ),
    page=st.sampled_from([1, 4]),
    pages=st.sampled_from([1, 3]),
    mtp=st.integers(0, 2),
    cpu=st.sampled_from([0, 600]),
    aborted=st.integers(0, 20),
)
@settings(max_examples=120, deadline=None)
def test_everything_ends_and_the_pool_adds_up(
    requests: list[tuple[int, int, str, bool]], page: int, pages: int, mtp: int, cpu: int, aborted: int
) -> None:
    limits = Limits(
        max_total_token_num=420,
        max_req_total_len=400,
        page_size=page,
        hash_page=page * pages,
        running_max_req_size=6,
        batch_max_tokens=64,
        chunked_prefill_size=48,
        router_token_ratio=1.0,
        mtp_step=mtp,
        cpu_tokens=cpu,
        cpu_page=24,
    )
    engine = Engine(limits)
    engine.expect_outputs_of(8)
    sent = [engine.add(prompt(length, name), new, use_cache=use) for length, new, name, use in requests]
    if aborted < len(sent):
        engine.scheduler.step()
        sent[aborted][0].aborted = True
    engine.drain()
    for number, (request, answer) in enumerate(sent):
        done = answer.done
        assert len(answer.tokens) == done.generated
        if number != aborted:
            assert done.generated == request.max_new_tokens
            assert answer.ids == expected_output(request.prompt, request.max_new_tokens)
        assert done.gpu_cached % (page * pages) == 0
        assert done.gpu_cached + done.cpu_copied < len(request.prompt) + max(1, done.generated)
        assert done.cpu_copied in (0, done.cpu_cached)
    assert engine.pool.owned == engine.pool.tree.refed == 0
    assert sorted(engine.heard.of("paused")) == sorted(
        engine.heard.of("recovered") + ([aborted] if still_paused(engine, aborted) else [])
    )
    assert bool(sent) == bool(engine.heard.idles)


def still_paused(engine: Engine, req_id: int) -> bool:
    return engine.heard.of("paused").count(req_id) > engine.heard.of("recovered").count(req_id)


def expected_output(ids: tuple[int, ...], max_new: int) -> list[int]:
    limits = Limits(max_total_token_num=1000, max_req_total_len=900)
    answer = Engine(limits).ask(ids, max_new)
    return answer.ids


@given(
    fault=st.sampled_from([each.name for each in fields(CoreFaults)]),
    requests=st.lists(
        st.tuples(st.integers(1, 300), st.integers(1, 60), st.sampled_from("abc")), max_size=14
    ),
)
@settings(max_examples=150, deadline=None)
def test_a_fault_breaks_nothing_else(fault: str, requests: list[tuple[int, int, str]]) -> None:
    limits = Limits(
        max_total_token_num=420,
        max_req_total_len=400,
        page_size=4,
        hash_page=12,
        running_max_req_size=6,
        batch_max_tokens=64,
        chunked_prefill_size=48,
        router_token_ratio=1.0,
        mtp_step=2,
        cpu_tokens=600,
        cpu_page=24,
    )
    engine = Engine(limits, CoreFaults(**{fault: True}))
    engine.expect_outputs_of(8)
    sent = [engine.add(prompt(length, name), new) for length, new, name in requests]
    engine.drain()
    assert all(len(answer.tokens) == answer.done.generated for _, answer in sent)
    assert engine.pool.owned == 0
    if fault != "pool_leak":
        assert engine.pool.tree.refed == 0
