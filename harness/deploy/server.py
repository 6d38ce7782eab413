"""One running server of a lane: its process, its log, and whether it is still well."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.engines.base import Engine, Launch
from harness.engines.log_rules import PD_DIFFER, PORT_IN_USE
from harness.errors import HarnessError, TargetError
from harness.findings import Code
from harness.host.logs import LogLine, LogTail, tail
from harness.host.process import ManagedProcess
from harness.host.redact import mask_known, redact_text
from harness.logscan import FatalLine, LogScanner
from harness.logscan.advice import ADVICE
from harness.logscan.last_words import LINES_READ, last_words

LAST_WORDS_S = 2.0


@dataclass(slots=True)
class RunningServer:
    """A started process with the reader of its log. `role` names it among its lane's servers; `secrets` are
    masked in whatever is read from the log. `pulse` is called whenever somebody who waits asks after the
    server, and may raise to end the waiting."""

    role: str
    engine: Engine
    launch: Launch
    process: ManagedProcess
    log: Path
    secrets: frozenset[str] = frozenset()
    pulse: Callable[[], None] = lambda: None
    scanner: LogScanner = field(init=False)
    started: float = field(default_factory=time.monotonic)
    _tail: LogTail = field(init=False)

    def __post_init__(self) -> None:
        self.scanner = LogScanner(self.engine.grammar)
        self._tail = LogTail(self.log)

    def read_log(self) -> None:
        """Feed the scanner with what was written since the last call."""
        self._feed(self._tail.read())

    def assert_alive(self, *, serving: bool) -> None:
        """`pulse`, and then the same as `check`."""
        self.pulse()
        self.check(serving=serving)

    def check(self, *, serving: bool) -> None:
        """Raise when the process has ended or its log shows a fatal line: TargetError, or HarnessError
        (PORT_TAKEN) when the log says that its port was in use, which is not the server's fault.

        `serving` tells a death in service (SERVER_DIED) from one during start-up (SERVER_EXITED).
        """
        ended = self.process.poll() is not None
        self.read_log()
        if not ended and not serving and self.scanner.fatal:
            ended = self._ends_within(LAST_WORDS_S)
            self.read_log()
        if ended:
            self._feed(self._tail.finish())
            self.scanner.close()
        causes = self.scanner.causes()
        if causes and causes[0].cause == PORT_IN_USE:
            raise self._port_taken(causes[0])
        if ended:
            raise self._ended(Code.SERVER_DIED if serving else Code.SERVER_EXITED, causes)
        if causes:
            raise self._fatal(causes[0])

    def _feed(self, lines: Iterable[LogLine]) -> None:
        for number, line in lines:
            self.scanner.feed(number, mask_known(line, self.secrets))

    def _ends_within(self, seconds: float) -> bool:
        """A server that says why it cannot start mostly ends at once: its exit code is worth a moment."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.process.poll() is not None

    def _ended(self, code: Code, causes: list[FatalLine]) -> TargetError:
        when = "while it was serving" if code is Code.SERVER_DIED else "before it was ready"
        what = f"{self._title()} ended {when}: {self.process.exit_description()}"
        if causes:
            kind = causes[0].cause.removesuffix(f": {causes[0].text}")  # an exception is told below
            what += f" ({kind}; {self.log.name}:{causes[0].line})"
        return TargetError(
            what,
            cause=causes[0].text[:300] if causes else "not named in the log",
            fix=self._advice(causes) + self.last_words(causes),
            evidence=f"{self.log}:{causes[0].line}" if causes else str(self.log),
            code=code,
        )

    def _fatal(self, first: FatalLine) -> TargetError:
        if first.cause == PD_DIFFER:
            return self._nodes_differ(first)
        return TargetError(
            f"{self._title()} logged a fatal line: {first.cause}",
            cause=first.text[:300],
            fix=f"whatever it still answers is not to be trusted; read the log around line {first.line}",
            evidence=f"{self.log}:{first.line}",
            code=Code.FATAL_LOG,
        )

    def _nodes_differ(self, first: FatalLine) -> TargetError:
        return TargetError(
            f"a node was refused by {self._title()}: {first.text[:300]}",
            cause=first.cause,
            fix="give the same value to all servers of the lane",
            evidence=f"{self.log}:{first.line}",
            code=Code.PD_MISMATCH,
        )

    def _port_taken(self, first: FatalLine) -> HarnessError:
        return HarnessError(
            f"{self._title()} could not bind its port: {first.text[:200]}",
            cause="another program took the port between the lease and the bind",
            fix="run again; another port is leased then",
            evidence=f"{self.log}:{first.line}",
            code=Code.PORT_TAKEN,
        )

    def _advice(self, causes: list[FatalLine]) -> str:
        if causes and causes[0].cause in ADVICE:
            return ADVICE[causes[0].cause]
        if not causes and (self.process.poll() or 0) < 0:
            return ADVICE["killed by signal"]
        return f"read {self.log.name} from line {causes[0].line} on" if causes else f"read {self.log.name}"

    def last_words(self, causes: Sequence[FatalLine] = ()) -> str:
        """What the end of the log says beside the first of `causes`, as the end of a sentence; empty where
        that is nothing."""
        told = causes[0].text if causes else ""
        lines = last_words(tail(self.log, LINES_READ), self.engine.grammar, told)
        shown = [f"\n    | {redact_text(line, self.secrets)[:300]}" for line in lines]
        return f"; last words of {self.log.name}:{''.join(shown)}" if shown else ""

    def _title(self) -> str:
        return f"{self.engine.name} server `{self.launch.lane}` ({self.role})"
