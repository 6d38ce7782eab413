"""A prefix tree over token ids, shared by the GPU pool and the CPU tier.

Keys are the ids packed as 4-byte integers, so that long prompts are compared and cut at the speed of bytes.
Everything in the tree is a whole number of units (pages, or hash pages of hybrid models).
"""

from array import array
from collections.abc import Iterator

ID_BYTES = array("I").itemsize


class Node:
    """A run of whole units. Its prefix is the path above it; `refs` counts the requests that use it."""

    __slots__ = ("children", "key", "parent", "refs", "used")

    def __init__(self, key: bytes, parent: "Node | None") -> None:
        self.key = key
        self.parent = parent
        self.children: dict[bytes, Node] = {}
        self.refs = 0
        self.used = 0

    @property
    def tokens(self) -> int:
        return len(self.key) // ID_BYTES


class PrefixCache:
    """`held` tokens are in the tree, `refed` of them in use by requests and so not to be evicted."""

    def __init__(self, unit: int) -> None:
        """`unit`: tokens, at least 1."""
        self.unit = unit
        self.held = 0
        self.refed = 0
        self._bytes = unit * ID_BYTES
        self._root = Node(b"", None)
        self._leaves: set[Node] = set()
        self._clock = 0

    @property
    def evictable(self) -> int:
        return self.held - self.refed

    def match(self, key: bytes, limit: int) -> tuple[int, Node]:
        """The longest known prefix of at most `limit` tokens, in whole units, and the node where it ends."""
        key = key[: limit // self.unit * self._bytes]
        node, at = self._root, 0
        self._clock += 1
        while at < len(key):
            child = node.children.get(key[at : at + self._bytes])
            if child is None:
                break
            same = self._common(child.key, key, at)
            node = child if same == len(child.key) else self._split(child, same)
            node.used = self._clock
            at += same
            if node is not child:
                break
        return at // ID_BYTES, node

    def lock(self, node: Node) -> None:
        """One more request uses this node and so its whole path."""
        for member in _path(node):
            if member.refs == 0:
                self.refed += member.tokens
            member.refs += 1

    def unlock(self, node: Node) -> None:
        for member in _path(node):
            member.refs -= 1
            if member.refs == 0:
                self.refed -= member.tokens

    def insert(self, key: bytes) -> tuple[int, Node]:
        """Add a prefix, cut to whole units. Returns how many tokens were new, and the node where it ends."""
        key = key[: len(key) // self._bytes * self._bytes]
        known, node = self.match(key, len(key) // ID_BYTES)
        rest = key[known * ID_BYTES :]
        if not rest:
            return 0, node
        child = Node(rest, node)
        child.used = self._clock
        node.children[rest[: self._bytes]] = child
        self._leaves.discard(node)
        self._leaves.add(child)
        self.held += child.tokens
        return child.tokens, child

    def evict(self, tokens: int) -> int:
        """Drop unused leaves, least recently used first, until `tokens` are freed or none is left."""
        freed = 0
        while freed < tokens:
            unused = [leaf for leaf in self._leaves if leaf.refs == 0]
            if not unused:
                break
            freed += self._drop(min(unused, key=lambda leaf: leaf.used))
        return freed

    def _drop(self, leaf: Node) -> int:
        parent = leaf.parent
        assert parent is not None
        del parent.children[leaf.key[: self._bytes]]
        self._leaves.remove(leaf)
        if not parent.children and parent is not self._root:
            self._leaves.add(parent)
        self.held -= leaf.tokens
        return leaf.tokens

    def _split(self, node: Node, at: int) -> Node:
        """Cut a node in two at a byte offset; the upper part is new, so that users keep what they hold."""
        assert node.parent is not None
        upper = Node(node.key[:at], node.parent)
        upper.refs, upper.used = node.refs, node.used
        node.parent.children[upper.key[: self._bytes]] = upper
        node.key, node.parent = node.key[at:], upper
        upper.children[node.key[: self._bytes]] = node
        return upper

    def _common(self, run: bytes, key: bytes, at: int) -> int:
        """Bytes of `run`, in whole units, that continue `key` at this offset; at least one unit does."""
        if key.startswith(run, at):
            return len(run)
        low, high = 1, min(len(run), len(key) - at) // self._bytes  # units known to be equal, and possible
        while low < high:
            middle = (low + high + 1) // 2
            if run[: middle * self._bytes] == key[at : at + middle * self._bytes]:
                low = middle
            else:
                high = middle - 1
        return low * self._bytes


def _path(node: Node) -> Iterator[Node]:
    """From a node up to, and without, the root."""
    while node.parent is not None:
        yield node
        node = node.parent
