"""Processes found by their mark, as handles that cannot hit a stranger."""

import contextlib
import time
from collections.abc import Sequence

import psutil

from harness.host import proc

_FORK_TO_EXEC_S = 0.3
_SWEEP_S = 0.05


def handles(processes: Sequence[proc.Stat]) -> list[psutil.Process]:
    """psutil checks pid and start time before it signals, so a pid in use again is safe from us."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            handle = psutil.Process(process.pid)
            if proc.is_same(process):
                found.append(handle)
    return found


def kill_marked(marker: str) -> None:
    """SIGKILL all that carries the mark, and what is about to."""
    deadline = time.monotonic() + _FORK_TO_EXEC_S
    while time.monotonic() < deadline:  # the child carries its mark only once it runs its own program
        for handle in handles(proc.family([marker], (), {}, proc.everybody())):
            with contextlib.suppress(psutil.Error):
                handle.kill()
        time.sleep(_SWEEP_S)
