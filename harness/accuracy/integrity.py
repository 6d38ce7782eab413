"""Each sample against itself: hashes, target, extracted answer and score, recomputed from the raw text."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from harness.accuracy import scoring
from harness.accuracy.samples import Sample
from harness.evidence.digests import text_sha256
from harness.findings import Code, Finding

Earned: TypeAlias = tuple[str, bool]  # the answer that a raw response gives, and whether it is right


def doc_hash(doc: Mapping[str, Any]) -> str:
    """As lm-eval hashes a document: over its indented JSON, keys in their order, non-ASCII as it is."""
    return text_sha256(json.dumps(doc, indent=2, ensure_ascii=False))


def rescored(sample: Sample) -> Earned | None:
    """The answer and score that the raw response earns, or None for a filter that is not known here."""
    if sample.filter not in scoring.FILTERS:
        return None
    answer = scoring.extract(sample.response or "", sample.filter)
    return answer, scoring.score(answer, sample.target)


def check_samples(samples: Iterable[tuple[Sample, Earned | None]]) -> Iterator[Finding]:
    """Hashes, targets, extracted answers and scores, each against its own recomputation."""
    for sample, earned in samples:
        for name, recorded, recomputed in (
            ("doc_hash", sample.doc_hash, doc_hash(sample.doc)),
            ("prompt_hash", sample.prompt_hash, text_sha256(sample.prompt)),
            ("target_hash", sample.target_hash, text_sha256(sample.target)),
        ):
            if recorded != recomputed:
                message = f"{name} is {recorded[:12]}…, and of the text itself {recomputed[:12]}…"
                yield Finding(code=Code.HASH_MISMATCH, message=message, where=sample.where)
        gold = sample.doc.get("answer")
        if isinstance(gold, str) and gold != sample.target:
            message = "the target is not the document's own answer"
            yield Finding(code=Code.TARGET_MISMATCH, message=message, where=sample.where)
        yield from _score(sample, earned)


def _score(sample: Sample, earned: Earned | None) -> Iterator[Finding]:
    if earned is None:
        message = f"filter {sample.filter} is not known here, so its scores cannot be recomputed"
        yield Finding(code=Code.SCORE_MISMATCH, message=message, where=sample.where)
        return
    answer, right = earned
    if sample.filtered != answer:
        message = f"the evaluator extracted {sample.filtered!r:.80}; the raw response gives {answer!r:.80}"
        yield Finding(code=Code.SCORE_MISMATCH, message=message, where=sample.where)
    if sample.score != right:
        message = f"the evaluator scored {sample.score:g}; the raw response earns {right:d}"
        yield Finding(code=Code.SCORE_MISMATCH, message=message, where=sample.where)


def check_unity(samples: Iterable[Sample], documents: Mapping[int, Sample]) -> Iterator[Finding]:
    """All filters of a document saw the same question, prompt, target and answer."""
    for sample in samples:
        first = documents[sample.doc_id]
        if sample is first:
            continue
        for name in ("doc", "prompt", "target", "response"):
            if getattr(sample, name) != getattr(first, name):
                message = f"the {name} differs from that of filter {first.filter} for the same document"
                yield Finding(code=Code.HASH_MISMATCH, message=message, where=sample.where)
