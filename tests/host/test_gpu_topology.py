import random
from itertools import combinations

import pytest

from harness.host.gpu.inventory import Gpu, Inventory, Link
from harness.host.gpu.topology import choose


def machine(numa: list[int], links: dict[tuple[int, int], Link]) -> Inventory:
    gpus = tuple(
        Gpu(index, f"GPU-{index}", "NVIDIA H200", 90, 143771, numa=node) for index, node in enumerate(numa)
    )
    return Inventory(
        gpus, "test", {frozenset((f"GPU-{a}", f"GPU-{b}")): link for (a, b), link in links.items()}
    )


def everywhere(count: int, link: Link) -> dict[tuple[int, int], Link]:
    return dict.fromkeys(combinations(range(count), 2), link)


def chosen(inventory: Inventory, free: list[int], count: int, link: Link = Link.UNKNOWN) -> list[int]:
    gpus = choose(inventory, [inventory.gpus[index] for index in free], count, link)
    return [gpu.index for gpu in gpus]


NVSWITCH = machine([0] * 4 + [1] * 4, everywhere(8, Link.NVLINK))
# Four GPUs per socket, joined two by two through a PCIe switch.
PCIE = machine(
    [0] * 4 + [1] * 4,
    {
        (a, b): Link.SWITCH if a // 2 == b // 2 else Link.BRIDGE if a // 4 == b // 4 else Link.SYSTEM
        for a, b in combinations(range(8), 2)
    },
)


@pytest.mark.parametrize(
    ("free", "count", "expected"),
    [
        (range(8), 8, list(range(8))),
        (range(8), 4, [0, 1, 2, 3]),
        (range(8), 1, [0]),
        (range(1, 8), 4, [4, 5, 6, 7]),  # one NUMA node
        (range(1, 8), 1, [1]),  # leaves the four whole
        ([0, 4, 5, 6, 7], 1, [0]),
        ([0, 1, 2, 3, 4], 1, [4]),
        ([3, 5], 2, [3, 5]),
        ([3, 5], 3, []),
        ([3, 5], 0, []),
    ],
)
def test_behind_an_nvswitch(free: list[int], count: int, expected: list[int]) -> None:
    assert chosen(NVSWITCH, list(free), count) == expected


@pytest.mark.parametrize(
    ("free", "count", "expected"),
    [
        (range(8), 2, [0, 1]),
        (range(8), 4, [0, 1, 2, 3]),
        ([1, 2, 3, 4, 5, 6, 7], 2, [2, 3]),  # a whole switch, on the socket that is broken already
        ([0, 1, 2, 3, 5, 6, 7], 1, [5]),
        ([1, 2, 5, 6], 2, [1, 2]),
        ([1, 4, 6], 2, [4, 6]),  # one socket rather than the lower number
        ([0, 1, 2, 3, 6, 7], 2, [6, 7]),  # the four stay whole
    ],
)
def test_on_pcie(free: list[int], count: int, expected: list[int]) -> None:
    assert chosen(PCIE, list(free), count) == expected


def test_nvlink_between_some_is_no_ring() -> None:
    """As in a cube of eight: each of a square is joined to each, and to one of the other square."""
    links = {pair: Link.NVLINK for square in (range(4), range(4, 8)) for pair in combinations(square, 2)}
    cube = machine(
        [0] * 8, {**everywhere(8, Link.NODE), **links, **{(a, a + 4): Link.NVLINK for a in range(4)}}
    )
    assert chosen(cube, [0, 1, 4, 5, 6, 7], 4) == [4, 5, 6, 7]
    assert chosen(cube, [0, 1, 4, 5], 4, Link.NVLINK) == []
    assert chosen(cube, [0, 1, 4, 5], 4) == [0, 1, 4, 5]
    assert chosen(cube, list(range(8)), 2, Link.NVLINK) == [0, 1]


def test_a_link_is_asked_of_groups_only() -> None:
    assert chosen(PCIE, [5], 1, Link.NVLINK) == [5]
    assert chosen(PCIE, list(range(8)), 2, Link.NVLINK) == []
    assert chosen(PCIE, list(range(8)), 4, Link.BRIDGE) == [0, 1, 2, 3]


def test_unknown_links_and_nodes_do_not_matter() -> None:
    unknown = Inventory(tuple(Gpu(i, f"GPU-{i}", "x", 90, 1) for i in range(4)), "test")
    assert chosen(unknown, [3, 1, 2], 2) == [1, 2]


def test_nothing_is_closer_than_what_is_chosen() -> None:
    """Against trying every group, on random machines; the order in which GPUs are told does not matter."""
    generator = random.Random(7)
    for _ in range(60):
        size = generator.randint(2, 7)
        links = {pair: generator.choice(list(Link)) for pair in combinations(range(size), 2)}
        inventory = machine([generator.randint(0, 1) for _ in range(size)], links)
        count = generator.randint(1, size)
        free = list(range(size))
        group = chosen(inventory, free, count)
        worst = [
            min((links[pair] for pair in combinations(g, 2)), default=7) for g in combinations(free, count)
        ]
        assert min((links[pair] for pair in combinations(group, 2)), default=7) == max(worst)
        generator.shuffle(free)
        assert chosen(inventory, free, count) == group


def test_many_slices_are_grouped_in_time() -> None:
    """56 have 1.4 billion groups of 8: they are not all looked at, and a close one is found all the same."""
    links = dict.fromkeys(combinations(range(40, 48), 2), Link.SWITCH)
    big = machine([0] * 56, {**everywhere(56, Link.NODE), **links})
    assert chosen(big, list(range(56)), 8) == list(range(40, 48))
