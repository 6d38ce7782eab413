"""The prefix tree and the pool."""

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.simulator.cache import Node, PrefixCache
from harness.simulator.cpu_tier import CpuTier
from harness.simulator.pool import Pool


def key(*ids: int) -> bytes:
    return array("I", ids).tobytes()


def test_only_whole_units_are_shared() -> None:
    cache = PrefixCache(4)
    assert cache.insert(key(*range(11)))[0] == 8
    assert cache.held == 8
    assert cache.match(key(*range(11)), 11)[0] == 8
    assert cache.match(key(*range(7)), 7)[0] == 4
    assert cache.match(key(0, 1, 2, 9), 4)[0] == 0


def test_a_match_stops_at_the_limit_in_whole_units() -> None:
    cache = PrefixCache(4)
    cache.insert(key(*range(12)))
    assert [cache.match(key(*range(12)), limit)[0] for limit in (3, 4, 11, 12, 99)] == [0, 4, 8, 12, 12]


def test_inserting_twice_takes_nothing() -> None:
    cache = PrefixCache(2)
    cache.insert(key(1, 2, 3, 4))
    assert cache.insert(key(1, 2, 3, 4))[0] == 0
    assert cache.insert(key(1, 2, 3, 4, 5, 6))[0] == 2
    assert cache.insert(key(1, 2, 9, 9))[0] == 2
    assert cache.held == 8


def test_the_least_recently_used_leaf_goes_first() -> None:
    cache = PrefixCache(1)
    for ids in ((1, 2), (3, 4), (5, 6)):
        cache.insert(key(*ids))
    cache.match(key(1, 2), 2)
    assert cache.evict(1) == 2
    assert [cache.match(key(*ids), 2)[0] for ids in ((1, 2), (3, 4), (5, 6))] == [2, 0, 2]


def test_what_is_used_is_not_evicted() -> None:
    cache = PrefixCache(1)
    cache.insert(key(1, 2, 3, 4))
    cache.insert(key(1, 2, 8))
    _, node = cache.match(key(1, 2, 3, 4), 3)
    cache.lock(node)
    assert (cache.held, cache.refed, cache.evictable) == (5, 3, 2)
    assert cache.evict(99) == 2
    assert cache.match(key(1, 2, 3, 4), 4)[0] == 3
    cache.unlock(node)
    assert cache.evict(99) == 3
    assert (cache.held, cache.refed) == (0, 0)


def test_a_split_keeps_the_users_of_a_node() -> None:
    cache = PrefixCache(1)
    _, node = cache.insert(key(1, 2, 3, 4))
    cache.lock(node)
    cache.insert(key(1, 2, 9))
    assert cache.refed == 4
    cache.unlock(node)
    assert cache.refed == 0


PREFIXES = st.lists(st.integers(0, 2), max_size=12)
STEPS = st.lists(st.tuples(st.sampled_from("imleu"), PREFIXES, st.integers(0, 12)), max_size=40)


@given(unit=st.integers(1, 3), steps=STEPS)
@settings(max_examples=200, deadline=None)
def test_counts_hold_and_hits_are_true_prefixes(unit: int, steps: list[tuple[str, list[int], int]]) -> None:
    cache = PrefixCache(unit)
    inserted: list[list[int]] = []
    locked: list[Node] = []
    for step, ids, number in steps:
        if step == "i":
            cache.insert(key(*ids))
            inserted.append(ids)
        elif step in "ml":
            hit, node = cache.match(key(*ids), number)
            assert hit % unit == 0
            assert hit <= min(number, len(ids))
            assert hit == 0 or any(known[:hit] == ids[:hit] for known in inserted)
            if step == "l":
                cache.lock(node)
                locked.append(node)
        elif step == "e":
            assert cache.evict(number) >= min(number, 0)
        elif locked:
            cache.unlock(locked.pop())
        assert 0 <= cache.refed <= cache.held
        assert cache.held == sum(node.tokens for node in nodes(cache))
        assert cache.refed == sum(node.tokens for node in nodes(cache) if node.refs)
        assert cache._leaves == {node for node in nodes(cache) if not node.children}
    while locked:
        cache.unlock(locked.pop())
    cache.evict(1000)
    assert cache.held == cache.refed == 0


def nodes(cache: PrefixCache) -> list[Node]:
    found = [cache._root]
    for node in found:
        found.extend(node.children.values())
    return found[1:]


def test_the_pool_counts_pages() -> None:
    pool = Pool(100, 16, 32)
    assert (pool.total, pool.free) == (96, 96)
    assert [pool.pages(tokens) for tokens in (0, 1, 16, 17)] == [0, 16, 16, 32]


def test_a_leaving_request_gives_the_tree_its_units_and_frees_the_rest() -> None:
    pool = Pool(64, 4, 8)
    pool.take(20)
    pool.keep(key(*range(18)), 0, 20)
    assert (pool.free, pool.owned, pool.tree.held) == (48, 0, 16)
    pool.take(56)
    assert (pool.free, pool.owned, pool.tree.held) == (8, 56, 0), "the tree was not evicted for it"


def test_a_hash_page_must_be_whole_pages() -> None:
    with pytest.raises(ValueError, match="multiple"):
        Pool(1024, 16, 24)


def test_the_cpu_tier_keeps_what_is_longer_than_a_page_within_its_capacity() -> None:
    tier = CpuTier(20, 4)
    tier.store(key(*range(4)), 4)
    assert tier.tree.held == 0
    tier.store(key(*range(9)), 9)
    assert tier.match(key(*range(9)), 8) == 8
    tier.store(key(*range(100, 116)), 16)
    assert tier.tree.held == 16, "the older prompt has to go"
    tier.store(key(*range(200, 240)), 40)
    assert tier.match(key(*range(100, 116)), 16) == 16, "a prompt that never fits evicts nobody"
    assert CpuTier(0, 4).match(key(*range(9)), 9) == 0
