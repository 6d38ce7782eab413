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
from harness.host import proc, shm
from harness.host.guardian import escaped

LOG_NAME = "guard.log"
REPLACED_AT_MOST = 5  # times; whoever kills more of them means it
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

    A guardian that dies is replaced at once, and the new one told all that the old one knew. `losses` has a
    sentence about each that died.
    """

    def __init__(self, folder: Path) -> None:
        self.log = folder.absolute() / LOG_NAME
        self.losses: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._told: dict[tuple[str, ...], None] = {}  # every order, in its sequence
        self._mutex = threading.RLock()  # lanes run in threads of their own, and one looks after the guardian
        self._keeper = threading.Thread(target=self._keep, name="guard", daemon=True)

    @property
    def pid(self) -> int | None:
        """The guardian's pid while it lives."""
        return self._process.pid if self._process else None

    def __enter__(self) -> Self:
        before = shm.snapshot()
        self._process = self._start()
        for name in before:
            self._tell("before", escaped(name))
        self._keeper.start()
        return self

    def watch(self, what: Watched | str) -> None:
        """From now on, stop this process if the harness dies. A bare marker may be told before anything
        carries it, so that there is no moment without protection.

        Raises HarnessError when the guardian itself is gone and cannot be replaced.
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

        Raises HarnessError when the guardian itself is gone and cannot be replaced.
        """
        for name in names:
            if name.isprintable():  # others cannot be told; they stay, as without a guardian
                self._tell("shm", name)

    def watch_names(self, patterns: Iterable[str]) -> None:
        """Shell patterns of names in `/dev/shm` and `/tmp` that can only be those of watched processes: if
        the harness dies, what has such a name is removed when they are gone.

        Raises HarnessError when the guardian itself is gone and cannot be replaced.
        """
        for pattern in patterns:
            self._tell("pattern", pattern)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._mutex:  # from here on nobody replaces it
            process, self._process = self._process, None
        if process is None or process.stdin is None:
            return
        try:
            with contextlib.suppress(OSError):  # it died before us: nothing to say goodbye to
                if kind is None:
                    _write(process, ("done",))
                process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GOODBYE_S)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()

    def _tell(self, *words: str) -> None:
        if any(character in word for word in words for character in "\t\n\0"):
            raise ValueError(f"no mark may hold tabs or line ends: {words!r}")
        with self._mutex:
            if self._process is None:
                raise RuntimeError("a Guard watches inside its `with` block only")
            if words in self._told:
                return
            self._told[words] = None
            try:
                _write(self._process, words)
            except OSError:
                try:
                    self._replace(self._process)
                except HarnessError:
                    del self._told[words]
                    raise

    def _keep(self) -> None:
        """Wait for the guardian's end, in a thread of its own: it may die while nobody tells it anything."""
        while (process := self._process) is not None:
            process.wait()
            try:
                self._replace(process)
            except HarnessError as error:  # raised again at whoever has something to tell it
                self.losses.append(error.what)
                return

    def _replace(self, lost: subprocess.Popen[bytes]) -> None:
        """A new guardian that knows all, unless another thread was quicker. Raises HarnessError."""
        with self._mutex:
            if self._process is not lost:
                return
            code = lost.wait()
            what = f"the guardian process (pid {lost.pid}) ended with code {code}"
            if len(self.losses) >= REPLACED_AT_MOST:
                raise _gone(f"{what}, the last of {REPLACED_AT_MOST + 1}")
            new = self._start()
            with contextlib.suppress(OSError):  # what it was not told, its own successor will be
                for words in self._told:
                    _write(new, words)
            self._process = new
            self.losses.append(f"{what}; another one (pid {new.pid}) took its place, and knows all it knew")
            if lost.stdin is not None:
                with contextlib.suppress(OSError):
                    lost.stdin.close()

    def _start(self) -> subprocess.Popen[bytes]:
        # No site packages, no working directory in the module path, nothing of our environment: it starts
        # in some milliseconds, holds no folder, and carries no mark that would make it somebody's member.
        root = Path(harness.__file__).parents[1]
        argv = [sys.executable, "-S", "-P", "-m", "harness.host.guardian", str(self.log), str(os.getpid())]
        env = {name: os.environ[name] for name in _NEEDED_BY_PYTHON if name in os.environ}
        try:
            process = subprocess.Popen(
                argv,
                env={**env, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"},
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise _gone(f"the guardian process cannot be started: {error}") from error
        assert process.stdout is not None
        with process.stdout as output:
            greeting = output.readline()
        if not greeting:
            code = process.wait()
            raise _gone(f"the guardian process ended at once with code {code}: {shlex.join(argv)}")
        return process


def _gone(what: str) -> HarnessError:
    return HarnessError(
        what,
        cause="somebody killed it, or the machine is out of memory",
        fix="run again; without it, a killed harness would leave its servers running",
    )


def _write(process: subprocess.Popen[bytes], words: tuple[str, ...]) -> None:
    assert process.stdin is not None
    process.stdin.write(os.fsencode("\t".join(words)) + b"\n")
    process.stdin.flush()
