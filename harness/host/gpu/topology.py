"""Which GPUs to take together: a tensor-parallel group is as fast as its slowest link. Pure."""

from collections.abc import Collection, Iterator, Sequence
from itertools import combinations
from math import comb
from typing import TypeAlias

from harness.host.gpu.inventory import Gpu, Inventory, Link

# Every group is looked at up to this many (16 GPUs have at most 12,870); above it, they are grown one by one.
_ALL_GROUPS = 13_000

Closeness: TypeAlias = tuple[Link, bool]
"""The link, and whether both are on one NUMA node."""


def choose(
    inventory: Inventory, free: Collection[Gpu], count: int, link: Link = Link.UNKNOWN
) -> tuple[Gpu, ...]:
    """The best `count` of the free GPUs, by index; empty when no group is joined by at least `link`.

    Best: the closest worst link, then one NUMA node, then the group that leaves the fewest close neighbours
    behind (so that larger groups stay whole), then the lowest indices.
    """
    if count < 1 or len(free) < count:
        return ()
    ordered = sorted(free, key=lambda gpu: (gpu.index, gpu.uuid))
    pairs = _Pairs(inventory, ordered)
    groups = [(pairs.worst(group), group) for group in _groups(pairs, count)]
    closest = max(worst for worst, _ in groups)
    if count > 1 and closest[0] < link:
        return ()
    best = min((pairs.left_behind(group), group) for worst, group in groups if worst == closest)
    return tuple(ordered[position] for position in best[1])


class _Pairs:
    """Closeness by position, looked up once: a machine has few pairs and many groups."""

    def __init__(self, inventory: Inventory, gpus: Sequence[Gpu]) -> None:
        self.count = len(gpus)
        self._rows = [[_closeness(inventory, one, other) for other in gpus] for one in gpus]
        self._levels = sorted({level for row in self._rows for level in row}, reverse=True)

    def worst(self, group: Sequence[int]) -> Closeness:
        """Of all pairs in the group; one GPU alone is as close to itself as can be."""
        return min((self._rows[a][b] for a, b in combinations(group, 2)), default=(Link.NVLINK, True))

    def left_behind(self, group: Sequence[int]) -> tuple[int, ...]:
        """How many others are how close to a member of the group, closest level first."""
        others = (other for other in range(self.count) if other not in group)
        levels = [max(self._rows[member][other] for member in group) for other in others]
        return tuple(levels.count(level) for level in self._levels)

    def grown(self, group: tuple[int, ...]) -> tuple[int, ...]:
        """With the other that is closest to the whole group."""
        others = [other for other in range(self.count) if other not in group]
        return (*group, max(others, key=lambda other: (self.worst((*group, other)), -other)))


def _groups(pairs: _Pairs, count: int) -> Iterator[tuple[int, ...]]:
    if comb(pairs.count, count) <= _ALL_GROUPS:
        yield from combinations(range(pairs.count), count)
        return
    for seed in range(pairs.count):
        group: tuple[int, ...] = (seed,)
        while len(group) < count:
            group = pairs.grown(group)
        yield tuple(sorted(group))


def _closeness(inventory: Inventory, one: Gpu, other: Gpu) -> Closeness:
    return inventory.link(one, other), one.numa is not None and one.numa == other.numa
