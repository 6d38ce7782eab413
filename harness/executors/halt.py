"""The end of a run before its time, told to lanes that run in threads of their own."""

import threading

from harness.errors import Interrupted


class Halt:
    """Set once, by the thread that the signal reaches; asked by every loop of a lane that waits."""

    def __init__(self) -> None:
        self._called = threading.Event()
        self._reason = ""

    def call(self, reason: str) -> None:
        """Ask every lane to unwind. The first reason is kept."""
        if not self._called.is_set():
            self._reason = reason
            self._called.set()

    @property
    def called(self) -> bool:
        return self._called.is_set()

    def check(self) -> None:
        """Raises Interrupted once `call` was called."""
        if self._called.is_set():
            raise Interrupted(self._reason)
