"""What the engines' counters of cache tiers and of speculation are called, and what two scrapes say."""

from collections.abc import Iterable, Mapping

from harness.engines.base import AcceptCounters

# Tokens of prompts that were found in the host's tier.
HOST_HITS = (
    "sglang:cached_tokens_total{cache_source=host}",
    "vllm:prompt_tokens_cached_by_source_total{source=host}",
)
# Tokens that were copied back from the host's tier to the device.
LOAD_BACKS = ("sglang:load_back_tokens_total{pool=kv}", "sglang:load_back_tokens_total")
PROPOSED = tuple(f"{engine}:spec_decode_num_draft_tokens_total" for engine in ("vllm", "llamacpp"))
ACCEPTED = tuple(f"{engine}:spec_decode_num_accepted_tokens_total" for engine in ("vllm", "llamacpp"))
STEPS = tuple(f"{engine}:spec_decode_num_drafts_total" for engine in ("vllm", "llamacpp"))


def grown(names: Iterable[str], before: Mapping[str, float], after: Mapping[str, float]) -> int | None:
    """By how much the counter has grown that has one of these names; None where there is none. A counter may
    be absent until it first counts."""
    name = next((name for name in names if name in after), None)
    return None if name is None else round(after[name] - before.get(name, 0.0))


def accepted(before: Mapping[str, float], after: Mapping[str, float]) -> AcceptCounters | None:
    """Speculation between two scrapes; None where the server does not count it."""
    steps, right = grown(STEPS, before, after), grown(ACCEPTED, before, after)
    if steps is None or right is None:
        return None
    return AcceptCounters(proposed=grown(PROPOSED, before, after), accepted=right, steps=steps)
