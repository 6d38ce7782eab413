"""What /proc says about processes: identity, mark, session, children, sockets.

Standard library only, since the guardian process lives on this module alone. A process may end between any
two reads: everything here says None, False or leaves it out, and never raises for that.
"""

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

MARK = "HARNESS_RUN_MARK"
_DEAD = ("Z", "X", "x")


class Stat(NamedTuple):
    """One process. `started` is in clock ticks since boot: with the pid it is the process's identity."""

    pid: int
    state: str
    parent: int
    session: int
    started: int

    @property
    def living(self) -> bool:
        return self.state not in _DEAD


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208 - hot


def stat(pid: int) -> Stat | None:
    """None when there is no such process."""
    text = _read(pid, "stat")
    if not text:
        return None
    # the second field is the title in brackets, which may hold spaces and brackets of its own
    fields = text[text.rindex(b")") + 2 :].split()
    return Stat(pid, fields[0].decode(), int(fields[1]), int(fields[3]), int(fields[19]))


def argv(pid: int) -> list[str]:
    """The command line; empty when it cannot be read. May hold secrets."""
    words = _read(pid, "cmdline").rstrip(b"\0").split(b"\0")
    return [word.decode(errors="replace") for word in words if word]


def title(pid: int) -> str:
    """The short name that `ps` and `top` show."""
    return _read(pid, "comm").decode(errors="replace").strip() or "gone"


def mark_of(pid: int) -> str | None:
    """The value of `HARNESS_RUN_MARK` that the process was started with."""
    front = f"{MARK}=".encode()
    for entry in _read(pid, "environ").split(b"\0"):
        if entry.startswith(front):
            return os.fsdecode(entry.removeprefix(front))
    return None


def socket_inodes(pid: int) -> set[int]:
    """Inodes of the sockets that the process has open; empty where that may not be looked at."""
    return {int(target[8:-1]) for target in _links(pid) if target.startswith("socket:[")}


def files_in_use(pid: int, front: str) -> set[str]:
    """Paths below `front` that the process has mapped or open; empty where that may not be looked at."""
    found = {path for path in _links(pid) if path.startswith(front)}
    for line in _read(pid, "maps").splitlines():
        fields = line.split(maxsplit=5)  # address, permissions, offset, device, inode, path
        if len(fields) == 6 and fields[5].startswith(os.fsencode(front)):
            found.add(os.fsdecode(fields[5]))
    return found


def everybody() -> dict[int, Stat]:
    """All processes of the machine, zombies too, except this one."""
    own = os.getpid()
    found = (stat(pid) for pid in pids() if pid != own)
    return {process.pid: process for process in found if process is not None}


def family(
    marks: Collection[str],
    sessions: Collection[int],
    known: Mapping[int, int],
    everyone: Mapping[int, Stat],
    *,
    since: int = 0,
) -> list[Stat]:
    """The living processes of a server, by four nets: those that carry one of the marks; those in one of the
    sessions; those in `known` (pid to `started`), wherever they went since; and all that descend from these.

    Environment marks are lost to a program that wipes its environment, sessions to one that calls setsid,
    descent to one whose parent ended; hardly anything slips through all of them. What started before
    `since` is not asked for its mark: on a busy host that is nearly everybody.
    """
    found: dict[int, Stat] = {}
    for process in everyone.values():
        if (
            known.get(process.pid) == process.started
            or process.session in sessions
            or (process.started >= since and process.living and mark_of(process.pid) in marks)
        ):
            found[process.pid] = process
    _add_descendants(found, everyone.values())
    return [process for process in found.values() if process.living and is_same(process)]


def is_same(process: Stat) -> bool:
    """Whether the pid still means the same process (pids are used again)."""
    now = stat(process.pid)
    return now is not None and now.started == process.started


def _add_descendants(found: dict[int, Stat], everyone: Iterable[Stat]) -> None:
    children: dict[int, list[Stat]] = {}
    for process in everyone:
        children.setdefault(process.parent, []).append(process)
    waiting = list(found)
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child.pid not in found:
                found[child.pid] = child
                waiting.append(child.pid)


def _links(pid: int) -> Iterator[str]:
    """What the process's open descriptors point to."""
    try:
        names = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208 - hot
    except OSError:
        return
    for name in names:
        with contextlib.suppress(OSError):
            yield os.readlink(f"/proc/{pid}/fd/{name}")  # noqa: PTH115 - hot


def _read(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:  # noqa: PTH123 - hot
            return file.read()
    except OSError:
        return b""
