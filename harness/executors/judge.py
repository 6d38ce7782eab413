"""The second half of a run, from the files alone: checks, pairs, verdicts. Pure but for what it writes into
the run directory; `harness judge RUN` repeats it months later on a laptop.
"""

import traceback
from pathlib import Path

from harness.errors import ConfigError, HarnessError
from harness.evidence.fingerprint import (
    Fingerprint,
    idle_exemptions,
    parity_findings,
    read_fingerprint,
)
from harness.evidence.record import CheckResult, LaneRecord, PairResult, RunRecord
from harness.evidence.run_dir import RunDir
from harness.executors.plan import parse_check
from harness.findings import Code, Finding, verdict_of
from harness.scenario.model import Pair
from harness.verdict import Verdict, exit_code, worst


def judge_run(run: RunDir, record: RunRecord) -> None:
    """Fill every verdict of the record, in place."""
    for lane in record.lanes.values():
        judge_lane(run, lane)
    for name, spec in record.pair_specs.items():
        record.pairs[name] = _guarded_pair(run, record, Pair.model_validate(spec))
    record.verdict = verdict_of(record.findings, worst(_counted(record)))
    record.exit_code = exit_code(record.verdict, require_gate=record.require_gate)


def judge_lane(run: RunDir, lane: LaneRecord) -> None:
    """Judge each check of the lane from its folder; the lane's verdict is the worst of all it holds."""
    for name, given in lane.check_params.items():
        lane.checks[name] = _guarded_check(run, lane, name, given)
    judged = [result.verdict for result in lane.checks.values()]
    served = lane.status == "done" and not any(finding.code is Code.NOT_RUN for finding in lane.findings)
    base = worst(judged) if judged else (Verdict.REPORTED if served else Verdict.SKIPPED)
    lane.verdict = verdict_of(lane.findings, base)


def _guarded_check(run: RunDir, lane: LaneRecord, name: str, given: dict[str, object]) -> CheckResult:
    collected = lane.collect_findings.get(name, [])
    folder = run.check(lane.name, name)
    if not folder.is_dir():
        reason = lane.findings[0].message if lane.findings else "the lane ended before this check"
        finding = Finding(code=Code.NOT_RUN, message=f"not run: {reason.splitlines()[0]}", where=lane.name)
        return CheckResult(verdict=Verdict.SKIPPED, findings=[*collected, finding])
    try:
        planned = parse_check(name, given)
        result = planned.check.judge(planned.params, folder)
    except ConfigError as error:
        result = _broken(f"this record's parameters do not fit this harness: {error}", folder)
    except Exception:  # noqa: BLE001 - a judge that crashes must not lose the run: it becomes a finding
        result = _broken(f"the judge of `{name}` crashed:\n{traceback.format_exc(limit=5)}", folder)
    findings = collected + result.findings
    return result.model_copy(update={"findings": findings, "verdict": verdict_of(findings, result.verdict)})


def _guarded_pair(run: RunDir, record: RunRecord, pair: Pair) -> PairResult:
    sides = [record.lanes.get(name) for name in (pair.baseline, pair.candidate)]
    for name, lane in zip((pair.baseline, pair.candidate), sides, strict=True):
        if lane is None or lane.verdict is Verdict.SKIPPED:
            reason = f"lane `{name}` was not run"
            finding = Finding(code=Code.NOT_RUN, message=reason, where=name)
            return PairResult(verdict=Verdict.SKIPPED, findings=[finding])
    try:
        return _pair(run, record, pair)
    except HarnessError as error:
        finding = error.finding()
        return PairResult(verdict=verdict_of([finding], Verdict.REPORTED), findings=[finding])
    except Exception:  # noqa: BLE001 - see above
        message = f"judging the pair crashed:\n{traceback.format_exc(limit=5)}"
        finding = Finding(code=Code.HARNESS_BUG, message=message, where=pair.name)
        return PairResult(verdict=Verdict.INFRA, findings=[finding])


def _pair(run: RunDir, record: RunRecord, pair: Pair) -> PairResult:
    given = record.lanes[pair.baseline].check_params[pair.check]
    planned = parse_check(pair.check, given)
    findings = _unsound(record, pair)
    if any(not run.check(name, pair.check).is_dir() for name in (pair.baseline, pair.candidate)):
        return PairResult(verdict=verdict_of(findings, Verdict.SKIPPED), findings=findings)
    keys = [read_fingerprint(run.lane(name)) for name in (pair.baseline, pair.candidate)]
    findings += parity_findings(keys[0], keys[1], pair.may_differ)
    findings += _idle(keys[0], keys[1], pair)
    if verdict_of(findings, Verdict.PASS) is Verdict.INVALID:  # a margin is judged on sound evidence only
        pair = pair.model_copy(update={"max_drop_pp": None})
    result = planned.check.pair(
        planned.params,
        pair,
        run.check(pair.baseline, pair.check),
        run.check(pair.candidate, pair.check),
        run.pair(pair.name),
    )
    findings += result.findings
    return result.model_copy(update={"findings": findings, "verdict": verdict_of(findings, result.verdict)})


def _unsound(record: RunRecord, pair: Pair) -> list[Finding]:
    return [
        Finding(
            code=Code.LANE_UNSOUND,
            message=f"lane `{name}` is {record.lanes[name].verdict}: its evidence cannot carry a comparison",
            where=name,
        )
        for name in (pair.baseline, pair.candidate)
        if record.lanes[name].verdict.rank > Verdict.INCONCLUSIVE.rank
    ]


def _idle(baseline: Fingerprint, candidate: Fingerprint, pair: Pair) -> list[Finding]:
    """Exemptions that exempted nothing: misspelt, or the pair is not what it claims to be."""
    idle = idle_exemptions(baseline, candidate, pair.may_differ)
    reasons = [(entry, "no setting has this name") for entry in idle.unmatched]
    reasons += [(entry, "it is equal on both sides") for entry in idle.equal]
    return [
        Finding(code=Code.IDLE_EXEMPTION, message=f"may_differ names {entry}, but {reason}", where=pair.name)
        for entry, reason in reasons
    ]


def _counted(record: RunRecord) -> list[Verdict]:
    """Verdicts that count. An optional lane that was skipped does not worsen the run, nor do its pairs. A
    lane that is merely REPORTED does not either, where every check of it went into a pair that passed."""
    excused = {
        name for name, lane in record.lanes.items() if lane.verdict is Verdict.SKIPPED and not lane.required
    }
    gated = {
        (str(spec[side]), str(spec["check"]))
        for name, spec in record.pair_specs.items()
        for side in ("baseline", "candidate")
        if record.pairs[name].verdict is Verdict.PASS
    }
    verdicts = [
        lane.verdict
        for name, lane in record.lanes.items()
        if name not in excused and not (lane.verdict is Verdict.REPORTED and _all_gated(lane, gated))
    ]
    for name, result in record.pairs.items():
        spec = record.pair_specs[name]
        if not excused & {str(spec["baseline"]), str(spec["candidate"])}:
            verdicts.append(result.verdict)
    return verdicts


def _all_gated(lane: LaneRecord, gated: set[tuple[str, str]]) -> bool:
    reported = (check for check, result in lane.checks.items() if result.verdict is Verdict.REPORTED)
    return bool(lane.checks) and all((lane.name, check) in gated for check in reported)


def _broken(message: str, folder: Path) -> CheckResult:
    finding = Finding(code=Code.HARNESS_BUG, message=message, where=str(folder))
    return CheckResult(verdict=Verdict.INFRA, findings=[finding])
