"""What a person sees while a run is going on: a live table on a terminal, plain lines elsewhere."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

from harness.events import Watcher
from harness.report.text import safe, seconds

PLAIN_EVERY_S = 15.0
LIVE_EVERY_S = 0.25


@dataclass(slots=True)
class LaneView:
    """What is shown of one lane."""

    phase: str = "pending"
    since: float = field(default_factory=time.monotonic)
    done: int = 0
    total: int = 0
    first_done: tuple[int, float] | None = None
    note: str = ""
    verdict: str = ""

    def enter(self, phase: str) -> None:
        self.phase, self.since = phase, time.monotonic()
        self.done = self.total = 0
        self.first_done = None

    def advance(self, done: int, total: int) -> None:
        self.done, self.total = done, total
        if done and self.first_done is None:
            self.first_done = (done, time.monotonic())

    def eta_s(self) -> float | None:
        """Remaining seconds at the pace since the first answer; None where that cannot be told."""
        if self.first_done is None or not self.first_done[0] < self.done < self.total:
            return None
        pace = (time.monotonic() - self.first_done[1]) / (self.done - self.first_done[0])
        return pace * (self.total - self.done)


@contextmanager
def live_view(lanes: Sequence[str]) -> Iterator[Watcher]:
    """A watcher that draws a table when standard error is a terminal, else prints plain lines there."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield PlainView()
        return
    view = TableView(lanes)
    with Live(view, console=console, refresh_per_second=4, transient=True):
        yield view


@contextmanager
def transfer_bar(title: str) -> Iterator[Callable[[int, int | None], None]]:
    """A progress bar for bytes, on standard error."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


class PlainView:
    """One line per event on standard error; progress at most every few seconds."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._lanes: dict[str, LaneView] = {}
        self._printed: dict[str, float] = {}

    def lane_phase(self, lane: str, phase: str) -> None:
        self._lane(lane).enter(phase)
        self._line(lane, phase)

    def progress(self, lane: str, done: int, total: int) -> None:
        view = self._lane(lane)
        view.advance(done, total)
        now = time.monotonic()
        if now - self._printed.get(lane, self._began) < PLAIN_EVERY_S:
            return
        self._printed[lane] = now
        eta = view.eta_s()
        left = f", {seconds(eta)} left" if eta is not None else ""
        self._line(lane, f"{view.phase} {_share(view)}{left}")

    def note(self, lane: str, text: str) -> None:
        self._line(lane, text)

    def lane_verdict(self, lane: str, verdict: str) -> None:
        self._line(lane, f"verdict {verdict}")

    def _lane(self, lane: str) -> LaneView:
        return self._lanes.setdefault(lane, LaneView())

    def _line(self, lane: str, text: str) -> None:
        with contextlib.suppress(OSError):  # `2>&1 | tee` may be gone: the run goes on
            sys.stderr.write(f"[{time.monotonic() - self._began:7.1f} s] {lane}: {safe(text)}\n")
            sys.stderr.flush()


class TableView:
    """The live table; rich asks for it a few times a second."""

    def __init__(self, lanes: Sequence[str]) -> None:
        self._lanes = {lane: LaneView() for lane in lanes}

    def lane_phase(self, lane: str, phase: str) -> None:
        self._lanes[lane].enter(phase)

    def progress(self, lane: str, done: int, total: int) -> None:
        self._lanes[lane].advance(done, total)

    def note(self, lane: str, text: str) -> None:
        self._lanes[lane].note = safe(text, 80)

    def lane_verdict(self, lane: str, verdict: str) -> None:
        self._lanes[lane].enter("done")
        self._lanes[lane].verdict = verdict

    def __rich__(self) -> Table:
        table = Table(box=None, pad_edge=False)
        for heading in ("lane", "phase", "for", "progress", "ETA", "verdict", ""):
            table.add_column(heading)
        for name, view in self._lanes.items():
            idle = view.phase in ("pending", "done")
            eta = view.eta_s()
            table.add_row(
                name,
                view.phase,
                "" if idle else seconds(time.monotonic() - view.since),
                _share(view),
                seconds(eta) if eta is not None else "",
                view.verdict,
                view.note,
            )
        return table


def _share(view: LaneView) -> str:
    if not view.total:
        return ""
    return f"{view.done}/{view.total} ({view.done / view.total:.0%})"
