"""Judging a pair of lanes from their folders: parity first, then the check's own pairing."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.checks.base import Check
from harness.evidence.fingerprint import (
    Fingerprint,
    idle_exemptions,
    parity_findings,
    read_fingerprint,
    up_to_check,
)
from harness.evidence.record import LaneRecord, PairResult
from harness.findings import Code, Finding, verdict_of
from harness.scenario.model import Pair
from harness.verdict import Verdict

NOT_KNOWN = ("missing", "unknown")
ESSENTIAL = "config.kv_dtype"  # where the server does not tell it, nobody knows what was compared


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One lane of a pair: its folder, the verdict that it earned with the pair's check, and all its checks in
    the order in which they ran."""

    name: str
    folder: Path
    verdict: Verdict
    checks: tuple[str, ...] = ()


def side_of(folder: Path, record: LaneRecord, check: str, more: Sequence[Finding] = ()) -> Side:
    """A lane as one side of a pair on `check`; `more` are findings that the record does not have."""
    own = record.checks[check].verdict if check in record.checks else Verdict.INVALID
    verdict = verdict_of([*record.findings, *more], own)
    return Side(name=record.name, folder=folder, verdict=verdict, checks=tuple(record.check_params))


def judge_pair(
    pair: Pair, check: Check, params: Any, baseline: Side, candidate: Side, out: Path | None
) -> PairResult:
    """The pair's result; details of disagreements are written under `out`, if given.

    A lane that failed, or that the host let down, is not compared at all: half of an evaluation says nothing
    about the other half. A margin is judged on sound evidence only. Raises HarnessError when a fingerprint
    is not there.
    """
    findings = [_unsound(side) for side in (baseline, candidate) if side.verdict.rank >= Verdict.INFRA.rank]
    folders = [side.folder / pair.check for side in (baseline, candidate)]
    broken = any(side.verdict in (Verdict.INFRA, Verdict.FAIL) for side in (baseline, candidate))
    if broken or not all(folder.is_dir() for folder in folders):
        return PairResult(verdict=verdict_of(findings, Verdict.SKIPPED), findings=findings)
    keys = [
        up_to_check(read_fingerprint(side.folder), side.checks, pair.check) for side in (baseline, candidate)
    ]
    findings += parity_findings(keys[0], keys[1], pair.may_differ)
    findings += _not_known(keys[0], keys[1])
    findings += _idle(keys[0], keys[1], pair)
    if verdict_of(findings, Verdict.PASS) is Verdict.INVALID:
        pair = pair.model_copy(update={"max_drop_pp": None})
    result = check.pair(params, pair, folders[0], folders[1], out)
    findings += result.findings
    findings += _unfit(result, pair.max_drop_pp)
    return result.model_copy(update={"findings": findings, "verdict": verdict_of(findings, result.verdict)})


def _unfit(result: PairResult, max_drop_pp: float | None) -> list[Finding]:
    """Where the baseline has nothing to lose, no candidate can lose it: two broken servers agree."""
    if max_drop_pp is None:
        return []
    return [
        Finding(
            code=Code.BASELINE_UNFIT,
            message=f"the baseline is right in {stats.correct_baseline} of {stats.n}: "
            f"losing all of that would not exceed the accepted drop of {max_drop_pp} pp",
            where=f"filter={name}",
        )
        for name, stats in result.filters.items()
        if 100 * stats.accuracy_baseline <= max_drop_pp
    ]


def _unsound(side: Side) -> Finding:
    code = Code.LANE_INFRA if side.verdict is Verdict.INFRA else Code.LANE_UNSOUND
    message = f"lane `{side.name}` is {side.verdict}: its evidence cannot carry a comparison"
    return Finding(code=code, message=message, where=side.name)


def _not_known(baseline: Fingerprint, candidate: Fingerprint) -> list[Finding]:
    """What neither side knows is equal on paper only; what is essential must be known of both, whatever the
    pair exempts."""
    sides = {"baseline": baseline, "candidate": candidate}
    found = []
    for key in {**baseline, **candidate}:
        essential = key.endswith(ESSENTIAL)
        silent = [
            side
            for side, keys in sides.items()
            if key in keys and (keys[key] in NOT_KNOWN or (essential and keys[key] is None))
        ]
        if len(silent) == 2 or (essential and silent):
            where = "both sides" if len(silent) == 2 else f"the {silent[0]}"
            message = f"{key} is {sides[silent[0]][key]} on {where}"
            found.append(Finding(code=Code.PARITY_UNKNOWN, message=message, where=key))
    return found


def _idle(baseline: Fingerprint, candidate: Fingerprint, pair: Pair) -> list[Finding]:
    """Exemptions that exempted nothing: misspelt, or the pair is not what it claims to be."""
    idle = idle_exemptions(baseline, candidate, pair.may_differ)
    reasons = [(entry, "no setting has this name") for entry in idle.unmatched]
    reasons += [(entry, "it is equal on both sides") for entry in idle.equal]
    return [
        Finding(code=Code.IDLE_EXEMPTION, message=f"may_differ names {entry}, but {reason}", where=pair.name)
        for entry, reason in reasons
    ]
