"""The recorder's `requests.jsonl` (one line per prompt sent to the server), held against the documents.

What lm-eval does not keep stands only here: retries, failures, finish reasons and token counts.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from harness.evidence.files import open_regular
from harness.findings import Code, Finding

BROKEN_FINISHES: Final = frozenset({"error", "abort"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One prompt of one HTTP request. Digests are sha256 over UTF-8; None where there was nothing.

    `batch_tokens` is what the server says of the whole HTTP request, on its first prompt: the sum over the
    batch, or the first answer alone, by engine.
    """

    prompt_sha256: str | None
    status: int | None
    error: str | None
    finish_reason: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    text_sha256: str | None
    text_empty: bool | None
    attempt: int
    http_id: int | None = None
    max_tokens: int | None = None
    batch_tokens: int | None = None
    where: str  # file:line

    @property
    def failed(self) -> bool:
        answered = self.status is not None and 200 <= self.status < 300
        return self.error is not None or not answered or self.finish_reason in BROKEN_FINISHES


@dataclass(frozen=True, kw_only=True, slots=True)
class AskedDocument:
    """What the samples say of one document: the digests of its prompt and of its raw answer."""

    doc_id: int
    prompt_sha256: str
    text_sha256: str | None


def load_requests(path: Path) -> tuple[list[Request], list[Finding]]:
    """Every line of the file. A file or line that cannot be read is EVIDENCE_MISSING, never skipped."""
    requests = []
    findings = []
    try:
        with open_regular(path) as lines:
            for number, line in enumerate(lines, start=1):
                where = f"{path.name}:{number}"
                try:
                    requests.append(_request(json.loads(line.decode()), where))
                except (ValueError, TypeError, RecursionError) as error:
                    message = f"this line of the recorder cannot be read: {str(error)[:200]}"
                    findings.append(Finding(code=Code.EVIDENCE_MISSING, message=message, where=where))
    except OSError as error:
        message = f"the recorder's requests cannot be read: {error.strerror}"
        findings.append(Finding(code=Code.EVIDENCE_MISSING, message=message, where=str(path)))
    return requests, findings


def check_requests(requests: Iterable[Request], documents: Iterable[AskedDocument]) -> Iterator[Finding]:
    """Whether the server was asked each document exactly once, answered it, and is quoted faithfully."""
    requests, documents = list(requests), list(documents)
    wanted = {document.prompt_sha256: document for document in documents}
    yield from _counts(requests, documents)
    for request in requests:
        document = wanted.get(request.prompt_sha256 or "")
        where = f"doc_id={document.doc_id} {request.where}" if document else request.where
        yield from _one(request, where)
        if document is None:
            message = "a prompt was sent that belongs to no document of the samples"
            yield Finding(code=Code.REQUEST_COUNT, message=message, where=where)
    yield from _cut_short(requests)
    yield from _answers(requests, documents)


def failures(requests: Iterable[Request]) -> Iterator[Finding]:
    """What went wrong with single requests, where there are no samples to hold them against."""
    for request in requests:
        yield from _one(request, request.where)


def metrics_of(requests: Iterable[Request]) -> dict[str, float | int | str | None]:
    """Counts over all lines; the natural-stop rate is over answered ones."""
    requests = list(requests)
    answered = [request for request in requests if not request.failed]
    stopped = sum(request.finish_reason == "stop" for request in answered)
    return {
        "requests": len(requests),
        "failed_requests": len(requests) - len(answered),
        "retried_requests": sum(request.attempt > 1 for request in requests),
        "truncated": sum(request.finish_reason == "length" for request in answered),
        "natural_stop_rate": stopped / len(answered) if answered else None,
        "prompt_tokens": _total(request.prompt_tokens for request in answered),
        "completion_tokens": _total(request.completion_tokens for request in answered),
    }


def _total(counts: Iterable[int | None]) -> int | None:
    """None where the server kept silent about any of them: a part is not the total."""
    known = list(counts)
    return None if None in known else sum(count for count in known if count is not None)


def _counts(requests: list[Request], documents: list[AskedDocument]) -> Iterator[Finding]:
    if len(requests) != len(documents):
        sent = f"the server was sent {len(requests)} prompts for {len(documents)} documents"
        meaning = "hidden retries" if len(requests) > len(documents) else "answers from a cache"
        message = f"{sent}: this means {meaning}"
        yield Finding(code=Code.REQUEST_COUNT, message=message)
    seen = Counter(request.prompt_sha256 for request in requests)
    for document in documents:
        if not seen[document.prompt_sha256]:
            message = "this document's prompt never reached the server: its answer is from elsewhere"
            yield Finding(code=Code.REQUEST_COUNT, message=message, where=f"doc_id={document.doc_id}")


def _one(request: Request, where: str) -> Iterator[Finding]:
    if request.failed:
        what = request.error or f"finish reason `{request.finish_reason}`"
        message = f"the request failed with status {request.status}: {what}"
        yield Finding(code=Code.REQUEST_FAILED, message=message, where=where)
    elif request.finish_reason == "length":
        tokens = "" if request.completion_tokens is None else f" after {request.completion_tokens} tokens"
        message = f"the answer was cut at the output limit{tokens}"
        yield Finding(code=Code.TRUNCATED, message=message, where=where)
    elif request.finish_reason is None:
        message = "the server gave no finish reason: whether the answer was cut is unknown"
        yield Finding(code=Code.EVIDENCE_MISSING, message=message, where=where)
    if request.attempt > 1:
        message = f"this is attempt {request.attempt} at the same prompt: an earlier one was lost or failed"
        yield Finding(code=Code.REQUEST_RETRIED, message=message, where=where)


def _cut_short(requests: Iterable[Request]) -> Iterator[Finding]:
    """Answers that end with `length` before the length that was asked for: the server lowered the limit
    without a word. A batch tells its tokens only together; then what is certain is told."""
    batches: defaultdict[object, list[Request]] = defaultdict(list)
    for request in requests:
        batches[request.where if request.http_id is None else request.http_id].append(request)
    for batch in batches.values():
        limit = batch[0].max_tokens
        cut = [request for request in batch if request.finish_reason == "length" and not request.failed]
        if limit is None or not cut:
            continue
        alone = [request for request in cut if request.completion_tokens is not None]
        short = [request for request in alone if (request.completion_tokens or 0) < limit]
        total = batch[0].batch_tokens
        if not alone and total is not None:
            is_sum = total > limit
            if (is_sum and total < limit * len(cut)) or (total < limit and batch[0] in cut):
                short = cut[:1]
        if not alone and total is None:
            message = (
                "the answer ended at an output limit, and the server told no token count: whether it is "
            )
            message += f"the {limit} that were asked for is unknown"
            yield Finding(code=Code.EVIDENCE_MISSING, message=message, where=cut[0].where)
        for request in short:
            got = f"{request.completion_tokens} token(s)" if alone else f"{total} token(s) in its whole batch"
            message = (
                f"the answer ended at the output limit after {got}, and {limit} were asked for: "
                "the server lowered the limit without a word"
            )
            yield Finding(code=Code.CUT_SHORT, message=message, where=request.where)


def _answers(requests: list[Request], documents: list[AskedDocument]) -> Iterator[Finding]:
    """The evaluator's text is one that the server sent for this very prompt, and not nothing."""
    sent: defaultdict[str, list[Request]] = defaultdict(list)
    for request in requests:
        if request.prompt_sha256 is not None and not request.failed:
            sent[request.prompt_sha256].append(request)
    for document in documents:
        answers = sent[document.prompt_sha256]
        where = f"doc_id={document.doc_id}"
        if answers and all(answer.text_empty for answer in answers):
            message = "the server's answer was empty or null"
            yield Finding(code=Code.EMPTY_RESPONSE, message=message, where=where)
        elif answers and document.text_sha256 not in {answer.text_sha256 for answer in answers}:
            message = "the answer in the samples is not the one that the server sent for this prompt"
            yield Finding(code=Code.HASH_MISMATCH, message=message, where=where)


def _request(raw: Any, where: str) -> Request:
    if not isinstance(raw, dict):
        raise TypeError("not a JSON object")
    usage = raw.get("usage")
    return Request(
        prompt_sha256=_field(raw, "prompt_sha256", str),
        status=_field(raw, "status", int),
        error=_field(raw, "error", str),
        finish_reason=_field(raw, "finish_reason", str),
        prompt_tokens=_field(raw, "prompt_tokens", int),
        completion_tokens=_field(raw, "completion_tokens", int),
        text_sha256=_field(raw, "text_sha256", str),
        text_empty=_field(raw, "text_empty", bool),
        attempt=_attempt(raw),
        http_id=_whole(raw.get("http_id")),
        max_tokens=_whole(raw.get("max_tokens")),
        batch_tokens=_whole(usage.get("completion_tokens")) if isinstance(usage, dict) else None,
        where=where,
    )


def _attempt(raw: Mapping[str, Any]) -> int:
    attempt = _field(raw, "attempt", int)
    if attempt is None or attempt < 1:
        raise TypeError(f"attempt is {attempt!r}")
    return int(attempt)


def _whole(value: Any) -> int | None:
    """A number that an older recorder did not write, or a server did not tell."""
    return value if type(value) is int else None


def _field(raw: Mapping[str, Any], key: str, kind: type) -> Any:
    """A missing key is a missing fact, and null says that there was none."""
    value = raw[key] if key in raw else _missing(key)
    if value is not None and type(value) is not kind:
        raise TypeError(f"{key} is {value!r:.60}")
    return value


def _missing(key: str) -> Any:
    raise TypeError(f"`{key}` is missing")
