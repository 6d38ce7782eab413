"""How many drafted tokens a verification step accepts."""

NATURAL = 0.7  # of each drafted token; 2.2 tokens per step with two drafted


class Acceptance:
    """Each drafted token is accepted with one probability as long as those before it were."""

    def __init__(self, drafted: int, mean: float | None = None) -> None:
        """`mean`: tokens per step, of 1 to drafted + 1. Raises ValueError outside."""
        self.drafted = drafted
        probability = NATURAL
        if mean is not None:
            if not 1 <= mean <= drafted + 1:
                raise ValueError(f"{mean} tokens per step cannot come of {drafted} drafted ones")
            probability = _probability(drafted, mean)
        self._below = int(probability * 2**16)

    def accepted(self, number: int) -> int:
        """Out of 64 bits that only the request's context and step decide."""
        count = 0
        while count < self.drafted and _mixed(number, count) < self._below:
            count += 1
        return count


def _mixed(number: int, place: int) -> int:
    number = (number + (place + 1) * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return (number ^ (number >> 31)) >> 48


def _probability(drafted: int, mean: float) -> float:
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        if sum(middle**place for place in range(drafted + 1)) < mean:
            low = middle
        else:
            high = middle
    return high
