"""The shapes of llama.cpp's answers to a generation: its own, OpenAI's completions and chat, and streams."""

import codecs
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.servers.stub_http import Response, json_response
from tests.servers.stub_model import Generated, decode

SAMPLING: dict[str, Any] = {
    "seed": 4294967295,
    "temperature": 0.800000011920929,
    "dynatemp_range": 0.0,
    "dynatemp_exponent": 1.0,
    "top_k": 40,
    "top_p": 0.949999988079071,
    "min_p": 0.05000000074505806,
    "top_n_sigma": -1.0,
    "xtc_probability": 0.0,
    "xtc_threshold": 0.10000000149011612,
    "typical_p": 1.0,
    "repeat_last_n": 64,
    "repeat_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "dry_multiplier": 0.0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": 64,
    "mirostat": 0,
    "mirostat_tau": 5.0,
    "mirostat_eta": 0.10000000149011612,
    "adaptive_target": -1.0,
    "adaptive_decay": 0.8999999761581421,
    "max_tokens": -1,
    "n_predict": -1,
    "n_keep": 0,
    "n_discard": 0,
    "ignore_eos": False,
    "stream": False,
    "n_probs": 0,
    "min_keep": 0,
    "chat_format": "Content-only",
    "reasoning_format": "none",
    "reasoning_in_content": False,
    "generation_prompt": "",
    "samplers": ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"],
    "speculative.types": "none",
    "timings_per_token": False,
    "post_sampling_probs": False,
    "backend_sampling": False,
    "lora": [],
}
REQUEST_ONLY: dict[str, Any] = {
    "dry_sequence_breakers": ["\n", ":", '"', "*"],
    "stop": [],
    "logit_bias": [],
    "grammar": "",
    "grammar_lazy": False,
    "grammar_triggers": [],
    "preserved_tokens": [],
}
LOGPROB = -0.125

# A generation with its place among the answers of the request; a dropped one is not in the list.
Placed = Sequence[tuple[int, Generated]]


def native(model: str, settings: Mapping[str, Any], results: Placed) -> Response:
    """POST /completion: an object, or a list of them for a list of prompts."""
    items = [_native_item(model, settings, index, result) for index, result in results]
    if settings.get("stream"):
        return _stream(_native_events(settings, results, items), done=False)
    batch = isinstance(settings["prompt"], list) and not any(isinstance(x, int) for x in settings["prompt"])
    return json_response(items if batch or not items else items[0])


def completions(model: str, settings: Mapping[str, Any], results: Placed) -> Response:
    """POST /v1/completions. As in llama.cpp, a batch's usage and timings are those of its first prompt."""
    wants_logprobs = settings.get("logprobs") is not None
    choices = [
        {
            "text": result.text,
            "index": index,
            "logprobs": {"content": _logprobs(result, 1)} if wants_logprobs else None,
            "finish_reason": result.finish_reason,
        }
        for index, result in results
    ]
    envelope = _envelope(model, "text_completion")
    if settings.get("stream"):
        pieces = (
            {"text": piece, "index": index, "logprobs": None, "finish_reason": None}
            for index, result in results
            for piece in _pieces(result)
        )
        ends = [{**choice, "text": ""} for choice in choices]
        return _stream(_openai_events(envelope, pieces, ends, results), done=True)
    return json_response({"choices": choices, **envelope, **_closing(results)})


def chat(model: str, settings: Mapping[str, Any], results: Placed) -> Response:
    """POST /v1/chat/completions."""
    if settings.get("stream"):
        envelope = _envelope(model, "chat.completion.chunk")
        first = [
            {"finish_reason": None, "index": index, "delta": {"role": "assistant", "content": None}}
            for index, _ in results
        ]
        pieces = (
            {"finish_reason": None, "index": index, "delta": {"content": piece}}
            for index, result in results
            for piece in _pieces(result)
        )
        ends = [
            {"finish_reason": result.finish_reason, "index": index, "delta": {}} for index, result in results
        ]
        return _stream(_openai_events(envelope, [*first, *pieces], ends, results), done=True)
    choices = [
        {
            "finish_reason": result.finish_reason,
            "index": index,
            "message": {"role": "assistant", "content": result.text},
        }
        for index, result in results
    ]
    return json_response({"choices": choices, **_envelope(model, "chat.completion"), **_closing(results)})


def _native_item(model: str, settings: Mapping[str, Any], index: int, result: Generated) -> dict[str, Any]:
    text = result.text
    defaults = {**SAMPLING, **REQUEST_ONLY}
    item: dict[str, Any] = {
        "index": index,
        "content": text,
        "tokens": result.ids if settings.get("return_tokens") else [],
        "id_slot": 0,
        "stop": True,
        "model": model,
        "tokens_predicted": len(result.ids),
        "tokens_evaluated": len(result.prompt_ids),
        "generation_settings": {**defaults, **{key: settings[key] for key in defaults if key in settings}},
        "prompt": decode(result.prompt_ids).decode("utf-8", "replace"),
        "has_new_line": "\n" in (text or ""),
        "truncated": False,
        "stop_type": result.stop_type,
        "stopping_word": result.stopping_word,
        "tokens_cached": len(result.prompt_ids) + len(result.ids) - 1,
        "timings": _timings(result),
    }
    if settings.get("n_probs"):
        item["completion_probabilities"] = _logprobs(result, int(settings["n_probs"]))
    return item


def _native_events(
    settings: Mapping[str, Any], results: Placed, items: Sequence[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    for (index, result), item in zip(results, items, strict=True):
        for number, piece in enumerate(_pieces(result), start=1):
            yield {
                "index": index,
                "content": piece,
                "tokens": result.ids[number - 1 : number],
                "stop": False,
                "id_slot": -1,
                "tokens_predicted": number,
                "tokens_evaluated": len(result.prompt_ids),
            }
        last = {**item["generation_settings"], "stream": True}
        yield {**item, "content": "", "tokens": [], "generation_settings": last}


def _openai_events(
    envelope: dict[str, Any], pieces: Any, ends: Sequence[dict[str, Any]], results: Placed
) -> Iterator[dict[str, Any]]:
    for choice in pieces:
        yield {"choices": [choice], **envelope}
    for choice, (_, result) in zip(ends, results, strict=True):
        yield {"choices": [choice], **envelope, **_closing([(0, result)])}


def _stream(events: Iterator[dict[str, Any]], *, done: bool) -> Response:
    def send() -> Iterator[bytes]:
        for event in events:
            yield b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n"
        if done:
            yield b"data: [DONE]\n\n"

    return Response(200, send(), "text/event-stream", {"X-Accel-Buffering": "no"})


def _pieces(result: Generated) -> Iterator[str]:
    """The text token by token; a token that breaks a character waits for the next one."""
    if not result.text:
        return
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for number in result.ids:
        yield decoder.decode(decode([number]))


def _envelope(model: str, kind: str) -> dict[str, Any]:
    return {
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": "b0-unknown",
        "object": kind,
        "id": f"chatcmpl-{time.monotonic_ns():032d}",
    }


def _closing(results: Placed) -> dict[str, Any]:
    if not results:
        return {"usage": {"completion_tokens": 0, "prompt_tokens": 0, "total_tokens": 0}}
    result = results[0][1]
    prompt, predicted = len(result.prompt_ids), len(result.ids)
    usage = {
        "completion_tokens": predicted,
        "prompt_tokens": prompt,
        "total_tokens": prompt + predicted,
        "prompt_tokens_details": {"cached_tokens": result.cached},
    }
    return {"usage": usage, "timings": _timings(result)}


def _timings(result: Generated) -> dict[str, Any]:
    new, predicted = len(result.prompt_ids) - result.cached, len(result.ids)
    return {
        "cache_n": result.cached,
        "prompt_n": new,
        "prompt_ms": 0.1 * new,
        "prompt_per_token_ms": 0.1,
        "prompt_per_second": 10000.0,
        "predicted_n": predicted,
        "predicted_ms": 0.1 * predicted,
        "predicted_per_token_ms": 0.1,
        "predicted_per_second": 10000.0,
    }


def _logprobs(result: Generated, top: int) -> list[dict[str, Any]]:
    def one(number: int, rank: int) -> dict[str, Any]:
        data = decode([number])
        text = data.decode("utf-8", "replace")
        return {"id": number, "token": text, "bytes": list(data), "logprob": LOGPROB * (rank + 1)}

    return [
        {**one(number, 0), "top_logprobs": [one((number + rank) % 65792, rank) for rank in range(top)]}
        for number in result.ids
    ]
