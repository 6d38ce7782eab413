"""Answers of vLLM's `/v1/completions`."""

from typing import Any

from harness.engines.base import AcceptCounters, CachedTokens, Generation

FINISH_REASONS = ("stop", "length", "abort", "error")


def generation(answer: Any, latency: float) -> Generation:
    """Raises what reading an answer of another form raises."""
    choice, usage = answer["choices"][0], answer["usage"]
    details = usage.get("prompt_tokens_details") or {}
    reason = str(choice["finish_reason"])
    logprobs = (choice.get("logprobs") or {}).get("token_logprobs") or ()
    return Generation(
        text=choice["text"],
        ids=tuple(choice.get("token_ids") or ()),
        finish_reason=reason if reason in FINISH_REASONS else "error",
        prompt_tokens=usage["prompt_tokens"],
        completion_tokens=usage["completion_tokens"],
        cached=CachedTokens(total=details.get("cached_tokens")),
        accept=_accepted((answer.get("metrics") or {}).get("speculative_decoding")),
        latency_s=latency,
        logprobs=tuple(value for value in logprobs if value is not None),
        raw=answer,
    )


def _accepted(counts: Any) -> AcceptCounters | None:
    if counts is None:
        return None
    return AcceptCounters(
        proposed=counts.get("num_draft_tokens"),
        accepted=counts.get("num_accepted_draft_tokens"),
        steps=counts.get("num_spec_steps"),
    )
