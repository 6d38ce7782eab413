"""What a person may watch while a run is going on. The executor tells; a view listens."""

from typing import Protocol


class Watcher(Protocol):
    """Receives what happens, in the order it happens. Must return quickly and never raise."""

    def lane_phase(self, lane: str, phase: str) -> None:
        """A lane entered a phase: waiting, launching, loading, ready, a check's name, stopping, done."""
        ...

    def progress(self, lane: str, done: int, total: int) -> None:
        """The current check of the lane has finished `done` of `total` requests."""
        ...

    def note(self, lane: str, text: str) -> None:
        """One line worth reading: where a log is, why a lane is skipped."""
        ...

    def lane_verdict(self, lane: str, verdict: str) -> None:
        """The lane is judged."""
        ...


class Silent:
    """Nobody watches."""

    def lane_phase(self, lane: str, phase: str) -> None: ...

    def progress(self, lane: str, done: int, total: int) -> None: ...

    def note(self, lane: str, text: str) -> None: ...

    def lane_verdict(self, lane: str, verdict: str) -> None: ...
