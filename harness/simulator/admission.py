"""Whether one more request may start: LightLLM's guess at the peak of the pool."""

from collections.abc import Iterable
from dataclasses import dataclass

from harness.simulator.core_faults import CoreFaults
from harness.simulator.running import Running
from harness.simulator.types import Limits, Request

PADDING = 16  # tokens on top of every estimate
PER_CHUNK = 2  # tokens that decode may run ahead for each chunk still to prefill


class OutputEstimate:
    """A moving average of output lengths, quick at first and slow later."""

    def __init__(self) -> None:
        self.tokens = 2048
        self._weight = 0.5

    def update(self, generated: int) -> None:
        seen = max(generated, 64)
        self.tokens = max(64, int(self.tokens * (1 - self._weight) + seen * self._weight))
        self._weight = max(0.04, self._weight * 0.8)


@dataclass(frozen=True, slots=True)
class Demand:
    """One request: tokens that it has or needs at once, and tokens that are still to come."""

    now: int
    later: int


def peak(demands: Iterable[Demand]) -> int:
    """The most tokens in use at any time if every request ends when it is expected to."""
    most = present = 0
    for number, each in enumerate(sorted(demands, key=lambda each: -each.later), 1):
        present += each.now
        most = max(most, present + number * each.later)
    return most


class Admission:
    """Knows the limits and learns from outputs. `crowded`: the pool is so full that nothing is guessed."""

    def __init__(self, limits: Limits, faults: CoreFaults) -> None:
        self.estimate = OutputEstimate()
        self._limits = limits
        self._faults = faults

    def max_new(self, request: Request) -> int:
        return max(1, request.max_new_tokens // 2) if self._faults.cut else request.max_new_tokens

    def first_chunk(self, request: Request) -> int:
        return min(len(request.prompt), self._limits.chunked_prefill_size)

    def fits(self, request: Request, running: Iterable[Running], crowded: bool) -> bool:
        demands = [self._demand(each, crowded) for each in running]
        demands.append(self._expect(request, self.max_new(request), 0, 0, crowded))
        return peak(demands) < self._limits.max_total_token_num

    def peak(self, running: Iterable[Running], crowded: bool) -> int:
        return peak(self._demand(each, crowded) for each in running)

    def _demand(self, running: Running, crowded: bool) -> Demand:
        return self._expect(running.request, running.max_new, running.generated, running.computed, crowded)

    def _expect(self, request: Request, max_new: int, generated: int, computed: int, crowded: bool) -> Demand:
        """`computed`: tokens of it in the pool. A request that generates more than was expected of it is
        expected to generate a tenth more than it has."""
        output = max_new
        if not (request.ignore_eos or crowded or self._faults.never_pauses):
            output = min(max_new, max(int(1.1 * generated), self.estimate.tokens))
        present = len(request.prompt) + generated
        chunks = -(-max(0, present - computed) // self._limits.chunked_prefill_size)
        later = max(0, chunks * PER_CHUNK + output - generated - 1)
        return Demand(max(present, computed) + 1, later + PADDING)
