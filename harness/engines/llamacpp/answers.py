"""What llama.cpp's server answers."""

import hashlib
from typing import Any

from harness.engines.answers import flatten, without
from harness.engines.base import AcceptCounters, CachedTokens, Generation
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
    timings = answer["timings"]
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
