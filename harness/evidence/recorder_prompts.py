"""What one HTTP request asks a server to generate: its prompts, how many answers to each, and its settings.

Pure. A client may put several prompts into one request; every one of them is a prompt of its own here.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Dialect(Enum):
    """Whose request and answer format a path speaks."""

    COMPLETIONS = "/v1/completions"  # OpenAI text completions, every engine
    CHAT = "/v1/chat/completions"  # OpenAI chat, every engine
    LLAMACPP = "/completion"  # llama.cpp's own
    GENERATE = "/generate"  # SGLang's and LightLLM's own


_DIALECTS = {dialect.value: dialect for dialect in Dialect}

# Keys of a request that hold the prompts, by dialect; the first present one counts.
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
    settings: str = ""
    problem: str | None = None


def dialect_of(path: str) -> Dialect | None:
    """The dialect of a generation endpoint, or None for any other path."""
    return _DIALECTS.get(path.rstrip("/"))


def prompt_sha256(prompt: Any) -> str:
    """Digest of a prompt: text, a list of token ids, or the messages of a chat."""
    return hashlib.sha256(_text_of(prompt).encode("utf-8", "surrogatepass")).hexdigest()


def read_ask(dialect: Dialect, payload: Any) -> Ask:
    """What a parsed request body asks for; `payload` is None where the body was not JSON."""
    if payload is None:
        return _not_understood(dialect, "the request body is not JSON")
    if not isinstance(payload, Mapping):
        return _not_understood(dialect, "the request body is not a JSON object")
    key = next((key for key in _PROMPT_KEYS[dialect] if payload.get(key) is not None), None)
    if key is None:
        return _not_understood(dialect, f"the request has no {' or '.join(_PROMPT_KEYS[dialect])}")
    value = payload[key]
    prompts = [value] if dialect is Dialect.CHAT else _split(value)
    settings = {name: setting for name, setting in payload.items() if name != key}
    return Ask(
        dialect=dialect,
        prompts=tuple(_prompt(prompt) for prompt in prompts),
        choices=_choices(payload),
        settings=hashlib.sha256(_canonical(settings).encode()).hexdigest(),
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
    return Prompt(prompt_sha256(prompt), len(_text_of(prompt)))


def _text_of(prompt: Any) -> str:
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list) and all(isinstance(item, int) for item in prompt):
        return json.dumps(prompt, separators=(",", ":"))
    return json.dumps(prompt, separators=(",", ":"), sort_keys=True, ensure_ascii=False)


def _choices(payload: Mapping[str, Any]) -> int:
    parameters = payload.get("sampling_params") or payload.get("parameters")
    wanted = payload.get("n")
    if wanted is None and isinstance(parameters, Mapping):
        wanted = parameters.get("n")
    return wanted if type(wanted) is int and wanted > 1 else 1


def _canonical(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)
