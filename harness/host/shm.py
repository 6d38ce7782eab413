"""Shared memory that outlives its processes: /dev/shm and System V segments. Looked at, never deleted.

Attribution is by evidence. A System V segment knows the pid that made it. A file in /dev/shm does not: a new
one of our user's counts only if no living process that is not ours has it open or mapped, since other
programs of the same user come and go meanwhile.
"""

import contextlib
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from harness.host import proc

FOLDER = Path("/dev/shm")  # noqa: S108 - read only
_SYSV = Path("/proc/sysvipc/shm")

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


def leftovers(before: ShmSnapshot, pids: Collection[int]) -> list[str]:
    """Names that are new since `before` and belong to `pids`, processes that have ended by now."""
    return [*_left_segments(before, pids), *_left_files(before, pids)]


def _left_segments(before: ShmSnapshot, pids: Collection[int]) -> Iterator[str]:
    for segment in _segments():
        orphaned = segment.uid == os.getuid() and not segment.attached and proc.stat(segment.creator) is None
        if segment.name not in before and (segment.creator in pids or orphaned):
            yield segment.name


def _left_files(before: ShmSnapshot, pids: Collection[int]) -> list[str]:
    new = {}
    for entry in _files():
        with contextlib.suppress(FileNotFoundError):
            if (
                _printable(entry.path) not in before
                and entry.stat(follow_symlinks=False).st_uid == os.getuid()
            ):
                new[entry.path] = _printable(entry.path)
    if new:
        for path in _used_by_others(pids):
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


def _used_by_others(pids: Collection[int]) -> Iterator[str]:
    """Paths of the entries in /dev/shm that some living process outside `pids` has open or mapped, as far as
    this user may look."""
    top = f"{FOLDER}/"
    for pid in proc.pids():
        if pid in pids:
            continue
        for path in proc.files_in_use(pid, top):
            yield top + path.removeprefix(top).split("/")[0]


def _printable(path: str) -> str:
    """Names may hold any byte; the record may not."""
    return os.fsencode(path).decode(errors="backslashreplace")
