"""The lines of evidence about one HTTP request: one for each of its prompts, and one with both bodies.

Pure. What a server answers is hostile text: it is escaped by the JSON encoder, always. Headers are never
written, and what looks like a key in a body is taken out.
"""

import json
import re
import zlib
from bisect import bisect_left
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from harness.evidence.digests import text_sha256
from harness.evidence.recorder.answers import Answer, error_text, read_answers
from harness.evidence.recorder.prompts import Ask
from harness.evidence.recorder.stream import has_text, merge_events, read_events

RAW_LIMIT = 4 << 20  # bytes of one body that the raw file keeps
READ_LIMIT = 64 << 20  # bytes of one answer that are read at all
_SECRET_KEYS = ("api_key", "apikey", "api-key", "authorization", "access_token", "password")
_ODD = re.compile(rb"[\r\n]|NaN|Infinity")  # what keeps JSON from standing on a line of a file as it is
_REDACTED = "[redacted]"


class Body:
    """A request's or an answer's body; read when it is first asked for."""

    def __init__(self, data: bytes, encoding: str = "") -> None:
        self._sent = data
        self._encoding = encoding

    @cached_property
    def data(self) -> bytes:
        """What the encoding holds."""
        return _decoded(self._sent, self._encoding)

    @cached_property
    def json(self) -> Any:
        """The same as JSON; None when it is none (a bare `null` says no more)."""
        return _json(self.data)

    def evidence(self) -> tuple[str, bool]:
        """The body as one line of JSON, a JSON string where it is none itself, and whether it was cut."""
        text = self.data[:RAW_LIMIT].decode("utf-8", "replace")
        if len(self.data) > RAW_LIMIT:
            return json.dumps(text), True
        payload = self.json
        if payload is None:
            return json.dumps(text), False
        if isinstance(payload, dict) and any(key.lower() in _SECRET_KEYS for key in payload):
            payload = {
                key: _REDACTED if key.lower() in _SECRET_KEYS else value for key, value in payload.items()
            }
        elif self.data.isascii() and not _ODD.search(self.data):
            return text, False  # valid JSON on one line already: exactly what was sent
        try:
            return json.dumps(payload, allow_nan=False), False
        except (ValueError, RecursionError):  # NaN is no JSON, though Python reads it
            return json.dumps(text), False


@dataclass(slots=True, kw_only=True)
class Exchange:
    """One HTTP request on its way through the proxy, filled in as it goes.

    `status` is what the client got to see, 0 when there was no answer to pass on. Times are seconds since
    the recorder started. `arrivals` are (bytes so far, time) of each piece of a stream.
    """

    http_id: int
    method: str
    path: str
    received_at: str
    started_s: float
    request: Body
    secrets: tuple[str, ...] = ()
    ask: Ask | None = None
    first_seq: int = 0
    attempts: tuple[int, ...] = ()
    status: int = 0
    streamed: bool = False
    encoding: str = ""
    error: str | None = None
    client_gone: bool = False
    finished_s: float = 0.0
    size: int = 0
    chunks: list[bytes] = field(default_factory=list)
    arrivals: list[tuple[int, float]] = field(default_factory=list)

    def add(self, chunk: bytes, now_s: float) -> None:
        """A piece of the answer has arrived. Beyond READ_LIMIT nothing is kept."""
        self.size += len(chunk)
        if self.size > READ_LIMIT:
            self.error = f"the answer is longer than {READ_LIMIT >> 20} MiB and was not read"
            return
        self.chunks.append(chunk)
        if self.streamed:
            self.arrivals.append((self.size, now_s))


def prompt_lines(exchange: Exchange, ask: Ask, answer: Body) -> list[dict[str, Any]]:
    """What `requests.jsonl` says about each prompt of this request.

    `seq` counts prompts in order of arrival, `http_id` HTTP requests, `index` is the place in the batch.
    `attempt` is 1 when the prompt comes for the first time with these settings, more for a repetition.
    `error` is None for a sound answer, else a short text; `status` is 0 when the client got no answer from
    the server. `finish_reason`, tokens and `text_*` are those of the answer, the first one where several
    were asked for; `max_tokens` is the limit that was asked for; `text_*` are all None where there was none.
    Tokens are None where the server does not tell them for this prompt alone; `usage` is the server's own
    word, on index 0. `ttft_s` is None unless
    streamed. `started_s` and `finished_s` are seconds since the recording began.
    """
    answers, usage, ttft_s = _read(exchange, ask, answer)
    lines = []
    for index, (prompt, got, attempt) in enumerate(zip(ask.prompts, answers, exchange.attempts, strict=True)):
        error = exchange.error or got.error or ask.problem
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
                "max_tokens": ask.max_tokens,
                "prompt_tokens": got.prompt_tokens,
                "completion_tokens": got.completion_tokens,
                "usage": _strict(usage) if index == 0 else None,
                "choices": got.choices,
                **_text_facts(got),
                "streamed": exchange.streamed,
                "ttft_s": ttft_s,
                "latency_s": round(exchange.finished_s - exchange.started_s, 6),
                "received_at": exchange.received_at,
                "started_s": round(exchange.started_s, 6),
                "finished_s": round(exchange.finished_s, 6),
            }
        )
    return lines


def raw_line(exchange: Exchange, answer: Body) -> str:
    """What `raw_responses.jsonl` says about this request: one JSON object, without the line's end."""
    request, request_cut = exchange.request.evidence()
    response, response_cut = answer.evidence() if exchange.chunks else ("null", False)
    facts = json.dumps(
        {
            "http_id": exchange.http_id,
            "method": exchange.method,
            "path": exchange.path,
            "received_at": exchange.received_at,
            "status": exchange.status,
            "error": None if exchange.error is None else _redact(exchange.error, exchange.secrets),
            "client_gone": exchange.client_gone,
            "truncated": request_cut or response_cut or exchange.size > READ_LIMIT,
        }
    )
    secrets = tuple(json.dumps(secret)[1:-1] for secret in exchange.secrets)
    bodies = f'"request": {_redact(request, secrets)}, "response": {_redact(response, secrets)}'
    return f"{facts[:-1]}, {bodies}}}"


def _read(exchange: Exchange, ask: Ask, answer: Body) -> tuple[list[Answer], Any, float | None]:
    """The answers, the usage, and the time to the first token, of a stream that tells it."""
    if not 200 <= exchange.status < 300:
        why = error_text(answer.json or answer.data[:1000].decode("utf-8", "replace"))
        return [Answer(error=f"HTTP {exchange.status}: {why}")] * len(ask.prompts), None, None
    ttft_s = None
    payload = answer.json
    if exchange.streamed:
        events = read_events(answer.data)
        payload = merge_events(ask, [event for _, event in events])
        first = next((end for end, event in events if has_text(ask, event)), None)
        if first is not None and not exchange.encoding:
            arrival = bisect_left(exchange.arrivals, (first, 0.0))
            ttft_s = round(exchange.arrivals[arrival][1] - exchange.started_s, 6)
    if payload is None:
        return [Answer(error="the answer is not JSON")] * len(ask.prompts), None, None
    answers, usage = read_answers(ask, payload, streamed=exchange.streamed)
    return answers, usage, ttft_s


def _text_facts(answer: Answer) -> dict[str, Any]:
    """All None where there was no answer: that is not an empty one."""
    if not answer.choices:
        return dict.fromkeys(("text_sha256", "text_chars", "text_empty", "text_null"))
    text = answer.text
    return {
        "text_sha256": None if text is None else text_sha256(text),
        "text_chars": 0 if text is None else len(text),
        "text_empty": text is None or not text.strip(),
        "text_null": text is None,
    }


def _strict(value: Any) -> Any:
    """The value, or None where it cannot be written as strict JSON (NaN, infinities)."""
    try:
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return None
    return value


def _redact(text: str, secrets: tuple[str, ...]) -> str:
    for secret in secrets:
        text = text.replace(secret, _REDACTED)
    return text


def _json(data: bytes) -> Any:
    try:
        return json.loads(data.decode("utf-8-sig")) if data else None  # of bytes, it would guess at UTF-16
    except (ValueError, RecursionError):
        return None


def _decoded(body: bytes, encoding: str) -> bytes:
    """At most READ_LIMIT bytes, for a small body may unfold to a huge one; as it is where it cannot be."""
    if encoding.lower() not in ("gzip", "x-gzip", "deflate"):
        return body
    try:
        return zlib.decompressobj(wbits=47).decompress(body, READ_LIMIT)
    except zlib.error:
        return body
