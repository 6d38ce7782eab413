"""The evidence files of the recording proxy: one line per prompt, and one line per HTTP request.

Lines are written whole, a few milliseconds after their request ends, so a kill loses only what was in flight.
A write that fails is never silent: `lost_evidence` says so, and the caller must ask.
"""

import json
import os
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from harness.errors import HarnessError
from harness.evidence.recorder.lines import Body, Exchange, prompt_lines, raw_line
from harness.evidence.recorder.prompts import Ask, dialect_of, read_ask
from harness.findings import Code

RAW_NAME = "raw_responses.jsonl"


@dataclass(frozen=True, slots=True)
class Counts:
    """Prompts: `seen` have arrived; of these `finished` were answered soundly and `failed` were not."""

    seen: int = 0
    finished: int = 0
    failed: int = 0


class Journal:
    """Writes the evidence. Used from one thread; `counts` and `lost_evidence` may be read from any."""

    def __init__(self, out: Path) -> None:
        """Create `out` and the raw file beside it. Raises HarnessError where that cannot be done, also when
        one is there already: evidence is never overwritten."""
        self._born = time.monotonic()
        self._prompts = _JsonLines(out)
        try:
            self._raw = _JsonLines(out.with_name(RAW_NAME))
        except HarnessError:
            self._prompts.close()
            raise
        self._requests = 0
        self._todo: deque[tuple[Callable[[Exchange], None], Exchange]] = deque()
        self._attempts: Counter[tuple[str, str]] = Counter()
        self._trouble: str | None = None
        self._opened_s = 0.0
        self.counts = Counts()

    @property
    def lost_evidence(self) -> str | None:
        """What was lost, in words; None while everything is on file."""
        return self._prompts.lost or self._raw.lost or self._trouble

    @property
    def backlog(self) -> int:
        """Steps of work not done yet."""
        return len(self._todo)

    def lose(self, what: str) -> None:
        """Say that evidence is lost for a reason outside of this class."""
        self._trouble = self._trouble or what

    def now_s(self) -> float:
        """Seconds since the recording began."""
        return time.monotonic() - self._born

    def open(self) -> None:
        """The server is there now: what was held until this moment begins with it."""
        self._opened_s = self.now_s()

    def begin(self, method: str, path: str, request: Body, secrets: tuple[str, ...] = ()) -> Exchange:
        """A request has arrived whole. Cheap: what it asks for is read later, by `work`."""
        exchange = self._open(method, path, request, secrets)
        self._todo.append((self._understand, exchange))
        return exchange

    def unread(self, method: str, path: str, why: str) -> None:
        """A request never arrived whole: nobody knows its prompts."""
        exchange = self._open(method, path, Body(b""), ())
        exchange.error = why
        self.finish(exchange)

    def finish(self, exchange: Exchange) -> None:
        """The request is over, however it ended. Cheap: its lines are written later, by `work`."""
        exchange.finished_s = self.now_s()
        exchange.started_s = max(exchange.started_s, self._opened_s)
        self._todo.append((self._write, exchange))

    def work(self, steps: int) -> bool:
        """Do up to that many steps of reading and writing, in order; whether there is more to do."""
        for _ in range(min(steps, len(self._todo))):
            step, exchange = self._todo.popleft()
            try:
                step(exchange)
            except Exception as error:  # noqa: BLE001 - a bug in here costs the verdict, not the answers
                self.lose(f"request {exchange.http_id} was not recorded: {type(error).__name__}: {error}")
        return bool(self._todo)

    def close(self) -> None:
        """Write what is left and flush it to the disk; a full one may speak up only now."""
        self.work(len(self._todo))
        self._prompts.close()
        self._raw.close()

    def _open(self, method: str, path: str, request: Body, secrets: tuple[str, ...]) -> Exchange:
        http_id = self._requests
        self._requests += 1
        return Exchange(
            http_id=http_id,
            method=method,
            path=path,
            received_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            started_s=self.now_s(),
            request=request,
            secrets=secrets,
        )

    def _understand(self, exchange: Exchange) -> None:
        dialect = dialect_of(exchange.path) if exchange.method == "POST" else None
        if dialect is not None:
            exchange.ask = read_ask(dialect, exchange.request.json)
            exchange.first_seq = self.counts.seen
            exchange.attempts = self._attempts_of(exchange.ask)
            self._count(seen=len(exchange.ask.prompts))

    def _write(self, exchange: Exchange) -> None:
        answer = Body(b"".join(exchange.chunks), exchange.encoding)
        self._raw.write(raw_line(exchange, answer) + "\n")
        if exchange.ask is not None:
            lines = prompt_lines(exchange, exchange.ask, answer)
            self._prompts.write("".join(json.dumps(line) + "\n" for line in lines))
            failed = sum(1 for line in lines if line["error"] is not None)
            self._count(finished=len(lines) - failed, failed=failed)

    def _count(self, *, seen: int = 0, finished: int = 0, failed: int = 0) -> None:
        now = self.counts
        self.counts = Counts(now.seen + seen, now.finished + finished, now.failed + failed)

    def _attempts_of(self, ask: Ask) -> tuple[int, ...]:
        """Which time this is that each prompt is asked with these settings. The same prompt twice in one
        batch is a question asked twice, not a retry."""
        keys = [(prompt.sha256 or "", ask.settings) for prompt in ask.prompts]
        self._attempts.update(set(keys))
        return tuple(self._attempts[key] if key[0] else 1 for key in keys)


class _JsonLines:
    """A file that only grows, by whole lines. After the first failed write it stays as it is."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.lost: str | None = None
        try:
            if path.exists():
                what = f"{path} holds the evidence of an earlier recording"
                raise HarnessError(what, fix="record into a new folder", evidence=str(path))
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except OSError as error:
            what = f"the evidence file {path} cannot be created: {error.strerror}"
            fix = "free disk space, or make the folder writable"
            raise HarnessError(what, fix=fix, code=Code.DISK_FULL) from error

    def write(self, lines: str) -> None:
        if self.lost is not None:
            return
        data = lines.encode("ascii")
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError as error:
            self.lost = f"{self._path}: {error.strerror}"

    def close(self) -> None:
        try:
            os.fsync(self._file)
        except OSError as error:
            self.lost = self.lost or f"{self._path}: {error.strerror}"
        os.close(self._file)
