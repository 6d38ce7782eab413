"""What llama.cpp's server answers."""

import hashlib
from typing import Any

from harness.engines.answers import flatten, without
from harness.engines.base import AcceptCounters, CachedTokens, Generation
from harness.errors import TargetError
from harness.findings import Code
from harness.scenario.model import Scalar

# Entries of /props that are the harness's own, differ from start to start, or are told elsewhere.
LEFT_OUT = ("model_alias", "model_path", "media_marker", "is_sleeping", "chat_template", "*.n_ctx", "ui*")
FINISH_REASONS = {"eos": "stop", "word": "stop", "limit": "length"}


def told_of(meta: Any, props: Any) -> dict[str, Scalar | None]:
    """What the server says of itself."""
    settings = props["default_generation_settings"]
    server = {key: value for key, value in props.items() if key != "default_generation_settings"}
    return {
        "kv_dtype": None,  # the log tells
        "max_length": settings["n_ctx"],
        "n_parallel": server.pop("total_slots"),
        "chat_template_sha256": hashlib.sha256(props.get("chat_template", "").encode()).hexdigest()[:16],
        **without(flatten({**server, "model": meta, "sampling": settings["params"]}), LEFT_OUT),
    }


def generation(answer: Any, latency: float) -> Generation:
    """Raises TargetError for an answer whose numbers contradict one another."""
    timings = answer["timings"]
    _consistent(timings, answer["tokens_evaluated"])
    accept = None
    if "draft_n" in timings:
        accept = AcceptCounters(proposed=timings["draft_n"], accepted=timings["draft_n_accepted"])
    return Generation(
        text=answer["content"],
        ids=tuple(answer["tokens"]),
        finish_reason=FINISH_REASONS.get(answer["stop_type"], "error"),
        prompt_tokens=answer["tokens_evaluated"],
        completion_tokens=answer["tokens_predicted"],
        cached=CachedTokens(total=timings.get("cache_n")),
        accept=accept,
        latency_s=latency,
        first_token_s=latency - timings["predicted_ms"] / 1000,  # prompt_ms leaves out loads from the host
        logprobs=tuple(token["logprob"] for token in answer.get("completion_probabilities") or ()),
        raw=answer,
    )


def _consistent(timings: Any, prompt: int) -> None:
    """A prompt is what was cached of it and what was computed; no draft is accepted that was not made."""
    if "cache_n" in timings and "prompt_n" in timings:
        cached, computed = timings["cache_n"], timings["prompt_n"]
        if cached + computed != prompt:
            raise _contradiction(f"{cached} cached and {computed} computed tokens of a prompt of {prompt}")
    if "draft_n" in timings:
        drafted, accepted = timings["draft_n"], timings["draft_n_accepted"]
        if accepted > drafted:
            raise _contradiction(f"{accepted} accepted of {drafted} drafted tokens")


def _contradiction(what: str) -> TargetError:
    return TargetError(
        f"the answer contradicts itself: {what}",
        cause="this release of llama.cpp counts otherwise, or counts wrongly",
        code=Code.BAD_ANSWER,
    )
