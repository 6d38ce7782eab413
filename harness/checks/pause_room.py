"""Whether long requests fit into the KV cache together, and which numbers to change where they should not."""

from dataclasses import dataclass

from harness.checks.exchange import Evidence

# What a scheduler adds to each request that it weighs: pages begun, tokens that decoding runs ahead.
PADDING = 32


@dataclass(frozen=True, slots=True)
class Room:
    """Lengths in tokens. `capacity` of the cache and `estimate`, the length of output that the scheduler
    expected, are None where they are not known."""

    input_tokens: int
    output_tokens: int
    concurrency: int
    capacity: int | None
    estimate: int | None = None

    @property
    def each(self) -> int:
        return self.input_tokens + self.output_tokens

    @property
    def needed(self) -> int:
        """What all requests hold when none has to wait."""
        return self.concurrency * self.each

    @property
    def estimate_wanted(self) -> int | None:
        """The longest output that the scheduler may expect and still admit all requests at once."""
        if self.capacity is None:
            return None
        return self.capacity // self.concurrency - self.input_tokens - PADDING

    def to_hold(self) -> str:
        return f"give it {self.needed + self.concurrency * PADDING} tokens or more{self._has()}"

    def to_overflow(self) -> str:
        """Why nothing was put aside, in numbers, and what to change."""
        load = f"{self.concurrency} x ({self.input_tokens} + {self.output_tokens}) = {self.needed} tokens"
        if self.capacity is None:
            return f"the load was {load}, and the server does not tell what its KV cache holds"
        if self.needed <= self.capacity:
            return (
                f"{load} fit into a KV cache of {self.capacity}: raise the concurrency to "
                f"{self.capacity // self.each + 1}, or lower the cache below {self.needed}"
            )
        wanted = self.estimate_wanted or 0
        if self.estimate is not None and self.estimate > wanted:
            held = self.capacity // (self.input_tokens + min(self.estimate, self.output_tokens) + PADDING)
            return (
                f"{load} overflow a KV cache of {self.capacity}, but the scheduler expected outputs of "
                f"{self.estimate} tokens and so admitted about {held} at once: it has to expect {wanted} "
                "or less (raise max_warmups)"
            )
        said = "" if self.estimate is None else f", although it expected outputs of {self.estimate} tokens"
        return (
            f"{load} overflow a KV cache of {self.capacity}, but the scheduler did not run them all "
            f"at once{said}: let {self.concurrency} run together, or raise the output length"
        )

    def _has(self) -> str:
        return "" if self.capacity is None else f" (it has {self.capacity})"


def read_room(evidence: Evidence, input_tokens: int, output_tokens: int, concurrency: int) -> Room:
    """With the capacity and the estimate that were put on file while asking."""
    capacity, estimate = (evidence.facts.notes.get(name) for name in ("kv_tokens", "output_estimate"))
    return Room(
        input_tokens,
        output_tokens,
        concurrency,
        capacity if isinstance(capacity, int) else None,
        estimate if isinstance(estimate, int) else None,
    )
