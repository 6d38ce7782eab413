"""Requests to LightLLM's `/generate`, and its answers."""

from typing import Any

from harness.engines.base import AcceptCounters, CachedTokens, GenerateRequest, Generation

FINISH_REASONS = ("stop", "length", "abort", "error")


def parameters(request: GenerateRequest) -> dict[str, Any]:
    """Every sampling field: the defaults are the model's own, from its `generation_config.json`."""
    sampled = request.temperature > 0
    return {
        "do_sample": sampled,
        "temperature": request.temperature if sampled else 1.0,
        "top_p": 1.0,
        "top_k": -1 if sampled else 1,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "input_penalty": False,
        "ignore_eos": request.ignore_eos,
        "max_new_tokens": request.max_tokens,
        "min_new_tokens": max(1, request.min_tokens),
        "stop_sequences": list(request.stop),
        "n": 1,
        "best_of": 1,
        "add_special_tokens": False,
        "skip_special_tokens": False,
        "disable_prompt_cache": not request.use_cache,
        "return_details": True,
    }


def generation(answer: Any, latency: float) -> Generation:
    """An answer with `return_details`. Raises what reading an answer of another form raises."""
    texts = answer["generated_text"]
    tokens = _only(answer.get("tokens") or [])
    reason = str(_only(answer["finish_reason"]))
    kept = [token for token in tokens if token.get("id") is not None]  # an aborted request ends with none
    return Generation(
        text=texts if isinstance(texts, str) else texts[0],
        ids=tuple(token["id"] for token in kept),
        finish_reason=reason if reason in FINISH_REASONS else "error",
        prompt_tokens=answer["prompt_tokens"],
        completion_tokens=_only(answer["count_output_tokens"]),
        cached=CachedTokens(total=kept[0].get("prompt_cache_len") if kept else None),
        accept=_accepted(kept[-1]) if kept else None,
        latency_s=latency,
        logprobs=tuple(token["logprob"] for token in kept),
        raw=answer,
    )


def _only(value: Any) -> Any:
    """The value of the one sequence: bare, or, from some releases, in a list of one."""
    return value[0] if isinstance(value, list) and value and not isinstance(value[0], dict) else value


def _accepted(last: Any) -> AcceptCounters | None:
    """Cumulative counters of the last token. LightLLM counts them, as zeros, without speculation too. The
    tokens it verified include, for each step, the one that needs no acceptance."""
    if "mtp_accepted_token_num" not in last:
        return None
    steps, verified = last.get("mtp_verify_step_num"), last.get("mtp_verify_token_num")
    return AcceptCounters(
        proposed=verified - steps if verified is not None and steps is not None else None,
        accepted=last["mtp_accepted_token_num"],
        steps=steps,
    )
