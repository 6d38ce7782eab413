"""Checks that are not run, since the answers that they would be compared with are not there.

A check whose reference was skipped, or broke off, could only end INVALID. It is SKIPPED instead, with the
reason; where a lane has no other check, nothing of it is started.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from harness.checks.base import reference_of
from harness.checks.exchange import EXCHANGES, load_evidence
from harness.errors import HarnessError
from harness.evidence.record import CheckResult, LaneRecord
from harness.evidence.run_dir import RunDir
from harness.executors.planned import PlannedLane
from harness.executors.planned_check import PlannedCheck
from harness.findings import EFFECT, Code, Finding
from harness.verdict import Verdict


def withheld(planned: PlannedLane, ended: Mapping[str, LaneRecord], run: RunDir) -> dict[str, str]:
    """By check of the lane, why it is not run. `ended` are the lanes that have come to an end and been
    judged; what another lane may still deliver is not missing yet."""
    found: dict[str, str] = {}
    for check in planned.checks:
        reference = reference_of(check.params, check.name)
        if reference is None:
            continue
        lane, name = reference
        if lane == planned.lane.name:
            if name in found:
                found[check.name] = f"check `{name}`, with whose answers it would be compared, is not run"
        elif lane in ended and (why := _undelivered(ended[lane], name, run)):
            found[check.name] = why
    return found


def cut_off(check: PlannedCheck, record: LaneRecord, run: RunDir) -> str:
    """Why a check is not run that refers to another of its own lane, now that this one has been collected:
    it broke off, or was not run. Empty for any other check."""
    lane, name = reference_of(check.params, check.name) or ("", "")
    if lane != record.name:
        return ""
    why = _unusable(record, name, CheckResult(verdict=Verdict.REPORTED), run)
    whose = "with whose answers it would be compared,"
    return f"check `{name}`, {whose} left no usable evidence: {why}" if why else ""


def unless_pointless(planned: PlannedLane, ended: Mapping[str, LaneRecord], run: RunDir) -> PlannedLane:
    """The lane, to be skipped if no check of it remains to be run. What the other lane did wrong is that
    lane's to answer for, so that an optional lane stays optional."""
    if planned.skip or planned.reuse or not planned.checks:
        return planned
    reasons = withheld(planned, ended, run)
    if len(reasons) < len(planned.checks):
        return planned
    why = "; ".join(dict.fromkeys(reasons.values()))
    return replace(planned, skip=why)


def without_reference(lanes: Sequence[PlannedLane]) -> list[PlannedLane]:
    """The lanes as planned; those whose every check refers to a lane that will be skipped are skipped too, as
    they would be once the run came to them."""
    ended = {planned.lane.name: _skipped(planned) for planned in lanes if planned.skip}
    found = [unless_pointless(planned, ended, RunDir(Path())) for planned in lanes]
    settled = all(new is old for new, old in zip(found, lanes, strict=True))
    return found if settled else without_reference(found)


def _skipped(planned: PlannedLane) -> LaneRecord:
    """The record that the lane will get."""
    finding = Finding(code=Code.NOT_RUN, message=planned.skip, where=planned.lane.name)
    left = finding.model_copy(update={"message": f"not run: {finding.headline}"})
    checks = {check.name: CheckResult(verdict=Verdict.SKIPPED, findings=[left]) for check in planned.checks}
    return LaneRecord(name=planned.lane.name, status="done", findings=[finding], checks=checks)


def _undelivered(lane: LaneRecord, name: str, run: RunDir) -> str:
    """Why the lane's check left nothing that another could be compared with; empty when it did."""
    who, whose = f"lane `{lane.name}`", "with whose answers it would be compared,"
    result = lane.checks.get(name, CheckResult(verdict=Verdict.SKIPPED))
    if result.verdict is not Verdict.SKIPPED:
        why = _unusable(lane, name, result, run)
        return f"check `{name}` of {who}, {whose} left no usable evidence: {why}" if why else ""
    why = _first(result.findings).removeprefix("not run: ")
    if any(finding.code is Code.NOT_RUN for finding in lane.findings):
        return f"{who}, {whose} was skipped: {why}"
    if name in lane.collect_findings or run.check(lane.name, name).is_dir():
        return f"check `{name}` of {who}, {whose} was skipped: {why}"
    return f"{who}, {whose} ended as {lane.verdict} before its check `{name}`: {why}"


def _unusable(lane: LaneRecord, name: str, result: CheckResult, run: RunDir) -> str:
    """What ended the check before its time, or that nothing was answered; empty when there are answers,
    whatever the judge thinks of them."""
    if cut := [item for item in lane.collect_findings.get(name, []) if EFFECT[item.code] is not None]:
        return _first(cut)
    folder = run.check(lane.name, name)
    if not (folder / EXCHANGES).is_file():  # gone, or a check that asks by another program
        return _first([item for item in result.findings if item.code is Code.EVIDENCE_MISSING])
    try:
        answered = any(exchange.error is None for exchange in load_evidence(folder).exchanges)
    except HarnessError as error:
        return error.what
    return "" if answered else "none of its requests was answered"


def _first(findings: list[Finding]) -> str:
    """The first of them in a line, or nothing."""
    return findings[0].headline if findings else ""
