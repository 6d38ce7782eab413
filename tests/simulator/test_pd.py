"""Prefill/decode disaggregation without faults: what moves, and what is answered."""

import asyncio
import itertools
import re
from typing import Any

import pytest

from harness.engines.lightllm.facts import log_facts
from tests.simulator.launched import ids, inside
from tests.simulator.pd_trio import NODE, PLAIN, TOGETHER, Trio, done_lines, prompt, together

pytestmark = pytest.mark.process


def alone(text: str, tokens: int, *flags: str) -> Any:
    """The answer of a single server."""

    async def run() -> Any:
        async with inside(*TOGETHER, *NODE, *flags, settings={"speed": 0}) as server:
            same = {"max_new_tokens": tokens, "min_new_tokens": tokens, "return_details": True}
            return await server.post("/generate", {"inputs": text, "parameters": same})

    return asyncio.run(run())


@pytest.mark.parametrize("length", [1, 2, 129, 2304, 2305])
def test_cold_answers_are_those_of_a_single_server(length: int) -> None:
    async def work(trio: Trio) -> tuple[Any, Any]:
        return await trio.ask(prompt(length)), trio.transfers(16)

    answer, (sent, received) = together(work)
    expected = alone(prompt(length), 16)
    assert answer == expected
    assert answer["prompt_tokens"] == length
    if length == 1:  # nothing is behind the last token
        assert sent is received is None
        return
    assert sent is not None
    assert received is not None
    assert sent.ranges == received.ranges
    edges = [0, *range(512, length, 512), length]
    assert sent.ranges == tuple(itertools.pairwise(edges))
    assert (sent.state, received.state, sent.errors, received.errors) == (True, True, (), ())


def test_pieces_are_cut_by_the_transfer_page_too() -> None:
    async def work(trio: Trio) -> Any:
        await trio.ask(prompt(1000))
        return trio.transfers(16)

    sent, received = together(work, "--pd_kv_page_size", "200", model=PLAIN)
    assert sent.ranges == received.ranges
    assert sent.ranges == ((0, 200), (200, 400), (400, 512), (512, 712), (712, 912), (912, 1000))
    assert not sent.state


def test_speculation_goes_on_at_the_decode_node() -> None:
    flags = ("--mtp_mode", "eagle_with_att", "--mtp_step", "2")

    async def work(trio: Trio) -> Any:
        return await trio.ask(prompt(300), 64), trio.master.log

    answer, log = together(work, *flags)
    expected = alone(prompt(300), 64, *flags)
    assert ids(answer) == ids(expected)
    assert answer["tokens"][-1]["mtp_accepted_token_num"] == expected["tokens"][-1]["mtp_accepted_token_num"]
    found = re.search(r"mtp_avg_token_per_step:([\d.]+)", done_lines(log)[-1])
    assert found
    assert float(found[1]) > 1.5


def test_warm_moves_nothing_where_the_decode_node_holds_it() -> None:
    async def work(trio: Trio) -> Any:
        cold, warm = await trio.ask(prompt(300)), await trio.ask(prompt(300))
        return cold, warm, trio.transfers(32), trio.prefill.log

    cold, warm, moved, log = together(work, "--page_size", "1", model=PLAIN)
    assert ids(cold) == ids(warm)
    assert (cold["tokens"][0]["prompt_cache_len"], warm["tokens"][0]["prompt_cache_len"]) == (0, 299)
    assert moved == (None, None)
    assert "pd prefill node stop gen token for group_request_id 32" in log
    assert "pd prefill node stop gen token for group_request_id 16" not in log


def test_without_a_prefix_cache_everything_moves_again() -> None:
    async def work(trio: Trio) -> Any:
        answers = [await trio.ask(prompt(700)) for _ in range(2)]
        return answers, trio.transfers(32)

    answers, (sent, received) = together(work, "--disable_dynamic_prompt_cache")
    assert ids(answers[0]) == ids(answers[1])
    assert [answer["tokens"][0]["prompt_cache_len"] for answer in answers] == [0, 0]
    assert sent.ranges == received.ranges == ((0, 512), (512, 700))


def test_a_partial_hit_shortens_the_range() -> None:
    async def work(trio: Trio) -> Any:
        cold, warm = await trio.ask(prompt(2304)), await trio.ask(prompt(2304))
        return cold, warm, trio.transfers(32)

    cold, warm, (sent, received) = together(work)
    assert ids(cold) == ids(warm)
    assert warm["tokens"][0]["prompt_cache_len"] == 2176  # of the prefill node
    assert sent.ranges == received.ranges == ((2176, 2304),)


def test_the_harness_connects_the_logs() -> None:
    async def work(trio: Trio) -> Any:
        asked = {"inputs": prompt(600), "parameters": {"max_new_tokens": 4}}
        for name in ("one", "two"):
            await trio.master.post("/generate", asked, x_request_id=name)
        return trio.master.log

    log = together(work)
    facts = log_facts(enumerate(log.splitlines(), 1))
    assert {name: told.node_id for name, told in facts.requests.items()} == {"one": "16", "two": "32"}
    assert [facts.requests[name].cached.total for name in ("one", "two")] == [0, 512]
    assert all(told.first_token_s is not None for told in facts.requests.values())


def test_many_at_once_and_the_pool_is_whole_afterwards() -> None:
    async def work(trio: Trio) -> Any:
        texts = [prompt(400 + 37 * n, str(n)) for n in range(24)]
        answers = await asyncio.gather(*(trio.ask(text) for text in texts))
        again = [await trio.ask(text) for text in texts]
        return answers, again, trio.decode.log

    answers, again, log = together(work)
    assert [ids(answer) for answer in answers] == [ids(answer) for answer in again]
    assert len({str(ids(answer)) for answer in answers}) == 24
    assert log_facts(enumerate(log.splitlines(), 1)).pool_lost == 0


def test_streams_and_the_openai_endpoints() -> None:
    async def work(trio: Trio) -> Any:
        parameters = {"max_new_tokens": 16, "min_new_tokens": 16}
        whole = await trio.ask(prompt(200))
        events = await trio.master.events(
            "/generate_stream", {"inputs": prompt(200), "parameters": parameters}
        )
        chat = {"model": "glm53", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}
        answer = await trio.master.post("/v1/chat/completions", chat)
        asked = {"model": "glm53", "prompt": ["one", "two"], "temperature": 0, "max_tokens": 8}
        batch = await trio.master.post("/v1/completions", asked)
        return whole, events, answer, batch

    whole, events, answer, batch = together(work)
    assert [f'"id": {one}' in event for one, event in zip(ids(whole), events, strict=True)] == [True] * 16
    assert answer["usage"]["completion_tokens"] == 8
    assert len(batch["choices"]) == 2


@pytest.mark.parametrize("moment", ["recv WRITE done", "start_kv_index=3000, end_kv_index=3000, has_error"])
def test_a_client_that_hangs_up_leaves_nothing_behind(moment: str) -> None:
    """While KV is awaited, and while tokens come."""

    async def work(trio: Trio) -> Any:
        asking = asyncio.create_task(trio.ask(prompt(3000), 4000))
        await trio.until(lambda: moment in trio.decode.log)
        asking.cancel()
        await trio.until(lambda: "router release req id 16" in trio.prefill.log)
        await trio.ask(prompt(50))
        return trio.master.log, trio.decode.log

    master, node = together(work, settings={"speed": 0.5})
    assert "aborted group_request_id 8" in master
    assert ("router release req id 16" in node) == ("3000" in moment)
    assert "router release req id 32" in node
    assert log_facts(enumerate(node.splitlines(), 1)).pool_lost == 0


def test_nixl_tells_bytes_and_no_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTLLM_NIXL_CAPTURE_TELEMETRY", "1")

    async def work(trio: Trio) -> Any:
        await trio.ask(prompt(700))
        return trio.transfers(16), trio.prefill.log + trio.decode.log

    (sent, received), log = together(work, "--pd_trans_mode", "nixl")
    assert sent.ranges == received.ranges == ((0, 512), (512, 700))
    assert "NCCL" not in log
    assert [int(size) for size in re.findall(r"total_bytes: (\d+)", log)] == [2048, 752, 32]
