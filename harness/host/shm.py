"""Shared memory that outlives its processes: /dev/shm and System V segments.

Attribution is by evidence, since other programs of the same user come and go meanwhile. A System V segment
knows the pid that made it. A file in /dev/shm does not: it is ours only if our processes were seen to have it
open or mapped while they lived. What is new, of our user, and used by nobody, is told apart as unattributed,
and never touched.
"""

import contextlib
import ctypes
import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from harness.host import proc

FOLDER = Path("/dev/shm")  # noqa: S108 - read only
_SYSV = Path("/proc/sysvipc/shm")
IPC_RMID = 0

ShmSnapshot: TypeAlias = frozenset[str]
"""Names: `/dev/shm/<file>`, and `System V segment <id> (key 0x…, by pid <creator>)`."""


@dataclass(frozen=True, slots=True)
class _Segment:
    key: int
    shmid: int
    creator: int
    attached: int
    uid: int

    @property
    def name(self) -> str:
        return f"System V segment {self.shmid} (key {self.key & 0xFFFFFFFF:#010x}, by pid {self.creator})"


def snapshot() -> ShmSnapshot:
    """What is there now."""
    files = (entry.path for entry in _files())
    return frozenset([*map(_printable, files), *(segment.name for segment in _segments())])


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Names that outlived a lane: surely its own, and those that may be somebody else's."""

    ours: tuple[str, ...]
    unattributed: tuple[str, ...]


def used_by(pids: Collection[int]) -> frozenset[str]:
    """Names in /dev/shm that these living processes have open or mapped now."""
    return frozenset(_printable(path) for pid in pids for path in _used(pid))


def leftovers(before: ShmSnapshot, pids: Collection[int], used: Collection[str]) -> Leftovers:
    """What is new since `before`, now that `pids` have ended; `used` is what `used_by` told."""
    ours: list[str] = []
    unattributed: list[str] = []
    for segment in _segments():
        if segment.name in before:
            continue
        if segment.creator in pids:
            ours.append(segment.name)
        elif segment.uid == os.getuid() and not segment.attached and proc.stat(segment.creator) is None:
            unattributed.append(segment.name)
    for name in _new_files(before, pids):
        (ours if name in used else unattributed).append(name)
    return Leftovers(tuple(ours), tuple(unattributed))


def sysv_id(name: str) -> int | None:
    """The number of a System V segment by its name here; None for other names."""
    match = re.match(r"System V segment (\d+) ", name)
    return int(match[1]) if match else None


def sysv_creator(name: str) -> int | None:
    """The process that made a System V segment, by the segment's name here; None for other names."""
    match = re.match(r"System V segment \d+ .*by pid (\d+)\)$", name)
    return int(match[1]) if match else None


def remove(names: Collection[str]) -> None:
    """Remove names that `leftovers` told as ours. What cannot be removed stays: see `snapshot`."""
    for segment in _segments():
        if segment.name in names:
            ctypes.CDLL(None).shmctl(segment.shmid, IPC_RMID, None)
    for entry in _files():
        if _printable(entry.path) in names:
            with contextlib.suppress(OSError):
                Path(entry.path).unlink()


def _new_files(before: ShmSnapshot, pids: Collection[int]) -> list[str]:
    """New files of our user that no living process outside `pids` has open or mapped."""
    new = {}
    for entry in _files():
        with contextlib.suppress(FileNotFoundError):
            name = _printable(entry.path)
            if name not in before and entry.stat(follow_symlinks=False).st_uid == os.getuid():
                new[entry.path] = name
    for pid in proc.pids() if new else ():
        for path in _used(pid) if pid not in pids else ():
            new.pop(path, None)
    return sorted(new.values())


def _files() -> list[os.DirEntry[str]]:
    try:
        with os.scandir(FOLDER) as entries:
            return list(entries)
    except OSError:  # some containers have no /dev/shm
        return []


def _segments() -> list[_Segment]:
    try:
        lines = _SYSV.read_text().splitlines()
    except OSError:  # a kernel without System V IPC
        return []
    columns = lines[0].split()
    rows = (dict(zip(columns, map(int, line.split()), strict=False)) for line in lines[1:])
    return [_Segment(row["key"], row["shmid"], row["cpid"], row["nattch"], row["uid"]) for row in rows]


def _used(pid: int) -> Iterator[str]:
    """Paths of the entries in /dev/shm that a process has open or mapped, as far as this user may look."""
    top = f"{FOLDER}/"
    for path in proc.files_in_use(pid, top):
        yield top + path.removeprefix(top).split("/")[0]


def _printable(path: str) -> str:
    """Names may hold any byte; the record may not."""
    return os.fsencode(path).decode(errors="backslashreplace")
