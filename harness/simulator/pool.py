"""The GPU's KV pool: what requests own, what the prefix tree holds, and what is free."""

from harness.simulator.cache import PrefixCache


class Pool:
    """`total` tokens, handed out in pages. Always: `free` + `owned` + tree.held == `total`, none negative."""

    def __init__(self, total: int, page: int, unit: int) -> None:
        """Tokens, all of them. `unit` is what the tree shares and hits in; a multiple of `page`.

        Raises ValueError for pages that do not fit each other.
        """
        if page < 1 or unit < 1 or unit % page:
            raise ValueError(f"a hash page of {unit} tokens is no multiple of the page of {page}")
        self.total = total // page * page
        self.free = self.total
        self.owned = 0
        self.tree = PrefixCache(unit)
        self._page = page

    @property
    def available(self) -> int:
        """Free, or held by the tree for nobody."""
        return self.free + self.tree.evictable

    @property
    def used(self) -> int:
        return self.total - self.available

    def pages(self, tokens: int) -> int:
        """The tokens that this many take up, in whole pages."""
        return -(-tokens // self._page) * self._page

    def take(self, tokens: int) -> None:
        """Whole pages for a request, after eviction if need be. The caller has looked at `available`."""
        if tokens > self.free:
            self.free += self.tree.evict(tokens - self.free)
        assert 0 <= tokens <= self.free, "more was taken than is available"
        self.free -= tokens
        self.owned += tokens

    def give(self, tokens: int) -> None:
        self.owned -= tokens
        self.free += tokens

    def keep(self, key: bytes, shared: int, owned: int) -> None:
        """A request leaves: the tree takes over what it does not have yet, the rest becomes free.

        `shared` tokens of the key's prefix were the tree's already; `owned` are the request's own.
        """
        new, _ = self.tree.insert(key)
        assert new <= owned, f"the tree took {new} tokens of {owned}, beside {shared} shared ones"
        self.owned -= new
        self.give(owned - new)
