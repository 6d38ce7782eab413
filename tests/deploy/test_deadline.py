"""A server that loads slowly but visibly is not killed; one that hangs is."""

import pytest

from harness.deploy.readiness import Deadline


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr("harness.deploy.readiness.time.monotonic", lambda: now[0])
    return now


def test_silence_ends_it(clock: list[float]) -> None:
    deadline = Deadline(quiet_s=10, cap_s=100)
    deadline.saw(0)
    clock[0] += 9
    assert deadline.exceeded() is None
    clock[0] += 2
    assert "without visible progress" in str(deadline.exceeded())


def test_progress_moves_it(clock: list[float]) -> None:
    deadline = Deadline(quiet_s=10, cap_s=100)
    for step in range(9):
        clock[0] += 9
        deadline.saw(step)
        assert deadline.exceeded() is None


def test_the_same_progress_again_does_not_move_it(clock: list[float]) -> None:
    deadline = Deadline(quiet_s=10, cap_s=100)
    deadline.saw(5)
    clock[0] += 9
    deadline.saw(5)
    clock[0] += 2
    assert deadline.exceeded() is not None


def test_the_cap_is_hard(clock: list[float]) -> None:
    deadline = Deadline(quiet_s=10, cap_s=20)
    for step in range(5):
        clock[0] += 5
        deadline.saw(step)
    assert "hard limit" in str(deadline.exceeded())


def test_the_cap_counts_from_the_servers_own_start(clock: list[float]) -> None:
    """The second server of a lane was loading while the first was waited for."""
    deadline = Deadline(quiet_s=10, cap_s=20, started=clock[0] - 18)
    deadline.saw(0)
    assert deadline.exceeded() is None
    clock[0] += 3
    assert "hard limit" in str(deadline.exceeded())
