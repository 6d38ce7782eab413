"""The second half of a run, from the files alone: checks, pairs, verdicts. Pure but for what it writes into
the run directory; `harness judge RUN` repeats it months later on a laptop.
"""

import traceback
from pathlib import Path

from harness.accuracy.listing import listed, write_findings
from harness.errors import ConfigError, HarnessError
from harness.evidence.digests import FILE_NAME as DIGESTS
from harness.evidence.digests import check_digests, evidence_below
from harness.evidence.record import CheckResult, LaneRecord, PairResult, RunRecord
from harness.evidence.run_dir import RunDir
from harness.executors.pairs import judge_pair, side_of
from harness.executors.planned_check import parse_check
from harness.findings import EFFECT, Code, Finding, verdict_of
from harness.scenario.model import Pair
from harness.verdict import EXIT_INTERRUPTED, Verdict, exit_code, worst

UNFINISHED = ("started", "interrupted")


def judge_run(run: RunDir, record: RunRecord) -> None:
    """Fill every verdict of the record, in place. Its status is a fact, and stays as it is."""
    for lane in record.lanes.values():
        judge_lane(run, lane)
    record.pairs = {name: _pair(run, record, pair) for name, pair in record.pair_specs.items()}
    if record.status == "started":
        message = (
            "no end on record, and no process holds the run: its harness was killed, no release was verified"
        )
        _note(record.findings, Finding(code=Code.INTERRUPTED, message=message, where=record.run_id))
    counted = _counted(record)
    record.verdict = verdict_of(record.findings, worst(counted))
    record.exit_code = exit_code(record.verdict, require_gate=record.require_gate)
    if record.status == "interrupted":
        record.exit_code = EXIT_INTERRUPTED
    elif not counted and record.lanes and not record.findings and not record.require_gate:
        record.exit_code = 0  # every lane is optional, and was skipped with its reason


def judge_lane(run: RunDir, lane: LaneRecord) -> None:
    """As `examine_lane`; every finding goes into `findings.jsonl` of its check's folder, and the record keeps
    the first of each kind."""
    examine_lane(run, lane)
    for name, result in lane.checks.items():
        folder = run.check(lane.name, name)
        lane.checks[name] = result.model_copy(update={"findings": listed(result.findings)})
        if folder.is_dir():
            write_findings(folder, result.findings)


def examine_lane(run: RunDir, lane: LaneRecord) -> None:
    """Judge, and write nothing: each check of the lane from its folder; the lane's verdict is the worst of
    all it holds. A lane that did not come to its end has no verified release, and is never better than INFRA.
    """
    for name, given in lane.check_params.items():
        lane.checks[name] = _check(run, lane, name, given)
    told_before = (Code.EVIDENCE_MISSING, lane.name)  # it may have been restored since
    lane.findings = [item for item in lane.findings if (item.code, item.where) != told_before]
    for changed in _changed(run.lane(lane.name), lane):
        _note(lane.findings, Finding(code=Code.EVIDENCE_MISSING, message=changed, where=lane.name))
    if lane.status in UNFINISHED and (lane.servers or run.lane(lane.name).is_dir()):
        message = f"the lane did not come to its end ({lane.status}): {_release_of(lane)}"
        _note(lane.findings, Finding(code=Code.INTERRUPTED, message=message, where=lane.name))
    if not lane.check_params and not lane.findings:
        message = "the lane has no check: its server was started and stopped, nothing was measured"
        _note(lane.findings, Finding(code=Code.NOT_RUN, message=message, where=lane.name))
    lane.verdict = verdict_of(lane.findings, worst(result.verdict for result in lane.checks.values()))


def _release_of(lane: LaneRecord) -> str:
    """How far its release came. Only an interrupted lane has its servers on record in any case."""
    if "release" in lane.phases:
        return "its servers were stopped, and their release was verified"
    if lane.status == "interrupted" and not lane.servers:
        return "none of its servers had been started"
    return "its release was not verified"


def _changed(folder: Path, lane: LaneRecord) -> list[str]:
    """Files that are not as they were when the lane ended, and the list of them where it is gone. A lane that
    never ended has none, nor has one whose disk was full."""
    excused = lane.status in UNFINISHED or any(EFFECT[item.code] is Verdict.INFRA for item in lane.findings)
    due = not excused and evidence_below(folder)
    return check_digests(folder) if due or (folder / DIGESTS).is_file() else []


def _check(run: RunDir, lane: LaneRecord, name: str, given: dict[str, object]) -> CheckResult:
    collected = lane.collect_findings.get(name, [])
    folder = run.check(lane.name, name)
    if not folder.is_dir():
        told = any(finding.code is Code.NOT_RUN for finding in collected)  # by whoever decided not to run it
        findings = collected if told else [*collected, _without_folder(lane, name)]
        return CheckResult(verdict=verdict_of(findings, Verdict.SKIPPED), findings=findings)
    try:
        planned = parse_check(name, given)
        result = planned.check.judge(planned.params, folder)
    except ConfigError as error:
        result = _broken(f"this record's parameters do not fit this harness: {error}", folder)
    except Exception:  # noqa: BLE001 - a judge that crashes must not lose the run: it becomes a finding
        result = _broken(f"the judge of `{name}` crashed:\n{traceback.format_exc(limit=5)}", folder)
    if lane.status in UNFINISHED:  # what is missing then is told by the lane
        rest = [item for item in result.findings if item.code is not Code.EVIDENCE_MISSING]
        result = result.model_copy(update={"findings": rest, "verdict": verdict_of(rest, Verdict.SKIPPED)})
    return _with_collected(collected, result)


def _with_collected(collected: list[Finding], result: CheckResult) -> CheckResult:
    """What went wrong in collecting explains what is missing afterwards: no EVIDENCE_MISSING then. Where it
    was the host's fault (disk full), unsound evidence is its consequence, and the verdict stays INFRA."""
    cause = verdict_of(collected, Verdict.PASS)
    if cause.rank < Verdict.INFRA.rank:
        findings, base = collected + result.findings, result.verdict
    else:
        base = Verdict.REPORTED if result.verdict is Verdict.INVALID else result.verdict
        findings = collected + [
            finding
            for finding in result.findings
            if finding.code is not Code.EVIDENCE_MISSING
            and not (cause is Verdict.INFRA and EFFECT[finding.code] is Verdict.INVALID)
        ]
    return result.model_copy(update={"findings": findings, "verdict": verdict_of(findings, base)})


def _pair(run: RunDir, record: RunRecord, pair: Pair) -> PairResult:
    for name in (pair.baseline, pair.candidate):
        lane = record.lanes.get(name)
        if lane is None or _never_ran(lane) or _is_skipped(lane, pair.check):
            finding = Finding(code=Code.NOT_RUN, message=f"lane `{name}` was not run", where=name)
            return PairResult(verdict=Verdict.SKIPPED, findings=[finding])
        if pair.check not in lane.check_params:
            message = f"the record of lane `{name}` knows no check `{pair.check}`"
            finding = Finding(code=Code.EVIDENCE_MISSING, message=message, where=name)
            return PairResult(verdict=Verdict.INVALID, findings=[finding])
    try:
        planned = parse_check(pair.check, record.lanes[pair.baseline].check_params[pair.check])
        sides = [
            side_of(run.lane(name), record.lanes[name], pair.check)
            for name in (pair.baseline, pair.candidate)
        ]
        folder = run.pair(pair.name)
        result = judge_pair(pair, planned.check, planned.params, sides[0], sides[1], folder)
        if folder.is_dir():
            write_findings(folder, result.findings)
        return result.model_copy(update={"findings": listed(result.findings)})
    except HarnessError as error:
        finding = error.finding()
        return PairResult(verdict=verdict_of([finding], Verdict.REPORTED), findings=[finding])
    except Exception:  # noqa: BLE001 - see above
        message = f"judging the pair crashed:\n{traceback.format_exc(limit=5)}"
        finding = Finding(code=Code.HARNESS_BUG, message=message, where=pair.name)
        return PairResult(verdict=Verdict.INFRA, findings=[finding])


def _never_ran(lane: LaneRecord) -> bool:
    """The lane was skipped as a whole; not: one of its checks was."""
    return lane.verdict is Verdict.SKIPPED and any(item.code is Code.NOT_RUN for item in lane.findings)


def _is_skipped(lane: LaneRecord, check: str) -> bool:
    return check in lane.checks and lane.checks[check].verdict is Verdict.SKIPPED


def _counted(record: RunRecord) -> list[Verdict]:
    """Verdicts that count. An optional lane that was skipped does not worsen the run, nor do its pairs. A
    lane that is merely REPORTED does not either, where every check of it went into a pair that passed."""
    excused = {
        name
        for name, lane in record.lanes.items()
        if _never_ran(lane) and not lane.required and lane.status == "done"
    }
    gated = {
        (side, pair.check)
        for name, pair in record.pair_specs.items()
        for side in (pair.baseline, pair.candidate)
        if record.pairs[name].verdict is Verdict.PASS
    }
    verdicts = [
        lane.verdict
        for name, lane in record.lanes.items()
        if name not in excused and not (lane.verdict is Verdict.REPORTED and _all_gated(lane, gated))
    ]
    verdicts += (
        record.pairs[name].verdict
        for name, pair in record.pair_specs.items()
        if not excused & {pair.baseline, pair.candidate}
    )
    return verdicts


def _all_gated(lane: LaneRecord, gated: set[tuple[str, str]]) -> bool:
    reported = (check for check, result in lane.checks.items() if result.verdict is Verdict.REPORTED)
    return bool(lane.checks) and all((lane.name, check) in gated for check in reported)


def _without_folder(lane: LaneRecord, name: str) -> Finding:
    """A check that was never begun, or one whose evidence is gone."""
    own = [item for item in lane.findings if item.code is not Code.INTERRUPTED]  # told below, every time
    stopped = [item for item in own if EFFECT[item.code] is not None]
    if lane.status == "done" and not stopped and not lane.collect_findings.get(name):
        message = f"the lane came to its end, but the evidence of check `{name}` is gone"
        return Finding(code=Code.EVIDENCE_MISSING, message=message, where=lane.name)
    before = "the run was interrupted" if lane.status in UNFINISHED else "the lane ended"
    reason = stopped[0].headline if stopped else f"{before} before this check"
    return Finding(code=Code.NOT_RUN, message=f"not run: {reason}", where=lane.name)


def _note(findings: list[Finding], finding: Finding) -> None:
    """Judging again must not say it twice."""
    if finding not in findings:
        findings.append(finding)


def _broken(message: str, folder: Path) -> CheckResult:
    finding = Finding(code=Code.HARNESS_BUG, message=message, where=str(folder))
    return CheckResult(verdict=Verdict.INFRA, findings=[finding])
