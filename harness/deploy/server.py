"""One running server of a lane: its process, its log, and whether it is still well."""

import time
from dataclasses import dataclass, field
from pathlib import Path

from harness.engines.base import Engine, Launch
from harness.errors import TargetError
from harness.findings import Code
from harness.host.logs import LogTail, tail
from harness.host.process import ManagedProcess
from harness.logscan import LogScanner

LOG_TAIL_LINES = 12


@dataclass(slots=True)
class RunningServer:
    """A started process with the reader of its log. `role` names it among its lane's servers."""

    role: str
    engine: Engine
    launch: Launch
    process: ManagedProcess
    log: Path
    scanner: LogScanner = field(init=False)
    started: float = field(default_factory=time.monotonic)
    _tail: LogTail = field(init=False)

    def __post_init__(self) -> None:
        self.scanner = LogScanner(self.engine.grammar)
        self._tail = LogTail(self.log)

    def read_log(self) -> None:
        """Feed the scanner with what was written since the last call."""
        for number, line in self._tail.read():
            self.scanner.feed(number, line)

    def assert_alive(self, *, serving: bool) -> None:
        """Raise TargetError when the process has ended or its log shows a fatal line.

        `serving` tells a death in service (SERVER_DIED) from one during start-up (SERVER_EXITED).
        """
        code = self.process.poll()
        self.read_log()
        if code is not None:
            for number, line in self._tail.finish():
                self.scanner.feed(number, line)
            self.scanner.close()
            raise self._ended(Code.SERVER_DIED if serving else Code.SERVER_EXITED)
        if self.scanner.fatal:
            raise self._fatal()

    def _ended(self, code: Code) -> TargetError:
        when = "while it was serving" if code is Code.SERVER_DIED else "before it was ready"
        causes = self.scanner.causes()
        what = f"{self._title()} ended {when}: {self.process.exit_description()}"
        if causes:
            what += f" ({causes[0].cause}; {self.log.name}:{causes[0].line})"
        return TargetError(
            what,
            cause=causes[0].text[:300] if causes else "not named in the log",
            fix=f"last lines of its log:\n{self.log_tail()}",
            evidence=f"{self.log}:{causes[0].line}" if causes else str(self.log),
            code=code,
        )

    def _fatal(self) -> TargetError:
        first = self.scanner.causes()[0]
        return TargetError(
            f"{self._title()} logged a fatal line: {first.cause}",
            cause=first.text[:300],
            fix=f"whatever it still answers is not to be trusted; read the log around line {first.line}",
            evidence=f"{self.log}:{first.line}",
            code=Code.FATAL_LOG,
        )

    def log_tail(self) -> str:
        return "\n".join(f"    | {line[:300]}" for line in tail(self.log, LOG_TAIL_LINES))

    def _title(self) -> str:
        return f"{self.engine.name} server `{self.launch.lane}` ({self.role})"
