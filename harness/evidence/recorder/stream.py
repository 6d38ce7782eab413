"""A stream of server-sent events, read back as the one answer that it adds up to.

Pure; raises nothing. Engines differ: most send what is new in each event, SGLang the whole text so far.
"""

import json
from collections.abc import Sequence
from typing import Any

from harness.evidence.recorder.answers import OPENAI, choice_text, index_of, native_text, objects
from harness.evidence.recorder.prompts import Ask


def read_events(stream: bytes) -> list[tuple[int, Any]]:
    """The JSON events of a stream, each with the offset in bytes where it ends.

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
    """The events of a stream as the answer that the same request would have got unstreamed."""
    good: list[dict[str, Any]] = []
    for event in events:
        if not isinstance(event, dict):
            return {"error": f"an event of the stream is not a JSON object: {str(event)[:200]}"}
        if event.get("error"):
            return {"error": event["error"]}
        good.append(event)
    return _merge_openai(good) if ask.dialect in OPENAI else _merge_native(good)


def has_text(ask: Ask, event: Any) -> bool:
    """Whether an event carries generated text: the first such is the first token."""
    if not isinstance(event, dict):
        return False
    if ask.dialect in OPENAI:
        return any(choice_text(choice) for choice in objects(event.get("choices")))
    return bool(native_text(event)[1])


def _merge_openai(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    pieces: dict[int, list[str]] = {}
    reasons: dict[int, Any] = {}
    usage = None
    for event in events:
        usage = event.get("usage") or usage
        for choice in objects(event.get("choices")):
            number = index_of(choice) or 0
            text = choice_text(choice)
            pieces.setdefault(number, []).extend([] if text is None else [text])
            reasons[number] = choice.get("finish_reason") or reasons.get(number)
    choices = [
        {"index": number, "text": "".join(texts) if texts else None, "finish_reason": reasons[number]}
        for number, texts in pieces.items()
    ]
    return {"choices": choices, "usage": usage}


def _merge_native(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    texts: dict[int, _Text] = {}
    fields: dict[int, dict[str, Any]] = {}
    for event in events:
        number = index_of(event) or 0
        key, text = native_text(event)
        if isinstance(text, str):
            texts.setdefault(number, _Text()).add(text, may_repeat=key == "text")
        fields.setdefault(number, {}).update(event)
    return [
        {**merged, "content": "".join(texts[number].pieces) if number in texts else None}
        for number, merged in fields.items()
    ]


class _Text:
    """A text that grows by pieces, or is repeated whole in each event, in time linear in what is sent."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self._length = 0

    def add(self, text: str, *, may_repeat: bool) -> None:
        if may_repeat and len(text) >= self._length and text.startswith("".join(self.pieces)):
            self.pieces.clear()
            self._length = 0
        self.pieces.append(text)
        self._length += len(text)


def _json_or_text(data: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return data
