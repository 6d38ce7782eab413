"""What nodes count around a request: their growth, read only once it stands still."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harness.checks.base import CheckContext, ServerView
from harness.checks.pd_transfers import TRANSFERS, Counting, Moved, load_moved, of
from harness.engines.base import TransferTotals
from harness.engines.client import Client
from harness.errors import HarnessError, TargetError


@dataclass
class Engine:
    """Its node counts `totals`, one scrape after the other and the last for ever; None: it cannot be read."""

    totals: list[TransferTotals | None]
    scrapes: Iterator[int] = field(default_factory=itertools.count)

    def transferred(self, client: Client) -> TransferTotals | None:
        totals = self.totals[min(next(self.scrapes), len(self.totals) - 1)]
        if totals is None:
            raise TargetError("this node has no /metrics")
        return totals


def counting(folder: Path, **nodes: Engine) -> Counting:
    views: Any = [
        ServerView(role=role, engine=engine, base_url="http://127.0.0.1:1", log=folder, config={})  # type: ignore[arg-type]
        for role, engine in nodes.items()
    ]
    context: Any = CheckContext(
        engine=views[0].engine,
        base_url="",
        served_name="",
        folder=folder,
        server_log=folder,
        start_command=lambda *_: pytest.fail("nothing is started"),
        progress=lambda *_: None,
        servers=tuple(views),
    )
    return Counting(context)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.checks.pd_transfers.POLL_S", 0.001)
    monkeypatch.setattr("harness.checks.pd_transfers.SETTLE_S", 0.2)


def test_growth_of_each_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node that counts what was moved does so a moment after the answer."""
    monkeypatch.setattr("harness.checks.pd_transfers.SETTLE_S", 20.0)
    late = [TransferTotals(requests=3, size=100)] * 4
    prefill = Engine([*late, TransferTotals(requests=4, size=350)])
    decode = Engine([TransferTotals(requests=8), TransferTotals(requests=9)])
    counter = counting(tmp_path, prefill=prefill, decode=decode, router=Engine([None]))
    with counter.around("cold", "64"):
        assert load_moved(tmp_path) == []  # told when the request is over
    lines = of(load_moved(tmp_path), "cold", "64")
    assert lines[0] == Moved(leg="cold", case="64", role="prefill", requests=1, size=250)
    assert lines[1] == Moved(leg="cold", case="64", role="decode", requests=1)
    assert of(load_moved(tmp_path), "warm", "64") == []


def test_nothing_moved(tmp_path: Path) -> None:
    node = Engine([TransferTotals(requests=3, size=100, tokens=7)])
    with counting(tmp_path, prefill=node).around("idle", ""):
        assert load_moved(tmp_path) == []  # told when the request is over
    (line,) = load_moved(tmp_path)
    assert (line.size, line.tokens, line.any) == (0, 0, False)


def test_a_counter_may_be_absent_until_it_first_counts(tmp_path: Path) -> None:
    node = Engine([TransferTotals(), TransferTotals(tokens=64)])
    with counting(tmp_path, decode=node).around("cold", "1"):
        assert load_moved(tmp_path) == []  # told when the request is over
    assert load_moved(tmp_path) == [Moved(leg="cold", case="1", role="decode", tokens=64)]


def test_requests_alone_are_no_proof() -> None:
    assert not Moved(leg="cold", case="1", role="decode", requests=3).any


@pytest.mark.parametrize("engine", [Engine([None]), Engine([TransferTotals(size=1), None])])
def test_a_node_that_cannot_be_read_proves_nothing(tmp_path: Path, engine: Engine) -> None:
    with counting(tmp_path, decode=engine).around("cold", "1"):
        assert load_moved(tmp_path) == []  # told when the request is over
    assert load_moved(tmp_path) == []


def test_a_request_that_raises_leaves_no_line(tmp_path: Path) -> None:
    counter = counting(tmp_path, decode=Engine([TransferTotals(size=1)]))
    with pytest.raises(HarnessError), counter.around("cold", "1"):
        raise HarnessError("the run is to end")
    assert (tmp_path / TRANSFERS).read_bytes() == b""
