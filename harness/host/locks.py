"""Locks between harness processes on one machine: one file per slot, held by `flock`.

A lock belongs to an open file, so it vanishes with its holder, `kill -9` included; no age limit, no clean-up.
The file's text says who holds it and is for people only. Files are never deleted: deleting one while a second
process opens it would give the slot away twice.
"""

import contextlib
import fcntl
import os
import shlex
import stat
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from harness.errors import HarnessError
from harness.host.redact import redact_argv

POLL_S = 0.02
_TEXT_LIMIT = 300


def lock_directory() -> Path:
    """`HARNESS_LOCK_DIR`, else `/tmp/harness-locks-<uid>`; made when missing, private to this user.

    Raises HarnessError for a directory that somebody else could have prepared: locks in it prove nothing.
    """
    given = os.environ.get("HARNESS_LOCK_DIR")
    path = Path(given or f"/tmp/harness-locks-{os.geteuid()}").absolute()  # noqa: S108 - checked below
    try:
        path.mkdir(mode=0o700, parents=bool(given), exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise _unusable(path, str(error)) from error
    if stat.S_ISLNK(found.st_mode):
        raise _unusable(path, "it is a symbolic link")
    if found.st_uid != os.geteuid():
        raise _unusable(path, f"it belongs to uid {found.st_uid}, not to uid {os.geteuid()}")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise _unusable(path, "other users may write to it")
    return path


def _unusable(path: Path, why: str) -> HarnessError:
    return HarnessError(
        f"the lock directory {path} cannot be used: {why}",
        cause="made by somebody else, or HARNESS_LOCK_DIR points to a place that is not this user's own",
        fix="set HARNESS_LOCK_DIR to a directory of your own with mode 0700; all your harness processes on "
        "this machine must use the same one",
    )


class Lock:
    """A held slot; a context manager. Releasing twice does no harm."""

    def __init__(self, name: str, descriptor: int) -> None:
        self.name = name
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        try:
            with contextlib.suppress(OSError):  # the text is for people; the lock is what counts
                os.ftruncate(descriptor, 0)
            # Said aloud, since a forked copy of this process would keep a merely closed lock alive.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        finally:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Holding:
    """Base of leases: holds locks until released; a context manager. A lease declares the field `_locks`."""

    __slots__ = ()
    _locks: list[Lock]

    def keep(self, lock: Lock) -> None:
        """Hold this lock for as long as the lease lasts."""
        self._locks.append(lock)

    def release(self) -> None:
        while self._locks:
            self._locks.pop().release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def try_lock(name: str, purpose: str = "") -> Lock | None:
    """The lock, or None while another process (or another part of this one) holds it. Does not wait.

    `purpose` is what people read about the holder, by default this process's command line.
    """
    path = lock_directory() / name
    while True:
        descriptor = _open(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, path):
                _sign(descriptor, purpose)
                return Lock(name, descriptor)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # somebody deleted the file in between: this lock would exclude nobody


def wait_lock(name: str, deadline: float, purpose: str = "") -> Lock | None:
    """Like `try_lock`, again and again until `deadline` (of `time.monotonic`)."""
    while (lock := try_lock(name, purpose)) is None and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return lock


def is_held(name: str) -> bool:
    """Whether anybody holds the lock now. Takes it for no longer than the question lasts."""
    path = lock_directory() / name
    if not path.exists():
        return False
    descriptor = _open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def holder(name: str) -> str:
    """Who holds the lock, for people: `pid 123, run fp8-mtp`. Meaningful only while it is held."""
    try:
        with (lock_directory() / name).open("rb") as file:
            text = file.read(_TEXT_LIMIT).decode(errors="replace")
    except OSError:
        text = ""
    return " ".join(text.split()) or "a process that left no name"


def _open(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise HarnessError(
            f"the lock file {path} cannot be opened: {error}",
            cause="the directory was tampered with, or the disk is full",
            fix="look at the file; while no harness runs on this machine it may be deleted",
        ) from error


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat(follow_symlinks=False))
    except FileNotFoundError:
        return False


def _sign(descriptor: int, purpose: str) -> None:
    text = f"pid {os.getpid()}, {purpose or shlex.join(redact_argv(sys.argv))}"
    with contextlib.suppress(OSError):  # a full disk must not cost the lock, only its text
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(errors="replace")[:_TEXT_LIMIT] + b"\n", 0)
