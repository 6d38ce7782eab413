"""Whether the accuracy evidence of one lane is sound. Pure: samples and files in, a result out.

Nothing is believed that can be recomputed: hashes from the text they cover, answers and scores from the raw
response, means from the scores, the number of documents from the data set.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from harness.accuracy import scoring
from harness.accuracy.integrity import Earned, check_samples, check_unity, rescored
from harness.accuracy.requests import AskedDocument, check_requests, failures, load_requests, metrics_of
from harness.accuracy.samples import METRIC, Sample, SampleSet
from harness.evidence.digests import text_sha256
from harness.evidence.record import CheckResult
from harness.findings import Code, Finding, verdict_of
from harness.verdict import Verdict

# lm-eval writes "" for a null answer unless LMEVAL_MODEL_NONE_ANSWER_PLACEHOLDER says otherwise, and turns a
# null that slips through into the text "None".
NULL_ANSWERS: Final = frozenset({"", "None", "null", "LMEVAL_MODEL_NONE_ANSWER_PLACEHOLDER"})
Points: TypeAlias = dict[str, list[bool]]  # by filter

_MEAN_TOLERANCE = 1e-9
_TOO_MANY = 10_000  # missing documents that one finding tells as well


def audit(
    samples: SampleSet,
    *,
    expected_docs: int | None = None,
    expected_questions: Sequence[str] | None = None,
    requests: Path | None = None,
) -> CheckResult:
    """Every acceptance rule of a lane's accuracy evidence. REPORTED when sound: a single lane has no margin.

    `expected_docs` is the data set's number of documents; by default what the results file says.
    `expected_questions` are sha256 digests of the data set's questions, in order. `requests` is the
    recorder's file; without it nothing is known of retries, failures, cut answers or tokens.
    """
    if not samples.samples:
        lines, unreadable = load_requests(requests) if requests is not None else ([], [])
        findings = [*samples.findings, *unreadable, *failures(lines)]
        return CheckResult(
            verdict=verdict_of(findings, Verdict.INVALID),
            findings=findings,
            metrics=metrics_of(lines) if lines else {},
        )
    documents = _documents(samples)
    scored = [(sample, rescored(sample)) for sample in samples.samples]
    points = _points(scored)
    findings = [
        *samples.findings,
        *_limit(samples, counted=expected_docs is not None),
        *_completeness(samples, _ids(samples, expected_docs)),
        *_identity(documents, expected_questions or ()),
        *check_samples(scored),
        *check_unity(samples.samples, documents),
        *_means(samples, points),
        *_answers(documents),
    ]
    metrics = _metrics(points, documents, findings)
    if requests is not None:
        asked = [_asked(sample) for sample in documents.values()]
        lines, unreadable = load_requests(requests)
        empty = {finding.where for finding in findings if finding.code is Code.EMPTY_RESPONSE}
        found = list(unreadable)
        if lines or not unreadable:  # an empty file says that the server was asked nothing
            found += check_requests(lines, asked)
        findings += [
            item for item in found if item.code is not Code.EMPTY_RESPONSE or item.where not in empty
        ]
        metrics |= metrics_of(lines)
    return CheckResult(verdict=verdict_of(findings, Verdict.REPORTED), findings=findings, metrics=metrics)


def _documents(samples: SampleSet) -> dict[int, Sample]:
    """One sample for each document; whether the others agree with it is checked in `check_unity`."""
    documents: dict[int, Sample] = {}
    for sample in samples.samples:
        documents.setdefault(sample.doc_id, sample)
    return documents


def _ids(samples: SampleSet, expected: int | None) -> range:
    if expected is not None:
        return range(expected)
    original = _at(samples.results, "n-samples", samples.task, "original")
    if isinstance(original, int):
        return range(original)
    return range(max(sample.doc_id for sample in samples.samples) + 1)


def _limit(samples: SampleSet, *, counted: bool) -> Iterator[Finding]:
    """Whether documents were left out. `counted`: the number of documents is known from elsewhere."""
    if not samples.results:
        return  # the reader has told of it
    config = samples.results.get("config")
    if not isinstance(config, Mapping) or "limit" not in config:
        message = "the results file has no `config.limit`: whether --limit was used cannot be told"
        yield Finding(code=Code.SAMPLES_UNREADABLE, message=message, where=samples.results_file)
        return
    limit = config["limit"]
    original = _at(samples.results, "n-samples", samples.task, "original")
    effective = _at(samples.results, "n-samples", samples.task, "effective")
    if limit is not None:
        message = f"the evaluation was run with --limit {limit}: the data set was not asked in full"
        yield Finding(code=Code.LIMIT_USED, message=message, where=samples.results_file)
    elif original != effective:
        message = f"{effective} of {original} documents were evaluated (--samples?)"
        yield Finding(code=Code.LIMIT_USED, message=message, where=samples.results_file)
    elif not isinstance(original, int) and not counted:
        message = (
            "the results file does not say how many documents there are (`n-samples`), and no number was "
            "given (--expect-docs): whether some are missing cannot be told"
        )
        yield Finding(code=Code.SAMPLES_UNREADABLE, message=message, where=samples.results_file)


def _completeness(samples: SampleSet, expected: Collection[int]) -> Iterator[Finding]:
    """Exactly the expected documents, each once under each filter."""
    names = [*scoring.FILTERS, *sorted({sample.filter for sample in samples.samples} - {*scoring.FILTERS})]
    for name in names:
        counts = Counter(sample.doc_id for sample in samples.samples if sample.filter == name)
        where = f"filter={name}"
        if not counts:
            message = f"no sample was filtered by {name}"
            yield Finding(code=Code.FILTER_MISSING, message=message, where=where)
            continue
        if len(expected) > len(counts) + _TOO_MANY:
            message = f"the data set has {len(expected)} documents, the samples hold {len(counts)} of them"
            yield Finding(code=Code.MISSING_DOC, message=message, where=where)
        else:
            for doc_id in expected:
                if doc_id not in counts:
                    message = f"document {doc_id} of {len(expected)} has no sample"
                    yield Finding(code=Code.MISSING_DOC, message=message, where=f"doc_id={doc_id} {where}")
        for doc_id, count in counts.items():
            if count > 1:
                message = f"document {doc_id} has {count} samples"
                yield Finding(code=Code.DUPLICATE_DOC, message=message, where=f"doc_id={doc_id} {where}")
            if doc_id not in expected:
                message = f"document {doc_id} is not one of the data set's {len(expected)}"
                yield Finding(code=Code.UNEXPECTED_DOC, message=message, where=f"doc_id={doc_id} {where}")


def _identity(documents: Mapping[int, Sample], expected_questions: Sequence[str]) -> Iterator[Finding]:
    """The documents are the data set's own, in its order."""
    message = "this document is not the one that the data set has at this place"
    for doc_id, sample in documents.items():
        known = 0 <= doc_id < len(expected_questions)
        if known and expected_questions[doc_id] != text_sha256(str(sample.doc.get("question"))):
            yield Finding(code=Code.UNEXPECTED_DOC, message=message, where=f"doc_id={doc_id}")


def _means(samples: SampleSet, points: Points) -> Iterator[Finding]:
    """The results file reports the mean, and the number, of these very samples."""
    if not samples.results:
        return
    reported = _at(samples.results, "results", samples.task)
    if not isinstance(reported, Mapping):
        message = f"the results file has no results of task {samples.task}"
        yield Finding(code=Code.RESULTS_MISMATCH, message=message, where=samples.results_file)
        return
    for name, values in points.items():
        mean = sum(values) / len(values)
        claimed = reported.get(f"{METRIC},{name}")
        if not isinstance(claimed, int | float) or not math.isclose(claimed, mean, abs_tol=_MEAN_TOLERANCE):
            message = f"{name}: the results file says {claimed}, the samples' own mean is {mean}"
            yield Finding(code=Code.RESULTS_MISMATCH, message=message, where=samples.results_file)
        length = reported.get("sample_len")
        if length is not None and length != len(values):
            message = (
                f"{name}: the results file counts {length} samples, the samples file holds {len(values)}"
            )
            yield Finding(code=Code.RESULTS_MISMATCH, message=message, where=samples.results_file)


def _points(scored: Iterable[tuple[Sample, Earned | None]]) -> Points:
    points: Points = {name: [] for name in scoring.FILTERS}
    for sample, earned in scored:
        if earned is not None:
            points[sample.filter].append(earned[1])
    return {name: values for name, values in points.items() if values}


def _answers(documents: Mapping[int, Sample]) -> Iterator[Finding]:
    """Empty, unfinished and looping answers, once for each document."""
    for doc_id, sample in documents.items():
        where = f"doc_id={doc_id}"
        response = sample.response
        if response is None or response.strip() in NULL_ANSWERS:
            message = f"the answer is empty or null ({response!r:.20} in the samples)"
            yield Finding(code=Code.EMPTY_RESPONSE, message=message, where=where)
            continue
        if not scoring.has_final_number(response):
            number = scoring.extract(response, scoring.FLEXIBLE)
            other = "no number at all" if number == scoring.INVALID else f"its last number is {number:.40}"
            message = f"the answer has no final `#### N` ({other}); it ends in {response[-40:]!r}"
            yield Finding(code=Code.NO_FINAL_ANSWER, message=message, where=where)
        if scoring.is_degenerate(response):
            message = f"the answer loops; it ends in {response[-60:]!r}"
            yield Finding(code=Code.DEGENERATE, message=message, where=where)


def _metrics(
    points: Points, documents: Mapping[int, Sample], findings: Iterable[Finding]
) -> dict[str, float | int | str | None]:
    counts = Counter(finding.code for finding in findings)
    accuracy = {f"accuracy.{name}": sum(values) / len(values) for name, values in points.items()}
    return {
        "n": len(documents),
        **accuracy,
        "empty": counts[Code.EMPTY_RESPONSE],
        "no_final_answer": counts[Code.NO_FINAL_ANSWER],
        "degenerate": counts[Code.DEGENERATE],
        "truncated": None,
        "natural_stop_rate": None,
        "failed_requests": None,
    }


def _asked(sample: Sample) -> AskedDocument:
    text = None if sample.response is None else text_sha256(sample.response)
    return AskedDocument(doc_id=sample.doc_id, prompt_sha256=text_sha256(sample.prompt), text_sha256=text)


def _at(tree: Mapping[str, Any], *keys: str) -> Any:
    """The value at a path, None where anything on the way is missing or not an object."""
    value: Any = tree
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
