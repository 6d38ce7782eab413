"""What a server answered to each prompt of one HTTP request, out of its JSON or its event stream.

Pure. Servers differ in shape and misbehave in all of them: choices out of order, missing or double, null
texts, errors inside a 200. Nothing here raises; what is wrong with an answer stands in its `error`.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.evidence.recorder_prompts import Ask, Dialect

_OPENAI = (Dialect.COMPLETIONS, Dialect.CHAT)
_FAILED_REASONS = ("error", "abort")
_STOP_TYPES = {"limit": "length", "eos": "stop", "word": "stop", "none": None}  # llama.cpp's words


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one prompt; of several choices the first, `choices` counts them. `error` is None for a
    sound one. A null text is None."""

    choices: int = 0
    text: str | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    error: str | None = None


def read_answers(ask: Ask, payload: Any, *, streamed: bool = False) -> tuple[list[Answer], Any]:
    """One answer for each prompt of `ask`, and the server's `usage` as it stands there.

    A batch's usage belongs to the whole or to its first prompt, depending on the server, so it gives token
    counts only where there is one prompt. A stream must have said why it ended.
    """
    body = payload if isinstance(payload, Mapping) else {}
    usage = body.get("usage")
    choices, stray = _by_index(_choices(ask, payload), len(ask.prompts) * ask.choices)
    answers = [_answer(ask, choices, number, streamed) for number in range(len(ask.prompts))]
    if stray and answers:
        first = answers[0]
        problem = first.error or f"{stray} choice(s) in the answer belong to no prompt"
        answers[0] = replace(first, error=problem)
    if body.get("error") and not choices:
        answers = [replace(answer, error=error_text(payload)) for answer in answers]
    if len(answers) == 1 and isinstance(usage, Mapping):
        answers = [
            replace(
                answers[0],
                prompt_tokens=_count(usage.get("prompt_tokens")),
                completion_tokens=_count(usage.get("completion_tokens")),
            )
        ]
    return answers, usage


def error_text(payload: Any) -> str:
    """The message inside an error answer, short, in whatever shape it comes."""
    if isinstance(payload, Mapping):
        for key in ("error", "message", "detail"):
            if payload.get(key):
                return error_text(payload[key])
    text = payload if isinstance(payload, str) else json.dumps(payload)
    return text.strip()[:300]


def read_events(stream: bytes) -> list[tuple[int, Any]]:
    """The JSON events of a server-sent-event stream, each with the offset in bytes where it ends.

    `[DONE]` and comments are left out; a data line that is not JSON is returned as its text.
    """
    events: list[tuple[int, Any]] = []
    position = 0
    for line in stream.splitlines(keepends=True):
        position += len(line)
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip().decode("utf-8", "replace")
        if data and data != "[DONE]":
            events.append((position, _json_or_text(data)))
    return events


def merge_events(ask: Ask, events: Sequence[Any]) -> Any:
    """The events of a stream as the one answer that the same request would have got unstreamed."""
    failed = next((event for event in events if isinstance(event, Mapping) and event.get("error")), None)
    broken = next((event for event in events if not isinstance(event, Mapping)), None)
    if failed is not None:
        return {"error": failed["error"]}
    if broken is not None:
        return {"error": f"an event of the stream is not a JSON object: {str(broken)[:200]}"}
    if ask.dialect in _OPENAI:
        return _merge_openai(events)
    merged: dict[int, dict[str, Any]] = defaultdict(dict)
    for event in events:
        key = _index(event) or 0
        seen = merged[key]
        field, text = _native_text(event)
        before = seen.get(field) or ""
        # SGLang repeats the whole text in every event, the others send what is new.
        whole = field == "text" and isinstance(text, str) and text.startswith(before)
        joined = text if whole or not isinstance(text, str) else before + text
        merged[key] = {**seen, **event, field: joined if joined is not None else seen.get(field)}
    return [merged[key] for key in sorted(merged)]


def has_text(ask: Ask, event: Any) -> bool:
    """Whether a stream's event carries generated text: the first such is the first token."""
    if not isinstance(event, Mapping):
        return False
    if ask.dialect in _OPENAI:
        return any(_choice_text(choice) for choice in _mappings(event.get("choices")))
    return bool(_native_text(event)[1])


def _merge_openai(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    choices: dict[int, dict[str, Any]] = {}
    usage = None
    for event in events:
        usage = event.get("usage") or usage
        for choice in _mappings(event.get("choices")):
            number = _index(choice) or 0
            merged = choices.setdefault(number, {"index": number, "text": None, "finish_reason": None})
            text = _choice_text(choice)
            if text is not None:
                merged["text"] = (merged["text"] or "") + text
            merged["finish_reason"] = choice.get("finish_reason") or merged["finish_reason"]
    return {"choices": list(choices.values()), "usage": usage}


def _choices(ask: Ask, payload: Any) -> list[Mapping[str, Any]]:
    if ask.dialect in _OPENAI:
        return _mappings(payload.get("choices")) if isinstance(payload, Mapping) else []
    items = _mappings(payload if isinstance(payload, list) else [payload])
    if len(items) == 1 and isinstance(items[0].get("generated_text"), list):  # LightLLM: n answers in one
        return [{**items[0], "generated_text": text} for text in items[0]["generated_text"]]
    return [item for item in items if _native_text(item)[0] in item]


def _by_index(choices: list[Mapping[str, Any]], wanted: int) -> tuple[dict[int, Mapping[str, Any]], int]:
    """Choices by their place, and how many have none: out of range, double, or without a number although
    there are several. Answers in order of arrival (SGLang's, LightLLM's) carry no number at all."""
    numbered = any("index" in choice for choice in choices)
    placed: dict[int, Mapping[str, Any]] = {}
    stray = 0
    for position, choice in enumerate(choices):
        place = _index(choice) if numbered else position
        if place is None and len(choices) == wanted == 1:
            place = 0
        if place is None or place in placed or not 0 <= place < wanted:
            stray += 1
        else:
            placed[place] = choice
    return placed, stray


def _answer(ask: Ask, choices: Mapping[int, Mapping[str, Any]], number: int, streamed: bool) -> Answer:
    places = range(number * ask.choices, (number + 1) * ask.choices)
    got = [choices[place] for place in places if place in choices]
    if not got:
        return Answer(error="no choice for this prompt")
    choice = got[0]
    meta = choice.get("meta_info")
    native = {**choice, **meta} if isinstance(meta, Mapping) else choice
    reason = _finish_reason(native)
    text = _choice_text(choice) if ask.dialect in _OPENAI else _native_text(choice)[1]
    problem = None
    if reason in _FAILED_REASONS:
        problem = f"finish reason {reason}"
    elif len(got) < ask.choices:
        problem = f"{ask.choices - len(got)} of {ask.choices} choices for this prompt are missing"
    elif streamed and reason is None:
        problem = "the stream ended without a finish reason"
    return Answer(
        choices=len(got),
        text=text if isinstance(text, str) else None,
        finish_reason=reason,
        prompt_tokens=_first_count(native, "prompt_tokens", "tokens_evaluated"),
        completion_tokens=_first_count(
            native, "completion_tokens", "tokens_predicted", "count_output_tokens"
        ),
        error=problem,
    )


def _finish_reason(choice: Mapping[str, Any]) -> str | None:
    reason = choice.get("finish_reason")
    if isinstance(reason, Mapping):  # SGLang
        reason = reason.get("type")
    if isinstance(reason, list) and reason:  # LightLLM with several answers to one prompt
        reason = reason[0]
    if reason is None and "stop_type" in choice:  # llama.cpp
        stop_type = choice["stop_type"]
        reason = _STOP_TYPES.get(stop_type, stop_type) if isinstance(stop_type, str) else None
    return reason if isinstance(reason, str) else None


def _choice_text(choice: Mapping[str, Any]) -> str | None:
    for key in ("message", "delta"):
        if isinstance(choice.get(key), Mapping):
            choice = {"text": choice[key].get("content")}
    text = choice.get("text")
    return text if isinstance(text, str) else None


def _native_text(item: Mapping[str, Any]) -> tuple[str, Any]:
    """The field that holds the text in llama.cpp's, LightLLM's or SGLang's own format, and its value."""
    return next(
        ((key, item[key]) for key in ("content", "generated_text", "text") if key in item), ("text", None)
    )


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _index(choice: Mapping[str, Any]) -> int | None:
    index = choice.get("index")
    return index if type(index) is int else None


def _count(value: Any) -> int | None:
    return value if type(value) is int else None


def _first_count(item: Mapping[str, Any], *keys: str) -> int | None:
    return next((_count(item[key]) for key in keys if key in item), None)


def _json_or_text(data: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return data
