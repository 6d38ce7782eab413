"""The two generation endpoints that every engine has in common."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.engines.answers import reading
from harness.engines.client import Client

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@dataclass(frozen=True, kw_only=True, slots=True)
class Said:
    """One answer. `text` of a chat is the answer with, before it, what the model thought, where that is told
    apart. `finish_reason` is the server's own word; token counts are None where it does not tell them."""

    text: str
    finish_reason: str | None
    prompt_tokens: int | None
    completion_tokens: int | None


def chat(client: Client, model: str, question: str, *, max_tokens: int) -> Said:
    """Greedy answer to one message of a user. Raises TargetError."""
    messages = [{"role": "user", "content": question}]
    body = {"model": model, "messages": messages, "max_tokens": max_tokens, "temperature": 0}
    answer = client.post_json(CHAT, body)
    with reading("an OpenAI-style server", client, CHAT, answer):
        message = answer["choices"][0]["message"]
        thought = message.get("reasoning_content") or message.get("reasoning") or ""
        return _said(answer, f"{thought}{message.get('content') or ''}")


def complete(client: Client, model: str, prompt: str, *, max_tokens: int, stop: Sequence[str] = ()) -> Said:
    """Greedy continuation of a text, up to one of the `stop` texts. Raises TargetError."""
    body: dict[str, Any] = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
    if stop:
        body["stop"] = list(stop)
    answer = client.post_json(COMPLETIONS, body)
    with reading("an OpenAI-style server", client, COMPLETIONS, answer):
        return _said(answer, str(answer["choices"][0]["text"] or ""))


def _said(answer: Any, text: str) -> Said:
    usage = answer.get("usage") or {}
    reason = answer["choices"][0].get("finish_reason")
    return Said(
        text=text,
        finish_reason=None if reason is None else str(reason),
        prompt_tokens=_count(usage.get("prompt_tokens")),
        completion_tokens=_count(usage.get("completion_tokens")),
    )


def _count(value: Any) -> int | None:
    """Raises ValueError for a number that counts nothing."""
    if not isinstance(value, int):
        return None
    if not 0 <= value < 2**31:
        raise ValueError("a count of tokens below 0, or too large")
    return value
