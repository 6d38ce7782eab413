"""Cores of a lane, leased once, dealt to its servers."""

from harness.executors.lane import _deal

PLAIN = [(0,), (1,), (2,), (3,)]
HYPERTHREADED = [(0, 4), (1, 5), (2, 6), (3, 7)]


def test_each_server_has_its_own() -> None:
    assert _deal(PLAIN, [1, 2]) == [(0,), (1, 2)]


def test_siblings_stay_together() -> None:
    assert _deal(HYPERTHREADED, [2, 2]) == [(0, 1, 4, 5), (2, 3, 6, 7)]


def test_a_server_that_asks_for_none_is_not_bound() -> None:
    assert _deal(PLAIN, [2, 0]) == [(0, 1), ()]


def test_too_few_are_shared_by_all() -> None:
    assert _deal([(0,), (1,)], [2, 2]) == [(0, 1), (0, 1)]
