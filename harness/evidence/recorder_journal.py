"""The evidence files of the recording proxy: one line per prompt, and one line per HTTP request.

Every line is written whole as soon as its request ends, so a kill loses only what was in flight. A write
that fails is never silent: `lost_evidence` says so, and the caller must ask.
"""

import json
import os
import time
import zlib
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.errors import HarnessError
from harness.evidence.recorder_answers import (
    Answer,
    error_text,
    has_text,
    merge_events,
    read_answers,
    read_events,
)
from harness.evidence.recorder_prompts import Ask, dialect_of, read_ask
from harness.findings import Code

RAW_LIMIT = 4 << 20  # bytes of one body kept in the raw file
READ_LIMIT = 64 << 20  # bytes of one answer that are read at all
_SECRET_KEYS = ("api_key", "apikey", "api-key", "authorization", "access_token", "password")
_REDACTED = "[redacted]"


@dataclass(frozen=True, slots=True)
class Counts:
    """Prompts: `seen` have arrived, of these `finished` were answered and `failed` were not."""

    seen: int = 0
    finished: int = 0
    failed: int = 0


@dataclass(slots=True, kw_only=True)
class Exchange:
    """One HTTP request on its way through the proxy, filled in as it goes.

    `status` is what the client got to see, 0 when there was no answer to pass on. Times are seconds since
    the recorder started.
    """

    http_id: int
    method: str
    path: str
    received_at: str
    started_s: float
    request: bytes
    request_encoding: str
    secrets: tuple[str, ...]
    ask: Ask | None = None
    first_seq: int = 0
    attempts: tuple[int, ...] = ()
    status: int = 0
    content_type: str = ""
    encoding: str = ""
    error: str | None = None
    client_gone: bool = False
    cut: bool = False
    size: int = 0
    chunks: list[bytes] = field(default_factory=list)
    arrivals: list[tuple[int, float]] = field(default_factory=list)

    @property
    def streamed(self) -> bool:
        return self.content_type == "text/event-stream"


class Journal:
    """Writes the evidence. Used from one thread; `counts` and `lost_evidence` may be read from any."""

    def __init__(self, out: Path) -> None:
        """Create `out` and the raw file beside it. Raises HarnessError where that cannot be done, also when
        `out` is there already: evidence is never overwritten."""
        self._born = time.monotonic()
        self._prompts = _JsonLines(out)
        try:
            self._raw = _JsonLines(out.with_name("raw_responses.jsonl"))
        except HarnessError:
            self._prompts.close()
            raise
        self._http_ids = 0
        self._attempts: Counter[tuple[str, str]] = Counter()
        self._bug: str | None = None
        self.counts = Counts()

    @property
    def lost_evidence(self) -> str | None:
        return self._prompts.lost or self._raw.lost or self._bug

    def now_s(self) -> float:
        return time.monotonic() - self._born

    def begin(
        self, *, method: str, path: str, request: bytes, encoding: str = "", secrets: tuple[str, ...] = ()
    ) -> Exchange:
        """A request has arrived whole."""
        exchange = Exchange(
            http_id=self._http_ids,
            method=method,
            path=path,
            received_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            started_s=self.now_s(),
            request=request,
            request_encoding=encoding,
            secrets=secrets,
        )
        self._http_ids += 1
        dialect = dialect_of(path) if method == "POST" else None
        if dialect is not None:
            exchange.ask = read_ask(dialect, parse_json(decode(request, encoding)))
            exchange.first_seq = self.counts.seen
            exchange.attempts = self._attempts_of(exchange.ask)
            self._count(seen=len(exchange.ask.prompts))
        return exchange

    def received(self, exchange: Exchange, chunk: bytes) -> None:
        """A piece of the answer has arrived."""
        exchange.size += len(chunk)
        if exchange.size > READ_LIMIT:
            exchange.cut = True
            return
        exchange.chunks.append(chunk)
        if exchange.streamed:
            exchange.arrivals.append((exchange.size, self.now_s()))

    def finish(self, exchange: Exchange) -> None:
        """The request is over, however it ended: write its lines."""
        finished_s = self.now_s()
        try:
            answer = decode(b"".join(exchange.chunks), exchange.encoding)
            self._raw.write([_raw_line(exchange, answer)])
            if exchange.ask is not None:
                lines = _prompt_lines(exchange, exchange.ask, answer, finished_s)
                self._prompts.write([json.dumps(line) for line in lines])
                failed = sum(1 for line in lines if line["error"] is not None)
                self._count(finished=len(lines) - failed, failed=failed)
        except Exception as error:  # noqa: BLE001 - a bug in here must cost the verdict, not the answer
            self._bug = f"request {exchange.http_id} could not be recorded: {type(error).__name__}: {error}"

    def close(self) -> None:
        self._prompts.close()
        self._raw.close()

    def lose(self, what: str) -> None:
        """Say that evidence is lost for a reason of the caller's."""
        self._bug = self._bug or what

    def _count(self, *, seen: int = 0, finished: int = 0, failed: int = 0) -> None:
        now = self.counts
        self.counts = Counts(now.seen + seen, now.finished + finished, now.failed + failed)

    def _attempts_of(self, ask: Ask) -> tuple[int, ...]:
        """Which time this is that each prompt is asked. The same prompt twice in one batch is a repeated
        question, not a retry."""
        keys = [(prompt.sha256, ask.settings) for prompt in ask.prompts if prompt.sha256 is not None]
        self._attempts.update(set(keys))
        return tuple(self._attempts[key] for key in keys) or (1,) * len(ask.prompts)


class _JsonLines:
    """A file that only grows, by whole lines. After the first failed write it stays as it is."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.lost: str | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except FileExistsError as error:
            what = f"there is evidence of an earlier recording in {path}"
            raise HarnessError(what, fix="record into a new folder", evidence=str(path)) from error
        except OSError as error:
            what = f"cannot write the evidence file {path}: {error.strerror}"
            raise HarnessError(
                what, fix="free disk space, or make the folder writable", code=Code.DISK_FULL
            ) from error

    def write(self, lines: list[str]) -> None:
        if self.lost is not None:
            return
        data = "".join(f"{line}\n" for line in lines).encode("ascii")
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError as error:
            self.lost = f"{self._path}: {error.strerror}"

    def close(self) -> None:
        try:
            os.fsync(self._file)
        except OSError as error:  # a full disk may speak up only now
            self.lost = self.lost or f"{self._path}: {error.strerror}"
        os.close(self._file)


def decode(body: bytes, encoding: str) -> bytes:
    """A body without its content encoding, at most READ_LIMIT bytes; as it is where that cannot be undone."""
    if encoding.lower() not in ("gzip", "x-gzip", "deflate"):
        return body
    try:
        return zlib.decompressobj(wbits=47).decompress(body, READ_LIMIT)
    except zlib.error:
        return body


def parse_json(body: bytes) -> Any:
    """The body as JSON, None when it is not (a bare `null` is no use to anyone here either)."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _prompt_lines(exchange: Exchange, ask: Ask, answer: bytes, finished_s: float) -> list[dict[str, Any]]:
    answers, usage, ttft_s = _read(exchange, ask, answer)
    common_error = exchange.error or ask.problem
    lines = []
    for index, (prompt, got, attempt) in enumerate(zip(ask.prompts, answers, exchange.attempts, strict=True)):
        error = common_error or got.error
        lines.append(
            {
                "seq": exchange.first_seq + index,
                "http_id": exchange.http_id,
                "index": index,
                "path": exchange.path,
                "prompt_sha256": prompt.sha256,
                "prompt_chars": prompt.chars,
                "attempt": attempt,
                "status": exchange.status,
                "error": None if error is None else _redact(error, exchange.secrets),
                "client_gone": exchange.client_gone,
                "finish_reason": got.finish_reason,
                "prompt_tokens": got.prompt_tokens,
                "completion_tokens": got.completion_tokens,
                "usage": usage if index == 0 else None,
                "choices": got.choices,
                **_text_facts(got),
                "streamed": exchange.streamed,
                "ttft_s": None if ttft_s is None else round(ttft_s, 6),
                "latency_s": round(finished_s - exchange.started_s, 6),
                "received_at": exchange.received_at,
                "started_s": round(exchange.started_s, 6),
                "finished_s": round(finished_s, 6),
            }
        )
    return lines


def _text_facts(answer: Answer) -> dict[str, Any]:
    """All None where there was no answer: that is not an empty one."""
    if not answer.choices:
        return dict.fromkeys(("text_sha256", "text_chars", "text_empty", "text_null"))
    text = answer.text
    return {
        "text_sha256": None if text is None else prompt_sha256(text),
        "text_chars": 0 if text is None else len(text),
        "text_empty": text is None or not text.strip(),
        "text_null": text is None,
    }
