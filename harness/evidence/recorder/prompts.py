"""What one HTTP request asks a server to generate: its prompts, how many answers to each, and its settings.

Pure. A client may put several prompts into one request; every one of them is a prompt of its own here.
"""

import json
from dataclasses import dataclass
from enum import Enum
from typing import Any

from harness.evidence.digests import text_sha256


class Dialect(Enum):
    """Whose request and answer format a path speaks."""

    COMPLETIONS = "/v1/completions"  # OpenAI text completions, every engine
    CHAT = "/v1/chat/completions"  # OpenAI chat, every engine
    LLAMACPP = "/completion"  # llama.cpp's own
    GENERATE = "/generate"  # SGLang's and LightLLM's own


# One encoder each: `json.dumps` would build a new one on every call with options.
_compact = json.JSONEncoder(separators=(",", ":")).encode
_canonical = json.JSONEncoder(separators=(",", ":"), sort_keys=True, ensure_ascii=False).encode

_DIALECTS = {dialect.value: dialect for dialect in Dialect}

# Keys of a request that hold the prompts, by dialect; the first present one counts.
# How the output limit is called; the first that is there counts, as on the servers.
_LIMITS = ("max_completion_tokens", "max_tokens", "max_new_tokens", "n_predict")
_PROMPT_KEYS = {
    Dialect.COMPLETIONS: ("prompt",),
    Dialect.CHAT: ("messages",),
    Dialect.LLAMACPP: ("prompt",),
    Dialect.GENERATE: ("text", "input_ids", "inputs"),
}


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt. `sha256` is over its UTF-8 text, over the compact JSON of its token ids, or over the
    canonical JSON of its messages; `chars` is the length of that text. Both are None where a request was not
    understood."""

    sha256: str | None
    chars: int | None


@dataclass(frozen=True, slots=True)
class Ask:
    """What one HTTP request asks for. `settings` is a digest of everything in it but the prompts; `problem`
    says why it was not understood."""

    dialect: Dialect
    prompts: tuple[Prompt, ...]
    choices: int = 1  # answers wanted to each prompt
    max_tokens: int | None = None  # of each answer; None where the server's own limit holds
    settings: str = ""
    problem: str | None = None


def dialect_of(path: str) -> Dialect | None:
    """The dialect of a generation endpoint, or None for any other path."""
    return _DIALECTS.get(path.rstrip("/"))


def prompt_sha256(prompt: Any) -> str:
    """Digest of a prompt: text, a list of token ids, or the messages of a chat."""
    return text_sha256(_text_of(prompt))


def read_ask(dialect: Dialect, payload: Any) -> Ask:
    """What a parsed request body asks for; `payload` is None where the body was not JSON."""
    if payload is None:
        return _not_understood(dialect, "the request body is not JSON")
    if not isinstance(payload, dict):
        return _not_understood(dialect, "the request body is not a JSON object")
    key = next((key for key in _PROMPT_KEYS[dialect] if payload.get(key) is not None), None)
    if key is None:
        return _not_understood(dialect, f"the request has no {' or '.join(_PROMPT_KEYS[dialect])}")
    try:
        return _understood(dialect, payload, key)
    except RecursionError:
        return _not_understood(dialect, "the request is nested too deeply")


def _understood(dialect: Dialect, payload: dict[str, Any], key: str) -> Ask:
    value = payload[key]
    prompts = [value] if dialect is Dialect.CHAT else _split(value)
    settings = {name: setting for name, setting in payload.items() if name != key}
    return Ask(
        dialect=dialect,
        prompts=tuple(_prompt(prompt) for prompt in prompts),
        choices=_choices(payload),
        max_tokens=_max_tokens(payload),
        settings=text_sha256(_canonical(settings)),
    )


def _not_understood(dialect: Dialect, problem: str) -> Ask:
    return Ask(dialect=dialect, prompts=(Prompt(None, None),), problem=problem)


def _split(value: Any) -> list[Any]:
    """The prompts of a `prompt` field: a list that holds token ids is one prompt, also when llama.cpp's
    mixture of ids and text; any other list is a batch."""
    if not isinstance(value, list) or any(isinstance(item, int) for item in value):
        return [value]
    return value or [value]


def _prompt(prompt: Any) -> Prompt:
    text = _text_of(prompt)
    return Prompt(text_sha256(text), len(text))


def _text_of(prompt: Any) -> str:
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list) and all(isinstance(item, int) for item in prompt):
        return _compact(prompt)
    return _canonical(prompt)


def _max_tokens(payload: dict[str, Any]) -> int | None:
    parameters = payload.get("sampling_params") or payload.get("parameters")
    places = [payload, parameters if isinstance(parameters, dict) else {}]
    wanted = (place.get(name) for place in places for name in _LIMITS)
    return next((limit for limit in wanted if type(limit) is int and limit > 0), None)


def _choices(payload: dict[str, Any]) -> int:
    parameters = payload.get("sampling_params") or payload.get("parameters")
    wanted = payload.get("n")
    if wanted is None and isinstance(parameters, dict):
        wanted = parameters.get("n")
    return wanted if type(wanted) is int and wanted > 1 else 1
