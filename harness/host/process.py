"""Processes that the harness owns: started in a session of their own, found again wherever they go, stopped
to the last child, and nobody else's touched.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import psutil

from harness.errors import Problem
from harness.host import proc
from harness.host.members import handles, kill_marked
from harness.host.proc import MARK
from harness.host.sockets import listening
from harness.host.spawn import become_subreaper, spawn

__all__ = ["ManagedProcess", "StopOutcome", "become_subreaper"]

POLL_S = 0.02
SWEEP_S = 0.05
SETTLE_S = 1.0  # children of a server that ended well need a moment to follow
TERM_S = 3.0  # for those that did not follow, and are told themselves
KILL_S = 10.0  # a process in the GPU driver may take seconds to die even of SIGKILL
UNKNOWN_EXIT = 255  # somebody else collected the exit status, so that nobody can know it any more

How = Literal["exited", "terminated", "killed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StopOutcome:
    """How a stop went.

    `how`: `exited` by itself before the stop, `terminated` by SIGTERM, or `killed`: SIGKILL was needed for
    the process or one of its children (`forced` lists them). `leaked` are still alive in spite of it.
    `exit_code` is None only where the process itself leaked.
    """

    exit_code: int | None
    how: How
    leaked: tuple[int, ...]
    seconds: float
    forced: tuple[int, ...] = ()


class ManagedProcess:
    """One started server and all that it started in turn. Made by `start`, ended by `stop`."""

    def __init__(self, popen: subprocess.Popen[bytes], *, name: str, marker: str, log: Path) -> None:
        self.name = name
        self.marker = marker
        self.log = log
        self._popen = popen
        self._exit_code: int | None = None
        self._reaped = False
        self._collected_elsewhere = False
        self._known: dict[int, int] = {}  # pid -> start time, of every process ever seen in the family
        self._told: set[int] = set()
        self._forced: set[int] = set()
        self._outcome: StopOutcome | None = None
        first = proc.stat(popen.pid)
        self._started = first.started if first else 0
        self._remember(first)

    @classmethod
    def start(
        cls,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        log: Path,
        marker: str,
        cpus: Sequence[int] = (),
        name: str,
    ) -> Self:
        """Start `argv` with exactly `env` plus the mark `HARNESS_RUN_MARK=<marker>` and `SPT_NOENV=1`,
        output appended to `log`, bound to `cpus` from its first instruction.

        `marker` is `<run id>:<name>`, unique to this process. Raises ConfigError when there is no such
        program, HarnessError when the log or the cores cannot be had.
        """
        marked = {**env, MARK: marker, "SPT_NOENV": "1"}  # setproctitle would write over the mark otherwise
        try:
            popen = spawn(argv, env=marked, cwd=cwd, log=log, cpus=cpus, name=name)
        except Problem:
            raise
        except BaseException:
            kill_marked(marker)  # an interrupt between fork and return must not leave an unknown child
            raise
        return cls(popen, name=name, marker=marker, log=log)

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def seen_pids(self) -> frozenset[int]:
        """Every pid that was ever seen in the family, itself included."""
        return frozenset(self._known)

    def poll(self) -> int | None:
        """Exit code, negative for a signal; None while it runs.

        The ended process stays unreaped until `stop`: meanwhile its pid, which is also its session's
        number, cannot be given to a stranger.
        """
        if self._exit_code is None:
            try:
                ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                self._reaped = self._collected_elsewhere = True
                self._exit_code = UNKNOWN_EXIT
            else:
                if ended is not None:
                    by_itself = ended.si_code == os.CLD_EXITED
                    self._exit_code = ended.si_status if by_itself else -ended.si_status
        return self._exit_code

    def exit_description(self) -> str:
        """How it ended, for people: `exit code 3`, `killed by SIGKILL (9), often the kernel's ...`."""
        code = self.poll()
        if code is None:
            return "still running"
        if self._collected_elsewhere:
            return "exit code unknown, somebody else collected it"
        if code >= 0:
            wrapped = f" (128 + {_signal_name(code - 128)}: a child was killed)" if 128 < code < 160 else ""
            return f"exit code {code}{wrapped}"
        text = f"killed by {_signal_name(-code)} ({-code})"
        if self.pid in self._forced or (-code == signal.SIGTERM and self.pid in self._told):
            return f"{text}, sent by the harness"
        hints: dict[int, str] = {
            signal.SIGKILL: ", often the kernel's out-of-memory killer",
            signal.SIGSEGV: ", it crashed",
            signal.SIGABRT: ", it gave up by itself (abort)",
        }
        return text + hints.get(-code, "")

    def members(self) -> list[psutil.Process]:
        """All living processes of this server, re-parented ones too. Zombies do not count, and those that
        were adopted are reaped here."""
        everyone = proc.everybody()
        sessions = () if self._reaped else (self.pid,)
        living = proc.family([self.marker], sessions, self._known, everyone, since=self._started)
        for process in living:
            self._remember(process)
        self._reap_adopted(everyone)
        return handles(living)

    def owns_port(self, port: int, host: str = "127.0.0.1") -> bool:
        """Whether members, and nobody but members, listen where a client of `host` would connect."""
        inodes = {entry.inode for entry in listening(port, host)}
        if not inodes:
            return False
        inodes -= proc.socket_inodes(self.pid)  # mostly it is the process itself
        for member in self.members() if inodes else ():
            inodes -= proc.socket_inodes(member.pid)
        return not inodes

    def signal(self, number: int) -> None:
        """Send a signal to the process alone, if it still runs. Safe from any thread."""
        if self.poll() is None:
            self._told.add(self.pid)
            with contextlib.suppress(OSError):  # it may have changed its user
                os.kill(self.pid, number)  # unreaped, so the pid is still its own

    def stop(self, grace_s: float) -> StopOutcome:
        """End the process and its whole family; stopping twice does no harm.

        SIGTERM to the process alone (signalling the group makes an orderly shutdown look like a crash), up
        to `grace_s` seconds for it, then SIGTERM to the members that remain, then SIGKILL to each. Every
        step is tried even if an earlier one raises. Raises nothing of its own: see `leaked`.
        """
        if self._outcome is not None and not self._outcome.leaked:
            return self._outcome
        began = time.monotonic()
        with contextlib.ExitStack() as steps:  # unwinds from the last to the first
            steps.callback(self._reap)
            steps.callback(self._kill_rest)
            steps.callback(self._terminate_rest, grace_s)
            steps.callback(self._terminate_main, grace_s)
            self.members()  # remembered now, while descent still shows them
        told = self.pid in self._told
        how: How = "killed" if self._forced else "terminated" if told else "exited"
        self._outcome = StopOutcome(
            exit_code=self.poll(),
            how=how,
            leaked=tuple(member.pid for member in self.members()),
            seconds=time.monotonic() - began,
            forced=tuple(sorted(self._forced)),
        )
        return self._outcome

    def _terminate_main(self, grace_s: float) -> None:
        if self.pid not in self._told:  # a second one means `at once` to some servers
            self.signal(signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while self.poll() is None and time.monotonic() < deadline:
            time.sleep(POLL_S)

    def _terminate_rest(self, grace_s: float) -> None:
        ended = self.poll() is not None
        if ended and self._gone_within(min(SETTLE_S, grace_s)):
            return
        for member in self.members():
            self._told.add(member.pid)
            with contextlib.suppress(psutil.Error):
                member.terminate()
        self._gone_within(min(TERM_S, grace_s))

    def _kill_rest(self) -> None:
        deadline = time.monotonic() + KILL_S
        empty_sweeps = 0
        while empty_sweeps < 2 and time.monotonic() < deadline:  # one sweep may miss a child being forked
            members = self.members()
            empty_sweeps = 0 if members else empty_sweeps + 1
            for member in members:
                with contextlib.suppress(psutil.Error):
                    member.kill()
                    self._forced.add(member.pid)
            time.sleep(SWEEP_S if members else POLL_S)

    def _gone_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.members():
            if time.monotonic() >= deadline:
                return False
            time.sleep(SWEEP_S)
        return True

    def _reap(self) -> None:
        if self.poll() is not None:
            self._popen.poll()
            self._reaped = True

    def _reap_adopted(self, everyone: Mapping[int, proc.Stat]) -> None:
        """Only the family's: another part of this program waits for its own children's exit codes."""
        for process in everyone.values():
            ours = self._known.get(process.pid) == process.started or (
                process.session == self.pid and not self._reaped
            )
            adopted = process.parent == os.getpid() and process.pid != self.pid
            if ours and adopted and not process.living:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(process.pid, os.WNOHANG)

    def _remember(self, process: proc.Stat | None) -> None:
        if process is not None:
            self._known[process.pid] = process.started


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
