"""Two evaluations of the same documents, paired by (doc_id, filter). Pure but for writing disagreements.

Scores are those that the raw responses earn here; what the evaluator wrote is the audit's business.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

from harness.accuracy.integrity import rescored
from harness.accuracy.samples import Sample, SampleSet
from harness.accuracy.scoring import normalise
from harness.accuracy.statistics import (
    mcnemar_p,
    minimum_detectable_effect,
    non_inferiority,
    paired_interval,
)
from harness.evidence.files import write_atomic
from harness.evidence.record import FilterStats, PairResult
from harness.findings import Code, Finding, verdict_of
from harness.verdict import Verdict

Key: TypeAlias = tuple[int, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Disagreement:
    """One document that the two sides did not answer alike: one right and one wrong, or both wrong with
    different answers. `right` is `baseline`, `candidate` or `neither`; answers are raw."""

    doc_id: int
    filter: str
    right: str
    question: str
    gold: str
    baseline_extracted: str
    candidate_extracted: str
    baseline_answer: str | None
    candidate_answer: str | None


@dataclass(frozen=True, slots=True)
class _Scored:
    """A sample with what its raw response earns."""

    sample: Sample
    answer: str
    right: bool


def pair_samples(
    baseline: SampleSet, candidate: SampleSet, max_drop_pp: float | None = None
) -> tuple[PairResult, list[Disagreement]]:
    """The paired statistics of each filter, and every disagreement.

    Judged only where `max_drop_pp` (percentage points) is stated: each filter must hold it, the worst wins.
    Documents that only one side has, or that were not asked alike, make the pair INVALID; the threshold is
    not judged then, since numbers that cannot be compared convict nobody.
    """
    left, right = _keyed(baseline), _keyed(candidate)
    pairs = {key: (left[key], right[key]) for key in left if key in right}
    findings = [
        *_repeated(baseline, "baseline"),
        *_repeated(candidate, "candidate"),
        *_missing(left, right),
        *_not_alike(pairs.values()),
    ]
    filters: dict[str, FilterStats] = {}
    disagreements: list[Disagreement] = []
    for name in dict.fromkeys(name for _, name in pairs):
        of_filter = [pair for key, pair in pairs.items() if key[1] == name]
        found = [item for one, other in of_filter if (item := _disagreement(one, other)) is not None]
        filters[name] = _stats(of_filter, found)
        disagreements += found
    if max_drop_pp is not None and not findings:
        findings += [finding for name in filters for finding in _judge(name, filters[name], max_drop_pp)]
    base = Verdict.REPORTED if max_drop_pp is None else Verdict.PASS
    result = PairResult(verdict=verdict_of(findings, base), findings=findings, filters=filters)
    return result, disagreements


def write_disagreements(path: Path, disagreements: Iterable[Disagreement]) -> None:
    """One JSON object per line, readable as it stands. Raises HarnessError when it cannot be written."""
    lines = (json.dumps(asdict(item), ensure_ascii=False) + "\n" for item in disagreements)
    write_atomic(path, "".join(lines))


def _keyed(samples: SampleSet) -> dict[Key, _Scored]:
    """First of each key, for filters that are known here."""
    keyed: dict[Key, _Scored] = {}
    for sample in samples.samples:
        earned = rescored(sample)
        if earned is not None:
            keyed.setdefault((sample.doc_id, sample.filter), _Scored(sample, *earned))
    return keyed


def _repeated(samples: SampleSet, side: str) -> Iterator[Finding]:
    seen: set[Key] = set()
    for sample in samples.samples:
        key = (sample.doc_id, sample.filter)
        if key in seen:
            message = "this document has more than one sample"
            yield Finding(code=Code.DUPLICATE_DOC, message=message, where=f"{side} {sample.where}")
        seen.add(key)


def _missing(left: dict[Key, _Scored], right: dict[Key, _Scored]) -> Iterator[Finding]:
    if not left.keys() & right.keys():
        yield Finding(code=Code.MISSING_DOC, message="no document is on both sides: nothing was compared")
    for here, there, side in ((left, right, "candidate"), (right, left, "baseline")):
        present = {name for _, name in there}
        for name in sorted({name for _, name in here} - present):
            message = f"the {side} has no sample filtered by {name}"
            yield Finding(code=Code.FILTER_MISSING, message=message, where=f"{side} filter={name}")
        for key, scored in here.items():
            if key not in there and key[1] in present:
                message = f"the {side} has no sample of this document, which the other side has"
                yield Finding(code=Code.MISSING_DOC, message=message, where=f"{side} {scored.sample.where}")


def _not_alike(pairs: Iterable[tuple[_Scored, _Scored]]) -> Iterator[Finding]:
    for one, other in pairs:
        where = one.sample.where
        if one.sample.prompt != other.sample.prompt:
            place = _first_difference(one.sample.prompt, other.sample.prompt)
            message = f"the two sides were not asked the same: {place}"
            yield Finding(code=Code.INPUT_MISMATCH, message=message, where=where)
        if one.sample.target != other.sample.target:
            place = _first_difference(one.sample.target, other.sample.target)
            yield Finding(code=Code.TARGET_MISMATCH, message=f"the targets differ: {place}", where=where)


def _first_difference(one: str, other: str) -> str:
    same = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    at = min(len(one), len(other)) if same is None else same
    return f"at character {at}, {one[at : at + 30]!r} against {other[at : at + 30]!r}"


def _disagreement(one: _Scored, other: _Scored) -> Disagreement | None:
    if one.right == other.right and (one.right or normalise(one.answer) == normalise(other.answer)):
        return None
    sample = one.sample
    return Disagreement(
        doc_id=sample.doc_id,
        filter=sample.filter,
        right="baseline" if one.right else "candidate" if other.right else "neither",
        question=str(sample.doc.get("question", sample.prompt)),
        gold=sample.target,
        baseline_extracted=one.answer,
        candidate_extracted=other.answer,
        baseline_answer=sample.response,
        candidate_answer=other.sample.response,
    )


def _stats(pairs: list[tuple[_Scored, _Scored]], disagreements: list[Disagreement]) -> FilterStats:
    n = len(pairs)
    correct = sum(one.right for one, _ in pairs)
    lost = sum(item.right == "baseline" for item in disagreements)
    gained = sum(item.right == "candidate" for item in disagreements)
    interval = paired_interval(n, lost, gained)
    return FilterStats(
        n=n,
        correct_baseline=correct,
        correct_candidate=correct - lost + gained,
        accuracy_baseline=correct / n,
        accuracy_candidate=(correct - lost + gained) / n,
        delta_pp=100 * (gained - lost) / n,
        only_baseline=lost,
        only_candidate=gained,
        both_wrong_different=sum(item.right == "neither" for item in disagreements),
        mcnemar_p=mcnemar_p(lost, gained),
        ci_low_pp=100 * interval.low,
        ci_high_pp=100 * interval.high,
    )


def _judge(name: str, stats: FilterStats, max_drop_pp: float) -> Iterator[Finding]:
    counts = (stats.n, stats.only_baseline, stats.only_candidate)
    decision = non_inferiority(*counts, max_drop_pp / 100)
    seen = (
        f"{name}: {stats.delta_pp:+.2f} pp, one-sided 95 % bounds {100 * decision.bounds.low:+.2f} and "
        f"{100 * decision.bounds.high:+.2f} pp, against an accepted drop of {max_drop_pp:g} pp"
    )
    where = f"filter={name}"
    if decision.verdict is Verdict.FAIL:
        message = f"{seen}: the drop is larger than accepted"
        yield Finding(code=Code.MARGIN_EXCEEDED, message=message, where=where)
    elif decision.verdict is Verdict.INCONCLUSIVE:
        effect = 100 * minimum_detectable_effect(*counts)
        if decision.documents_needed is None:
            remedy = (
                "the difference lies on the margin itself, and no number of documents is sure to settle it"
            )
        else:
            times = decision.documents_needed / stats.n
            remedy = f"about {decision.documents_needed} documents ({times:.1f} times these) would settle it"
        message = (
            f"{seen}: undecided; {remedy}; {stats.n} documents find a drop of {effect:.2f} pp (80 % power)"
        )
        yield Finding(code=Code.MARGIN_UNDECIDED, message=message, where=where)
