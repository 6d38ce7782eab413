"""What a server answered to each prompt of one HTTP request.

Pure. Servers differ in shape and misbehave in all of them: choices out of order, missing or double, null
texts, errors inside a 200. Nothing here raises; what is wrong with an answer stands in its `error`.
"""

import json
from dataclasses import dataclass, replace
from typing import Any

from harness.evidence.recorder.prompts import Ask, Dialect

OPENAI = (Dialect.COMPLETIONS, Dialect.CHAT)
_FAILED_REASONS = ("error", "abort")
_NESTED_ERRORS = 4
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
    body = payload if isinstance(payload, dict) else {}
    usage = body.get("usage")
    choices, stray = _by_prompt(ask, _choices(ask, payload))
    answers = [_answer(ask, choices.get(number, []), streamed=streamed) for number in range(len(ask.prompts))]
    if stray and answers:
        first = answers[0]
        problem = first.error or f"{stray} choice(s) in the answer belong to no prompt"
        answers[0] = replace(first, error=problem)
    if body.get("error") and not choices:
        answers = [replace(answer, error=error_text(payload)) for answer in answers]
    if len(answers) == 1 and isinstance(usage, dict):
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
    for _ in range(_NESTED_ERRORS):
        if not isinstance(payload, dict):
            break
        inner = next((payload[key] for key in ("error", "message", "detail") if payload.get(key)), None)
        if inner is None:
            break
        payload = inner
    try:
        text = payload if isinstance(payload, str) else json.dumps(payload)
    except RecursionError:
        text = "an error nested too deeply to be read"
    return text.strip()[:300]


def _choices(ask: Ask, payload: Any) -> list[dict[str, Any]]:
    if ask.dialect in OPENAI:
        return objects(payload.get("choices")) if isinstance(payload, dict) else []
    items = objects(payload if isinstance(payload, list) else [payload])
    if len(items) == 1 and isinstance(items[0].get("generated_text"), list):  # LightLLM: n answers in one
        return [{**items[0], "generated_text": text} for text in items[0]["generated_text"]]
    return [item for item in items if native_text(item)[0] in item]


def _by_prompt(ask: Ask, choices: list[dict[str, Any]]) -> tuple[dict[int, list[dict[str, Any]]], int]:
    """The choices to each prompt, in order, and how many belong to none: out of range, double, or without a
    number where others have one. Without any number they stand in order (SGLang's, LightLLM's)."""
    wanted = len(ask.prompts) * ask.choices
    numbered = any("index" in choice for choice in choices)
    placed: dict[int, dict[str, Any]] = {}
    stray = 0
    for position, choice in enumerate(choices):
        place = index_of(choice) if numbered else position
        if place is None and len(choices) == wanted == 1:
            place = 0
        if place is None or place in placed or not 0 <= place < wanted:
            stray += 1
        else:
            placed[place] = choice
    grouped: dict[int, list[dict[str, Any]]] = {}
    for place in sorted(placed):
        grouped.setdefault(place // ask.choices, []).append(placed[place])
    return grouped, stray


def _answer(ask: Ask, got: list[dict[str, Any]], *, streamed: bool) -> Answer:
    if not got:
        return Answer(error="no choice for this prompt")
    choice = got[0]
    meta = choice.get("meta_info")
    native = {**choice, **meta} if isinstance(meta, dict) else choice
    reason = _finish_reason(native)
    text = choice_text(choice) if ask.dialect in OPENAI else native_text(choice)[1]
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


def _finish_reason(choice: dict[str, Any]) -> str | None:
    reason = choice.get("finish_reason")
    if isinstance(reason, dict):  # SGLang
        reason = reason.get("type")
    if isinstance(reason, list) and reason:  # LightLLM with several answers to one prompt
        reason = reason[0]
    if reason is None and "stop_type" in choice:  # llama.cpp
        stop_type = choice["stop_type"]
        reason = _STOP_TYPES.get(stop_type, stop_type) if isinstance(stop_type, str) else None
    return reason if isinstance(reason, str) else None


def choice_text(choice: dict[str, Any]) -> str | None:
    """The text of a choice in OpenAI's format: completion, chat message or piece of a stream."""
    for key in ("message", "delta"):
        if isinstance(choice.get(key), dict):
            choice = {"text": choice[key].get("content")}
    text = choice.get("text")
    return text if isinstance(text, str) else None


def native_text(item: dict[str, Any]) -> tuple[str, Any]:
    """The field that holds the text in llama.cpp's, LightLLM's or SGLang's own format, and its value."""
    return next(
        ((key, item[key]) for key in ("content", "generated_text", "text") if key in item), ("text", None)
    )


def objects(value: Any) -> list[dict[str, Any]]:
    """The JSON objects of a list; nothing where it is none."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def index_of(choice: dict[str, Any]) -> int | None:
    """The number that a choice says it has."""
    index = choice.get("index")
    return index if type(index) is int else None


def _count(value: Any) -> int | None:
    return value if type(value) is int else None


def _first_count(item: dict[str, Any], *keys: str) -> int | None:
    return next((_count(item[key]) for key in keys if key in item), None)
