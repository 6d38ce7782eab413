"""A blocking request that can be given up: when its server dies, or when the run is to end."""

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
POLL_S = 0.1


def watched(call: Callable[[], T], pulse: Callable[[], None]) -> T:
    """`call()`, made in a thread of its own while `pulse` is called; raises what either raises. When `pulse`
    raises, the thread is left to its request, which ends with the server."""
    result: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            result.append(call())
        except BaseException as error:  # noqa: BLE001 - raised again where it was asked for
            failed.append(error)

    thread = threading.Thread(target=run, name="watched", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(POLL_S)
        if thread.is_alive():
            pulse()
    if failed:
        raise failed[0]
    return result[0]
