"""What the nodes of a P/D lane count while one request is asked alone: the evidence that KV was moved.

`transfers.jsonl` has one line per node and request.
"""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

from harness.checks.base import CheckContext, ServerView
from harness.checks.exchange import Line
from harness.engines.base import TransferTotals
from harness.engines.client import Client
from harness.errors import HarnessError, TargetError
from harness.evidence.files import open_regular, write_atomic
from harness.findings import Code

TRANSFERS = "transfers.jsonl"
NODES = ("prefill", "decode")
SETTLE_S = 3.0
POLL_S = 0.2
SCRAPE_S = 10.0


class Moved(Line):
    """By how much one node's totals grew while a request was asked. None: the node does not count this."""

    leg: str
    case: str
    role: str
    requests: float | None = None
    tokens: float | None = None
    size: float | None = None
    failed: float | None = None

    @property
    def any(self) -> bool:
        """Whether KV was moved. Requests alone are no proof: nodes count those of their own warm-up too."""
        return (self.tokens or 0) > 0 or (self.size or 0) > 0


class Counting:
    """Scrapes the nodes around requests. A node that cannot be read has no line: that proves nothing."""

    def __init__(self, context: CheckContext) -> None:
        self._path = context.folder / TRANSFERS
        self._nodes = [server for server in context.servers if server.role in NODES]
        write_atomic(self._path, "")

    @contextmanager
    def around(self, leg: str, case: str) -> Iterator[None]:
        """Note what is counted while the body runs, and a moment longer: a node counts after its answer."""
        before = self._scrape()
        yield
        after = self._settled(before)
        lines = [
            Moved(leg=leg, case=case, role=role, **_growth(before[role], after[role]))
            for role in before
            if role in after
        ]
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.writelines(line.model_dump_json() + "\n" for line in lines)
        except OSError as error:
            what = f"cannot write {self._path}: {error.strerror}"
            raise HarnessError(what, fix="free disk space and run again", code=Code.DISK_FULL) from error

    def _scrape(self) -> dict[str, TransferTotals]:
        found = ((node.role, _totals(node)) for node in self._nodes)
        return {role: totals for role, totals in found if totals is not None}

    def _settled(self, before: dict[str, TransferTotals]) -> dict[str, TransferTotals]:
        """The totals once moved KV is counted and they stand still, or after some seconds."""
        deadline = time.monotonic() + SETTLE_S
        seen = self._scrape()
        while before and time.monotonic() < deadline:
            time.sleep(POLL_S)
            last, seen = seen, self._scrape()
            if last == seen and any(_moved(before[role], seen[role]) for role in seen if role in before):
                break
        return seen


def load_moved(folder: Path) -> list[Moved]:
    """Raises ValueError or OSError where the file is broken or gone."""
    with open_regular(folder / TRANSFERS) as file:
        return [Moved.model_validate_json(line) for line in file]


def of(lines: Sequence[Moved], leg: str, case: str) -> list[Moved]:
    """Those of one request."""
    return [line for line in lines if (line.leg, line.case) == (leg, case)]


def _totals(node: ServerView) -> TransferTotals | None:
    try:
        with Client(node.base_url, timeout_s=SCRAPE_S) as client:
            return node.engine.transferred(client)
    except TargetError:
        return None


def _moved(before: TransferTotals, after: TransferTotals) -> bool:
    growth = _growth(before, after)
    return (growth["tokens"] or 0) > 0 or (growth["size"] or 0) > 0


def _growth(before: TransferTotals, after: TransferTotals) -> dict[str, float | None]:
    """A counter may be absent until it first counts; one that is no number counts nothing."""
    growth: dict[str, float | None] = {}
    for field in fields(TransferTotals):
        first, last = getattr(before, field.name), getattr(after, field.name)
        grown = math.nan if last is None else last - (first or 0.0)
        growth[field.name] = grown if math.isfinite(grown) else None
    return growth
