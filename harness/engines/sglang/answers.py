"""Answers of SGLang's `/generate`."""

from typing import Any

from harness.engines.base import AcceptCounters, CachedTokens, Generation

FINISH_REASONS = ("stop", "length", "abort")


def generation(answer: Any, latency: float) -> Generation:
    """Raises what reading an answer of another form raises."""
    meta = answer["meta_info"]
    finish = meta["finish_reason"]
    reason = finish["type"] if finish["type"] in FINISH_REASONS else "error"
    if reason == "abort" and finish.get("status_code"):
        reason = "error"
    tiers = meta.get("cached_tokens_details") or {}
    logprobs = meta.get("output_token_logprobs") or ()
    return Generation(
        text=answer["text"],
        ids=tuple(answer["output_ids"]),
        finish_reason=reason,
        prompt_tokens=meta["prompt_tokens"],
        completion_tokens=meta["completion_tokens"],
        cached=CachedTokens(
            total=meta.get("cached_tokens"),
            device=tiers.get("device"),
            host=tiers.get("host"),
            storage=tiers.get("storage"),
        ),
        accept=_accepted(meta),
        latency_s=latency,
        logprobs=tuple(entry[0] for entry in logprobs),
        pauses=meta.get("num_retractions"),
        raw=answer,
    )


def _accepted(meta: Any) -> AcceptCounters | None:
    if "spec_verify_ct" not in meta:
        return None
    return AcceptCounters(
        proposed=meta.get("spec_num_proposed_drafts"),
        accepted=meta.get("spec_num_correct_drafts"),
        steps=meta["spec_verify_ct"],
    )
