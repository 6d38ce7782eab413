"""Judging legs of a functional check against one another. Pure.

Identical ids are the rule. Ids that differ while the control leg (the same load, the feature not triggered)
is identical, all of it, are the feature's fault; where the control differs too, batch shape alone changes the
numbers.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from harness.checks.exchange import SKIPPED, Evidence, Exchange
from harness.evidence.record import CheckResult
from harness.findings import EFFECT, Code, Finding, verdict_of
from harness.verdict import Verdict

TELLING = 8  # ids that two different prompts do not share by chance
SHOWN = 8  # ids on each side of a difference
# Tokens that a fresh prompt may have in common with a stranger's: both begin with a random number, and where
# the cache has no pages, or pages of one token, an equal first digit is a hit.
CHANCE = 6
ENDINGS = ("stop", "length")


def result(
    findings: list[Finding],
    metrics: Mapping[str, float | int | str | None] | None = None,
    told: str = "",
    earned: Verdict = Verdict.PASS,
) -> CheckResult:
    """`earned` where nothing was found."""
    return CheckResult(
        verdict=verdict_of(findings, earned), findings=findings, metrics=dict(metrics or {}), told=told
    )


def sound(exchanges: Iterable[Exchange], *, exact_count: bool = True) -> list[Finding]:
    """Every request answered, its prompt as long as asked, and, with `exact_count`, its output too."""
    found = []
    for exchange in exchanges:
        name = f"{exchange.leg} {exchange.case}"
        if exchange.error is not None:
            message = f"{name}: {exchange.error}"
            found.append(Finding(code=Code.REQUEST_FAILED, message=message, where=exchange.where))
            continue
        if exchange.prompt_tokens != exchange.asked_tokens:
            message = (
                f"{name}: the server counted {exchange.prompt_tokens} prompt tokens, "
                f"{exchange.asked_tokens} were sent: not the length that is tested"
            )
            found.append(Finding(code=Code.NOT_EXERCISED, message=message, where=exchange.where))
        if exchange.finish_reason not in ENDINGS:
            message = f"{name}: finish reason {exchange.finish_reason!r}, reported with HTTP 200"
            found.append(Finding(code=Code.BAD_ANSWER, message=message, where=exchange.where))
        elif exact_count and exchange.completion_tokens != exchange.max_tokens:
            message = (
                f"{name}: {exchange.completion_tokens} tokens came back, {exchange.max_tokens} were asked for"
            )
            found.append(Finding(code=Code.OUTPUT_COUNT, message=message, where=exchange.where))
        if len(exchange.ids) != exchange.completion_tokens:
            message = f"{name}: {len(exchange.ids)} token ids for {exchange.completion_tokens} tokens"
            found.append(Finding(code=Code.BAD_ANSWER, message=message, where=exchange.where))
        if not exchange.text and len(exchange.ids) >= TELLING:
            message = f"{name}: an empty text for {len(exchange.ids)} token ids"
            found.append(Finding(code=Code.BAD_ANSWER, message=message, where=exchange.where))
    return found


def cold(evidence: Evidence, leg: str) -> list[Finding]:
    """No request of this leg may have found anything in a cache, but for a few tokens by chance."""
    found = []
    for case, exchange in answered(evidence, leg).items():
        hit = evidence.most_cached(exchange)
        if hit is None:
            message = f"{leg} {case}: the server does not tell cached tokens, so that nothing can be proven"
            found.append(Finding(code=Code.NOT_EXERCISED, message=message, where=exchange.where))
        elif hit > CHANCE:
            message = f"{leg} {case}: {hit} prompt tokens came from a cache: it was not cold"
            found.append(Finding(code=Code.COLD_NOT_COLD, message=message, where=exchange.where))
    return found


def control_cold(evidence: Evidence, leg: str) -> list[Finding]:
    """The negative control: where the cache was put aside, the proof must be absent."""
    found = []
    for case, exchange in answered(evidence, leg).items():
        got = evidence.most_cached(exchange)
        if got is None:
            message = f"{leg} {case}: the server does not tell cached tokens: the control says nothing"
            found.append(Finding(code=Code.NOT_EXERCISED, message=message, where=exchange.where))
        elif got:
            message = (
                f"{leg} {case}: {got} prompt tokens came from the cache that this request was to leave "
                "aside: a hit proves nothing here"
            )
            found.append(Finding(code=Code.CONTROL_FAILED, message=message, where=exchange.where))
    return found


def asked(evidence: Evidence, names: Iterable[str], cases: Iterable[str]) -> list[Finding]:
    """Every case of every leg was asked at all."""
    wanted = list(cases)
    return [
        Finding(
            code=Code.EVIDENCE_MISSING,
            message=f"{leg} {case} was not asked, or its evidence is gone",
            where=leg,
        )
        for leg in names
        for case in wanted
        if case not in evidence.leg(leg)
    ]


def hit(evidence: Evidence, leg: str, expected: Mapping[str, int]) -> list[Finding]:
    """Every request of this leg must have found exactly what the engine's page arithmetic says."""
    found = []
    for case, exchange in answered(evidence, leg).items():
        got = evidence.cached(exchange).total
        if case not in expected:
            message = f"{leg} {case}: what it must hit is not on file"
            found.append(Finding(code=Code.EVIDENCE_MISSING, message=message, where=exchange.where))
        elif expected[case] == 0:
            message = (
                f"{leg} {case}: {exchange.asked_tokens} tokens are less than a page of the cache: there is "
                "nothing to hit; ask longer prompts"
            )
            found.append(Finding(code=Code.NOT_EXERCISED, message=message, where=exchange.where))
        elif got != expected[case]:
            message = f"{leg} {case}: {got} prompt tokens came from the cache, {expected[case]} were expected"
            found.append(Finding(code=Code.HIT_MISMATCH, message=message, where=exchange.where))
    return found


def same_output(
    evidence: Evidence, reference: str, leg: str, control: str | None, standard: str | None = None
) -> list[Finding]:
    """The leg's ids must equal those of the reference leg, case by case. They are the feature's fault where
    the whole control leg is steady: one of its answers that moves shows that batch shape moves numbers. Of a
    control from another lane, `standard` is that lane's own reference: equal to it, it is steady too."""
    references = answered(evidence, reference)
    controls = answered(evidence, control) if control else {}
    standards = answered(evidence, standard) if standard else {}
    moved = []
    for case, other in controls.items():
        own = [of[case].ids for of in (references, standards) if case in of]
        if own and other.ids not in own:
            moved.append(case)
    found = []
    for case, exchange in answered(evidence, leg).items():
        base = references.get(case)
        if base is None or base.ids == exchange.ids:
            continue
        what = f"{leg} {case} differs from {reference}: {difference(base, exchange)}"
        if case in controls and not moved:
            found.append(Finding(code=Code.OUTPUT_DIFFERS, message=what, where=exchange.where))
            continue
        why = f"the control leg differs too ({', '.join(moved)})"
        why = why if case in controls else "there is no control leg to tell why"
        found.append(Finding(code=Code.OUTPUT_UNSTABLE, message=f"{what}; {why}", where=exchange.where))
    return found


def crossed(evidence: Evidence, reference: str, leg: str) -> list[Finding]:
    """An answer that is another case's answer: requests were mixed up, whatever a control leg does."""
    references = answered(evidence, reference)
    found = []
    for case, exchange in answered(evidence, leg).items():
        own = references.get(case)
        theirs = [
            name
            for name, other in references.items()
            if name != case and other.ids == exchange.ids and len(exchange.ids) >= TELLING
        ]
        if own is not None and own.ids != exchange.ids and theirs:
            message = f"{leg} {case} got the answer that belongs to {theirs[0]}: requests were mixed up"
            found.append(Finding(code=Code.OUTPUT_DIFFERS, message=message, where=exchange.where))
    return found


def parting(base: Exchange, other: Exchange) -> int:
    """How many ids two outputs begin with in common."""
    both = enumerate(zip(base.ids, other.ids, strict=False))
    return next((at for at, (one, two) in both if one != two), min(len(base.ids), len(other.ids)))


def difference(base: Exchange, other: Exchange) -> str:
    """Where two outputs part, in words: position, ids, and how sure the server was of each side's token."""
    at = parting(base, other)
    text = f"first at token {at + 1} of {len(base.ids)}: "
    text += f"{base.ids[at : at + SHOWN]} against {other.ids[at : at + SHOWN]}"
    if at < len(base.logprobs) and at < len(other.logprobs):
        one, two = base.logprobs[at], other.logprobs[at]
        text += f" (log-probability {one:.4f} against {two:.4f}, margin {abs(one - two):.4f})"
    return text


def unfit(findings: Iterable[Finding], what: str, place: Path) -> list[Finding]:
    """What is wrong with another lane's evidence, told by the check that refers to it. `what` it is to that
    check: the reference, the control; `place`: its folder."""
    name = f"{place.parent.name}/{place.name}"
    return [
        Finding(
            code=Code.CONTROL_FAILED if finding.code is Code.CONTROL_FAILED else Code.REFERENCE_UNFIT,
            message=f"{what} {name}: {finding.message}",
            where=f"{name}/{finding.where}",
        )
        for finding in findings
        if EFFECT[finding.code] is not None
    ]


def skipped(evidence: Evidence) -> CheckResult | None:
    """The result where the check could not be made of this server; None where it could."""
    reason = evidence.facts.notes.get(SKIPPED)
    return None if reason is None else result([Finding(code=Code.NOT_RUN, message=str(reason))])


def missing_evidence(error: Exception, folder: Path) -> CheckResult:
    """The result where the check's evidence cannot be read."""
    finding = Finding(code=Code.EVIDENCE_MISSING, message=str(error), where=str(folder))
    return CheckResult(verdict=Verdict.INVALID, findings=[finding])


def answered(evidence: Evidence, leg: str) -> dict[str, Exchange]:
    """Requests that failed are told once, by `sound`."""
    return {case: exchange for case, exchange in evidence.leg(leg).items() if exchange.error is None}
