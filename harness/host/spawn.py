"""Starting one child process: session, output, cores; and what to say when that fails."""

import contextlib
import ctypes
import errno
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from harness.errors import ConfigError, HarnessError, Problem
from harness.findings import Code

_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> None:
    """Orphans of our servers become our children, instead of init's: seen by descent, and reaped."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise HarnessError(f"this process cannot become a child subreaper: {reason}")


def spawn(
    argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path, cpus: Sequence[int], name: str
) -> subprocess.Popen[bytes]:
    """Start `argv` in a new session, output appended to `log`. Raises ConfigError or HarnessError."""
    with _opened(log) as output, _bound_to(cpus):
        try:
            return subprocess.Popen(
                list(argv),
                env=env,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except (OSError, ValueError, IndexError) as error:
            raise _not_started(name, argv, cwd, error) from error


@contextlib.contextmanager
def _opened(log: Path) -> Iterator[int]:
    """A descriptor, so that no reader is needed: an unread pipe stops a chatty server for ever."""
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise HarnessError(
            f"the log {log} cannot be opened: {error.strerror}",
            cause="the disk is full" if full else "the directory is missing or not writable",
            fix="make room, or choose another --runs-dir",
            code=Code.DISK_FULL if full else None,
        ) from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _bound_to(cpus: Sequence[int]) -> Iterator[None]:
    """Bind the calling thread, whose mask the child inherits at the fork: set afterwards, it would miss the
    threads that the child has made by then."""
    if not cpus:
        yield
        return
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:
        raise HarnessError(
            f"no process may be bound to the cores {list(cpus)}: {error.strerror}",
            cause="they lie outside this process's own affinity mask or cgroup",
        ) from error
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _not_started(name: str, argv: Sequence[str], cwd: Path, error: Exception) -> Problem:
    program = argv[0] if argv else "(empty command)"
    if not cwd.is_dir():
        return HarnessError(f"{name} cannot be started in {cwd}: there is no such directory")
    if isinstance(error, FileNotFoundError) and Path(program).exists():
        why = "the file is there, but the interpreter named in its first line is not"
    elif isinstance(error, FileNotFoundError):
        why = "there is no such program"
    else:
        why = str(error)
    return ConfigError(
        f"{name} cannot be started: `{program}`: {why}",
        fix="install it, or name another one (`python:` or `binary:` of the lane); `harness doctor` lists "
        "what was found",
    )
