"""The guardian: `python -m harness.host.guardian LOG HARNESS_PID`. Reads what to watch from standard input;
when that ends without a `done` line, the harness has died; what it had started is stopped here, and the
shared memory, files and sockets that this left behind are removed.

Standard library, `proc`, `shm` and `strays` only: it must be up within milliseconds, cost next to nothing,
and run where the harness's own packages cannot even be imported.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from harness.host import proc, shm, strays

SWEEP_S = 0.1
TERM_S = 10.0  # servers on GPUs take seconds to leave in order
KILL_S = 10.0
QUIET_S = 1.0  # a child between fork and exec carries no mark yet
QUIET_ALIVE_S = 0.2  # the harness lives and left its block by an exception: it is forking nothing now
NAMES_SOMEBODY = 16  # characters besides the wildcards; fewer could be anybody's name
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP)


class Charges:
    """What is watched, and every process that was found to belong to it."""

    def __init__(self) -> None:
        self._marks: set[str] = set()
        self._first: dict[int, int] = {}  # pid and start time of each mark's first process
        self._known: dict[int, int] = {}
        self._shm: set[str] = set()  # names in /dev/shm that they were seen to use
        self._shm_before: set[str] = set()  # what was there before anything was started
        self._patterns: set[str] = set()  # names in /dev/shm and /tmp that can only be theirs

    def obey(self, line: str) -> bool:
        """Take one order; True for the last one, `done`."""
        if not line.endswith("\n"):
            return False  # the harness died while it wrote
        match line.rstrip("\n").split("\t"):
            case ["mark", marker]:
                self._marks.add(marker)
            case ["session", pid, started]:
                self._first[int(pid)] = int(started)
            case ["shm", name]:
                self._shm.add(name)
            case ["before", name]:
                self._shm_before.add(unescaped(name))
            case ["pattern", pattern] if len(pattern.replace("*", "")) >= NAMES_SOMEBODY:
                self._patterns.add(pattern)
            case ["done"]:
                return True
            case _:
                pass
        return False

    def living(self) -> list[proc.Stat]:
        """Every living process under any of the marks."""
        everyone = proc.everybody()
        # A session's number proves something only while its first process is there and the same.
        sessions = [pid for pid, started in self._first.items() if _started(everyone, pid) == started]
        found = proc.family(self._marks, sessions, self._known, everyone)
        self._known.update((process.pid, process.started) for process in found)
        return found

    def note_shm(self) -> None:
        """Only while a process lives can it be seen which shared memory is its own."""
        self._shm |= shm.used_by([process.pid for process in self.living()])

    def remove_shm(self) -> list[str]:
        """Remove what they left in shared memory, now that they are gone; names of what is removed."""
        left = shm.leftovers(frozenset(self._shm_before), self._known.keys(), self._shm)
        ours = {*left.ours, *filter(self._owns, left.unattributed)}
        shm.remove(ours)
        return sorted(ours - shm.snapshot())

    def remove_files(self) -> list[str]:
        """The same for files and sockets in the temporary directory."""
        ours = strays.strays(self._owns)
        strays.remove(ours)
        return sorted(set(ours) - set(strays.strays(self._owns)))

    def _owns(self, path: str) -> bool:
        name = PurePosixPath(path).name
        return any(fnmatchcase(name, pattern) for pattern in self._patterns)


def escaped(name: str) -> str:
    """A name as one word of an order, whatever it holds."""
    return name.encode("unicode_escape").decode("ascii")


def unescaped(word: str) -> str:
    return word.encode("ascii").decode("unicode_escape")


def _started(everyone: Mapping[int, proc.Stat], pid: int) -> int | None:
    process = everyone.get(pid)
    return process.started if process else None


def stop_all(charges: Charges, quiet_s: float) -> tuple[dict[int, str], list[int]]:
    """SIGTERM, a short wait, SIGKILL. Returns what was stopped (pid to words) and what still lives."""
    stopped: dict[int, str] = {}
    if not _rounds(charges, signal.SIGTERM, TERM_S, quiet_s, stopped):
        _rounds(charges, signal.SIGKILL, KILL_S, quiet_s, stopped)
    return stopped, [process.pid for process in charges.living()]


def _rounds(
    charges: Charges, number: signal.Signals, limit_s: float, quiet_s: float, stopped: dict[int, str]
) -> bool:
    """Signal everything found, newcomers too, until nothing has been there for `quiet_s`; False if it never
    comes to that."""
    told: set[tuple[int, int]] = set()
    quiet_since = time.monotonic()
    deadline = quiet_since + limit_s
    while time.monotonic() < deadline:
        living = charges.living()
        for process in living:
            identity = (process.pid, process.started)
            if identity not in told:
                told.add(identity)
                stopped[process.pid] = f"({proc.title(process.pid)}) by {number.name}"
                _signal(process, number)
        if living:
            quiet_since = time.monotonic()
        elif time.monotonic() - quiet_since >= quiet_s:
            return True
        time.sleep(SWEEP_S)
    return False


def _signal(process: proc.Stat, number: signal.Signals) -> None:
    with contextlib.suppress(OSError):  # it ended by itself, or may not be touched: the next round shows
        if proc.is_same(process):
            os.kill(process.pid, number)


def report(
    stopped: Mapping[int, str],
    left: Iterable[int],
    removed: Collection[str],
    files: Collection[str],
    harness_pid: int,
) -> str:
    """One line for people."""
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    what = "; ".join(f"{pid} {words}" for pid, words in stopped.items()) or "nothing was left running"
    alive = f"; STILL ALIVE: {', '.join(map(str, left))}" if left else ""
    memory = f"; removed shared memory: {', '.join(removed)}" if removed else ""
    strayed = f"; removed files: {', '.join(files)}" if files else ""
    told = f"stopped: {what}{alive}{memory}{strayed}"
    return f"{when} harness (pid {harness_pid}) ended without goodbye; {told}\n"


def main(log: str, harness_pid: int) -> None:
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    os.write(sys.stdout.fileno(), b"ready\n")
    charges = Charges()
    if any(charges.obey(os.fsdecode(line)) for line in sys.stdin.buffer):
        return
    alive = os.getppid() == harness_pid
    charges.note_shm()
    stopped, left = stop_all(charges, QUIET_ALIVE_S if alive else QUIET_S)
    removed = [] if left else charges.remove_shm()
    files = [] if left else charges.remove_files()
    if stopped or removed or files or not alive:
        text = report(stopped, left, removed, files, harness_pid)
        with contextlib.suppress(OSError), open(log, "a", encoding="utf-8") as file:  # noqa: PTH123 - light
            file.write(text)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
