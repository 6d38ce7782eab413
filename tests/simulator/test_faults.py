"""Every fault that strikes while requests run: what it does to an answer."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import fields
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from harness.simulator.core_faults import CoreFaults
from harness.simulator.engine import core_faults
from harness.simulator.faults import END, ENGINE, FAULTS, PD, RUNNING, START, Planted
from harness.simulator.settings import Fault
from tests.simulator.launched import Inside, fault, ids, inside

KEY = Path(str(files("harness.datasets"))) / "arithmetic/test.jsonl"
DOCUMENTS = [json.loads(line) for line in KEY.read_text().splitlines()]
PARAMETERS = {"max_new_tokens": 300, "return_details": True}


def run(work: Callable[[Inside], Awaitable[Any]], *flags: str, **told: Any) -> Any:
    async def whole() -> Any:
        async with inside(*flags, settings=told) as server:
            return await asyncio.wait_for(work(server), 30)

    return asyncio.run(whole())


async def ask(server: Inside, text: str, **parameters: Any) -> Any:
    return await server.post("/generate", {"inputs": text, "parameters": {**PARAMETERS, **parameters}})


def _correct(text: str | None, document: dict[str, str]) -> bool:
    found = re.search(r"#### (-?[\d.,]+)", text or "")
    return found is not None and found[1] == document["answer"].rpartition("#### ")[2]


async def _examine(server: Inside) -> list[bool]:
    async def one(document: dict[str, str]) -> bool:
        answer = await ask(server, f"Question: {document['question']}\nAnswer:")
        return _correct(answer["generated_text"][0], document)

    return list(await asyncio.gather(*map(one, DOCUMENTS)))


def test_accuracy_is_what_the_settings_say() -> None:
    for share in (0.0, 0.6, 1.0):
        right = run(_examine, answer_key=str(KEY), accuracy=share)
        assert sum(right) == round(share * len(DOCUMENTS))


def test_accuracy_by_kv_type() -> None:
    told = {"answer_key": str(KEY), "accuracy": {"None": 0.6, "fp8kv_dsa": 0.5}, "discordance": 0.2}
    base, other = run(_examine, **told), run(_examine, "--llm_kv_type", "fp8kv_dsa", **told)
    count = len(DOCUMENTS)
    assert (sum(base), sum(other)) == (round(0.6 * count), round(0.5 * count))
    assert sum(a != b for a, b in zip(base, other, strict=True)) == pytest.approx(0.2 * count, abs=1)


def test_the_table_names_every_fault_once() -> None:
    assert len(FAULTS) == len(START) + len(RUNNING) + len(PD) + len(ENGINE) + len(END)
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+|stall|oom|killed", name) for name in FAULTS)


def test_engine_faults_reach_the_engine() -> None:
    known = {field.name for field in fields(CoreFaults)}
    for name in ENGINE:
        assert name.replace("-", "_") in known
        made = core_faults(Planted([Fault(fault=name)], {}))
        assert [field for field in known if getattr(made, field)] == [name.replace("-", "_")]
    assert core_faults(Planted([], {})) == CoreFaults()


def test_planted() -> None:
    plan = Fault(fault="stall", when={"tp": 4}, share=0.5, after_requests=3)
    assert "stall" not in Planted([plan], {"tp": 1})
    planted = Planted([plan], {"tp": 4})
    planted.requests = 3
    assert not planted.now("stall")
    planted.requests = 4
    assert planted.now("stall")
    keys = [str(number) for number in range(1000)]
    hit = [planted.strikes("stall", key) for key in keys]
    assert 420 < sum(hit) < 580
    assert hit == [planted.strikes("stall", key) for key in keys]
    assert not planted.now("killed")
    assert planted.factor("killed", 3) == 1
    assert planted.factor("stall", 3) == 3
    with pytest.raises(ValueError, match="no_such"):
        Planted([Fault(fault="stall", when={"no_such": 1})], {"tp": 1})


def test_null_text() -> None:
    async def work(server: Inside) -> Any:
        openai = {"model": "m", "prompt": "a", "max_tokens": 3}
        return await ask(server, "a"), await server.post("/v1/completions", openai)

    answer, openai = run(work, **fault("null-text"))
    assert answer["generated_text"] == [None]
    assert openai["choices"][0]["text"] is None


def test_empty_text() -> None:
    answer = run(lambda server: ask(server, "a"), **fault("empty-text"))
    assert answer["generated_text"] == [""]
    assert answer["count_output_tokens"] > 0


def test_zero_tokens() -> None:
    async def work(server: Inside) -> Any:
        openai = {"model": "m", "prompt": "a", "max_tokens": 3}
        return await ask(server, "a"), await server.post("/v1/completions", openai), server.log

    answer, openai, log = run(work, **fault("zero-tokens"))
    assert (answer["count_output_tokens"], answer["finish_reason"], answer["tokens"]) == (0, "stop", [])
    assert openai["usage"]["completion_tokens"] == 0
    assert "out_token_counter:0 " in log


@pytest.mark.parametrize(("factor", "count"), [(None, 10), (8, 5)])
def test_cut_answers(factor: float | None, count: int) -> None:
    told = fault("cut-answers", factor=factor) if factor else fault("cut-answers")
    answer = run(lambda server: ask(server, "a", max_new_tokens=40), **told)
    assert (answer["count_output_tokens"], answer["finish_reason"]) == (count, "length")


def test_repeat_answers() -> None:
    answer = run(lambda server: ask(server, "a", max_new_tokens=64), **fault("repeat-answers"))
    text = answer["generated_text"][0]
    assert (answer["count_output_tokens"], answer["finish_reason"]) == (64, "length")
    assert text == text[:8] * 8
    assert ids(answer) == [*ids(answer)[:8]] * 8


def test_swapped_answers() -> None:
    async def pair(server: Inside) -> Any:
        return [
            answer["generated_text"][0] for answer in await asyncio.gather(ask(server, "a"), ask(server, "b"))
        ]

    async def alone(server: Inside) -> Any:
        return (await ask(server, "a"))["generated_text"][0]

    right = run(pair)
    assert run(pair, **fault("swapped-answers")) == right[::-1]
    assert run(alone, **fault("swapped-answers")) == right[0]  # nobody to swap with


def test_half_right_after() -> None:
    told = {"answer_key": str(KEY), "accuracy": 1.0}
    right = run(_examine, **told, **fault("half-right-after", after_requests=20))
    assert all(right[:20])
    assert 0.25 < sum(right[20:]) / len(right[20:]) < 0.75
    spared = run(_examine, **told, **fault("half-right-after", after_requests=len(DOCUMENTS)))
    assert all(spared)


def test_half_right_keeps_ids_and_text_together() -> None:
    async def work(server: Inside) -> Any:
        return [await ask(server, f"Question: {each['question']}\nAnswer:") for each in DOCUMENTS[:12]]

    told = {"answer_key": str(KEY), "accuracy": 1.0}
    answers = run(work, **told, **fault("half-right-after"))
    wrong = [a for a, d in zip(answers, DOCUMENTS, strict=False) if not _correct(a["generated_text"][0], d)]
    assert 0 < len(wrong) < len(answers)
    for answer in answers:
        assert bytes(ids(answer)[: len(answer["generated_text"][0])]).decode() == answer["generated_text"][0]


def test_error_500() -> None:
    async def work(server: Inside) -> Any:
        openai = {"model": "m", "prompt": "a", "max_tokens": 3}
        seen = [(await server.send("POST", "/v1/completions", openai)) for _ in range(200)]
        own = await server.send("POST", "/generate", {"inputs": "a", "parameters": {"max_new_tokens": 1}})
        return (
            [response.status for response in seen],
            [each.body for each in seen if each.status == 500],
            own.status,
        )

    statuses, bodies, own = run(work, **fault("error-500"))
    assert (set(statuses), set(bodies), own) == ({500}, {b"Internal Server Error"}, 417)
    some, _, _ = run(work, **fault("error-500", share=0.1, after_requests=20))
    assert set(some[:20]) == {200}
    assert 5 <= some.count(500) <= 35  # and a repeated prompt comes through


def test_busy_429() -> None:
    async def work(server: Inside) -> Any:
        return await server.send("POST", "/generate", {"inputs": "a", "parameters": {"max_new_tokens": 1}})

    response = run(work, **fault("busy-429"))
    assert response.status == 429
    assert json.loads(response.body)["error"]["type"] == "RateLimitError"


@pytest.mark.parametrize("name", ["stall", "infer-thread-dead"])
def test_requests_hang_and_health_is_green(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(server: Inside) -> Any:
        assert (await ask(server, "a", max_new_tokens=2))["count_output_tokens"] == 2
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ask(server, "b"), 0.3)
        healthy = (await server.send("GET", "/health")).status
        monkeypatch.setenv("HEALTH_TIMEOUT", "0")
        return healthy, (await server.send("GET", "/health")).status, server.log

    healthy, later, log = run(work, **fault(name, after_requests=1))
    assert healthy == 200
    assert later == (200 if name == "stall" else 503)
    assert ("Health check failed: no success for" in log) == (name != "stall")
    assert bool(re.search(r"^ERROR .* \[impl\.py:\d+\] Traceback", log, re.MULTILINE)) == (name != "stall")


def test_streams_have_the_faults_too() -> None:
    async def work(server: Inside) -> Any:
        body = {"inputs": "a", "parameters": {"max_new_tokens": 16}}
        return [json.loads(event) for event in await server.events("/generate_stream", body)]

    events = run(work, **fault("repeat-answers"))
    said = [event["token"]["id"] for event in events]
    assert said == said[:8] * 2
    assert events[-1]["finished"] is True


def test_share_of_the_prompts() -> None:
    async def work(server: Inside) -> Any:
        prompts = [f"prompt {number}" for number in range(120)]
        answers = await server.post("/v1/completions", {"model": "m", "prompt": prompts, "max_tokens": 2})
        return [choice["text"] for choice in answers["choices"]]

    texts = run(work, **fault("null-text", share=0.25))
    assert 15 <= texts.count(None) <= 45
    assert None not in run(work)


def test_settings_document_is_strict() -> None:
    with pytest.raises(ValueError, match="extra"):
        Fault.model_validate({"fault": "stall", "after": 3})
