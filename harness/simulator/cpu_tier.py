"""The second cache tier, in host memory: prompts only, in pages of its own."""

from harness.simulator.cache import PrefixCache

MIN_COPY = 128  # tokens: less is quicker computed than copied
MIN_PROMPT = 256


class CpuTier:
    """Holds at most `capacity` tokens; the prompts used least recently go first. Off with capacity 0."""

    def __init__(self, capacity: int, page: int) -> None:
        self.capacity = capacity
        self.tree = PrefixCache(max(1, page))

    def store(self, key: bytes, tokens: int) -> None:
        """A prompt of this many tokens, if it is longer than one page and fits at all."""
        if self.tree.unit < tokens <= self.capacity:
            self.tree.insert(key)
            self.tree.evict(self.tree.held - self.capacity)

    def match(self, key: bytes, limit: int) -> int:
        """Known tokens of the prefix, at most `limit`, in whole pages."""
        return self.tree.match(key, limit)[0] if self.capacity else 0


def worth_copying(tokens: int, prompt: int) -> bool:
    return tokens >= MIN_COPY and prompt >= MIN_PROMPT
