"""Asking a server while everything is kept: the collecting half of every functional check."""

import math
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from pydantic import ValidationError

from harness.checks.base import CheckContext, ServerView
from harness.checks.exchange import EXCHANGES, FACTS, MARKS, SKIPPED, Exchange, Facts, Line, Mark
from harness.engines.base import GenerateRequest, Generation, LogFacts
from harness.engines.client import Client, RequestFailed
from harness.engines.watched import watched
from harness.errors import HarnessError, TargetError
from harness.evidence.files import write_atomic
from harness.findings import Code
from harness.host.logs import LogLine, LogTail
from harness.scenario.model import Scalar

_ANSWERED = frozenset(Exchange.model_fields) - {
    *("seq", "leg", "case", "request_id", "prompt", "asked_tokens", "max_tokens", "min_tokens"),
    *("use_cache", "started_s", "latency_s"),
}
POLL_S = 0.1
QUIET_S = 0.5
SETTLE_S = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """One request to make. See `Exchange` for `leg` and `case`, `GenerateRequest` for the rest. `tokens` is
    the length of the prompt, which for a text only its tokenizer knows."""

    leg: str
    case: str
    prompt: tuple[int, ...] | str
    tokens: int
    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = True
    use_cache: bool = True


class Asker:
    """Asks the lane's entry server; a context manager that writes the check's evidence.

    A request that fails is evidence too: nothing here raises for it, unless it had no whole answer in time:
    TargetError (STALLED). Raises what `context.pulse` raises.
    """

    def __init__(self, context: CheckContext, *, timeout_s: float = 600.0) -> None:
        self._context = context
        self._client = Client(context.base_url, timeout_s=timeout_s)
        self._began = time.monotonic()
        self._asked = 0
        self._stalled = False
        self._timeout_s = timeout_s
        self._notes: dict[str, Scalar | None] = {}
        self._logs = {server.role: _Log(server) for server in context.servers}

    def __enter__(self) -> Self:
        for name in (EXCHANGES, MARKS):
            write_atomic(self._context.folder / name, "")  # a check that dies early has asked nothing
        self.mark("begin")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.__exit__(kind, error, trace)
        deadline = time.monotonic() + SETTLE_S
        while self._logs_grow() and time.monotonic() < deadline:
            pass
        facts = Facts(
            log={role: log.facts() for role, log in self._logs.items()},
            config={server.role: dict(server.config) for server in self._context.servers},
            notes=self._notes,
        )
        write_atomic(self._context.folder / FACTS, facts.model_dump_json(indent=1) + "\n")

    def note(self, **values: Scalar | None) -> None:
        """Put on file what the check computed before it asked: the judge must not compute it anew."""
        self._notes.update(values)

    def skip(self, reason: str) -> None:
        """Put on file that this check cannot be made of this server: its result is SKIPPED, for this reason
        (a sentence). Nothing should be asked then."""
        self.note(**{SKIPPED: reason})

    def told(self) -> LogFacts:
        """What the entry server's log says since the check began."""
        log = self._logs[self._context.servers[-1].role]
        log.read()
        return log.facts()

    def mark(self, label: str) -> Mark:
        """Remember this moment."""
        counters = watched(self._counters, self._context.pulse)
        counters = {name: value for name, value in counters.items() if math.isfinite(value)}
        lines = {role: log.read() for role, log in self._logs.items()}
        mark = Mark(label=label, at_s=time.monotonic() - self._began, lines=lines, counters=counters)
        self._append(MARKS, [mark])
        self._end_if_stalled()
        return mark

    def ask(self, ask: Ask) -> Exchange:
        """Ask one and wait for it."""
        return self.ask_all([ask], concurrency=1)[0]

    def ask_all(
        self, asks: Sequence[Ask], *, concurrency: int, tick: Callable[[], None] = lambda: None
    ) -> list[Exchange]:
        """Ask all, so many at a time; the answers stand in the order of the questions. `tick` is called
        meanwhile. If all are asked at once, none is sent before each has its thread: a quick server would
        have answered the first by then."""
        first = self._asked
        gate = threading.Barrier(len(asks) if concurrency == len(asks) else 1)
        pool = ThreadPoolExecutor(max_workers=concurrency, thread_name_prefix="asker")
        try:
            futures = [pool.submit(self._one, first + index, ask, gate) for index, ask in enumerate(asks)]
            pending = set(futures)
            while pending:
                _, pending = wait(pending, timeout=POLL_S)
                self._context.pulse()
                tick()
        except BaseException:
            gate.abort()
            pool.shutdown(wait=False, cancel_futures=True)  # freed when the servers are stopped
            raise
        pool.shutdown()
        answers = [future.result() for future in futures]
        self._asked += len(answers)
        self._append(EXCHANGES, answers)
        self._end_if_stalled()
        return answers

    def _end_if_stalled(self) -> None:
        if self._stalled:  # the next one would wait as long, with the GPUs held
            raise TargetError(
                f"no whole answer within {self._timeout_s:g} s: nothing more is asked of this server",
                cause="its scheduler or engine loop hangs while its HTTP side is alive",
                fix="look at the last lines of the server's log; request_s of the check is the limit",
                evidence=str(self._context.server_log),
                code=Code.STALLED,
            )

    def _counters(self) -> dict[str, float]:
        try:
            return self._context.engine.counters(self._client)
        except TargetError as error:
            self._note_stall(error)
            return {}  # a judge that needs them finds that they are missing

    def _note_stall(self, error: TargetError) -> None:
        self._stalled = self._stalled or (isinstance(error, RequestFailed) and error.timed_out)

    def _one(self, seq: int, ask: Ask, gate: threading.Barrier) -> Exchange:
        request_id = f"{uuid.uuid4().hex[:12]}-{ask.leg}-{ask.case}"
        request = GenerateRequest(
            prompt=ask.prompt,
            max_tokens=ask.max_tokens,
            min_tokens=ask.min_tokens,
            ignore_eos=ask.ignore_eos,
            logprobs=True,
            use_cache=ask.use_cache,
            request_id=request_id,
        )
        gate.wait()
        began = time.monotonic()
        fields: dict[str, Any] = {
            "seq": seq,
            "leg": ask.leg,
            "case": ask.case,
            "request_id": request_id,
            "prompt": ask.prompt if isinstance(ask.prompt, str) else list(ask.prompt),
            "asked_tokens": ask.tokens,
            "max_tokens": ask.max_tokens,
            "min_tokens": ask.min_tokens,
            "use_cache": ask.use_cache,
            "started_s": began - self._began,
        }
        try:
            fields |= _answer(self._context.engine.generate(self._client, request))
        except TargetError as error:
            fields |= {"error": error.what, "latency_s": time.monotonic() - began}
            self._note_stall(error)
        except RuntimeError as error:  # the client was closed under our feet: the check is being ended
            fields |= {"error": f"given up: {error}", "latency_s": time.monotonic() - began}
        return _exchange(fields)

    def _append(self, name: str, lines: Iterable[Line]) -> None:
        path = self._context.folder / name
        try:
            with path.open("a", encoding="utf-8") as file:
                file.writelines(line.model_dump_json() + "\n" for line in lines)
        except OSError as error:
            what = f"cannot write {path}: {error.strerror}"
            raise HarnessError(what, fix="free disk space and run again", code=Code.DISK_FULL) from error

    def _logs_grow(self) -> bool:
        """Whether any log has grown within a moment: a request's last line is written after its answer."""
        before = [log.read() for log in self._logs.values()]
        time.sleep(QUIET_S)
        return [log.read() for log in self._logs.values()] != before


class _Log:
    """What one server has logged since the check began."""

    def __init__(self, server: ServerView) -> None:
        self._engine = server.engine
        self._tail = LogTail(server.log)
        self._lines: list[LogLine] = []
        self._last = 0
        self.read()
        self._lines.clear()  # what was logged before the check began tells nothing of it

    def read(self) -> int:
        """Number of the last line that is complete."""
        new = self._tail.read()
        if new:
            self._last = new[-1][0]
        self._lines += new
        return self._last

    def facts(self) -> LogFacts:
        return self._engine.log_facts(self._lines)


def _exchange(fields: dict[str, Any]) -> Exchange:
    """The line of evidence; an answer that cannot be one (null for a text) is told as an error."""
    try:
        return Exchange(**fields)
    except ValidationError as error:
        first = error.errors()[0]
        what = f"the answer cannot be read: {'.'.join(map(str, first['loc']))}: {first['msg']}"
        asked = {name: value for name, value in fields.items() if name not in _ANSWERED}
        return Exchange(**asked, error=what)


def _answer(got: Generation) -> dict[str, Any]:
    return {
        "latency_s": got.latency_s,
        "first_token_s": got.first_token_s,
        "text": got.text,
        "ids": list(got.ids),
        "logprobs": list(got.logprobs),
        "finish_reason": got.finish_reason,
        "prompt_tokens": got.prompt_tokens,
        "completion_tokens": got.completion_tokens,
        "cached": got.cached,
        "accept": got.accept,
        "pauses": got.pauses,
    }
