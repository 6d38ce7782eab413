"""Protection against the sudden death of the harness itself (`kill -9`, out of memory): a second, tiny
process that stops what was left running. This is the harness's end of it; the other is `guardian.py`.
"""

import contextlib
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import harness
from harness.errors import HarnessError
from harness.host import proc

LOG_NAME = "guard.log"
_GOODBYE_S = 30.0
_NEEDED_BY_PYTHON = ("LD_LIBRARY_PATH", "PYTHONHOME")


class Watched(Protocol):
    """What the guard must know of a process: a ManagedProcess."""

    @property
    def marker(self) -> str: ...

    @property
    def pid(self) -> int: ...


class Guard:
    """The guardian of one run; a context manager.

    It is told what to watch through a pipe, which the kernel closes when this process dies in whatever way.
    Without a goodbye before, the guardian stops all that carries a watched mark and says so in
    `<folder>/guard.log`. After an orderly end it goes silently. An exception that leaves the block sends no
    goodbye: nothing watched should live by then, and the guardian makes sure of it.
    """

    def __init__(self, folder: Path) -> None:
        self.log = folder.absolute() / LOG_NAME
        self._process: subprocess.Popen[bytes] | None = None
        self._mutex = threading.Lock()  # lanes run in threads of their own

    @property
    def pid(self) -> int | None:
        """The guardian's pid while it lives."""
        return self._process.pid if self._process else None

    def __enter__(self) -> Self:
        # No site packages, no working directory in the module path, nothing of our environment: it starts
        # in some milliseconds, holds no folder, and carries no mark that would make it somebody's member.
        root = Path(harness.__file__).parents[1]
        argv = [sys.executable, "-S", "-P", "-m", "harness.host.guardian", str(self.log), str(os.getpid())]
        env = {name: os.environ[name] for name in _NEEDED_BY_PYTHON if name in os.environ}
        try:
            self._process = subprocess.Popen(
                argv,
                env={**env, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"},
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise HarnessError(f"the guardian process cannot be started: {error}") from error
        assert self._process.stdout is not None
        with self._process.stdout as output:
            greeting = output.readline()
        if not greeting:
            code = self._process.wait()
            raise HarnessError(f"the guardian process ended at once with code {code}: {shlex.join(argv)}")
        return self

    def watch(self, what: Watched | str) -> None:
        """From now on, stop this process if the harness dies. A bare marker may be told before anything
        carries it, so that there is no moment without protection.

        Raises HarnessError when the guardian itself is gone.
        """
        if isinstance(what, str):
            self._tell("mark", what)
            return
        self._tell("mark", what.marker)
        process = proc.stat(what.pid)
        if process is not None:
            self._tell("session", str(process.pid), str(process.started))

    def watch_shm(self, names: Iterable[str]) -> None:
        """Shared memory that watched processes were seen to use (names of `shm.used_by`) and that was not
        there before them: if the harness dies, it is removed when they are gone, unless somebody uses it.

        Raises HarnessError when the guardian itself is gone.
        """
        for name in names:
            if name.isprintable():  # others cannot be told; they stay, as without a guardian
                self._tell("shm", name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process = self._process
        if process is None or process.stdin is None:
            return
        try:
            if kind is None:
                with contextlib.suppress(HarnessError):  # it died before us: nothing to say goodbye to
                    self._tell("done")
            with contextlib.suppress(OSError):
                process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GOODBYE_S)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            self._process = None

    def _tell(self, *words: str) -> None:
        if self._process is None or self._process.stdin is None:
            raise RuntimeError("a Guard watches inside its `with` block only")
        if any(character in word for word in words for character in "\t\n\0"):
            raise ValueError(f"no mark may hold tabs or line ends: {words!r}")
        try:
            with self._mutex:
                self._process.stdin.write(os.fsencode("\t".join(words)) + b"\n")
                self._process.stdin.flush()
        except OSError as error:
            raise HarnessError(
                f"the guardian process (pid {self._process.pid}) is gone: {error}",
                cause="somebody killed it, or the machine is out of memory",
                fix="run again; without it, a killed harness would leave its servers running",
            ) from error
