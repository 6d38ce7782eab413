"""Two directories in, one judged pair out: lane directories of runs, or plain lm-eval output."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.accuracy.audit import audit
from harness.accuracy.listing import listed, write_findings
from harness.accuracy.pairing import pair_samples, write_disagreements
from harness.accuracy.parity import results_parity
from harness.accuracy.samples import MAX_ENTRIES, SampleSet, load_samples
from harness.errors import ConfigError, HarnessError
from harness.evidence.files import files_below
from harness.evidence.fingerprint import FILE_NAME, read_fingerprint
from harness.evidence.record import LaneRecord, PairResult, RunRecord
from harness.evidence.run_dir import RunDir
from harness.executors.judge import examine_lane
from harness.executors.pairs import Side, judge_pair, side_of
from harness.executors.planned_check import parse_check
from harness.executors.simulate import MARK, is_simulated
from harness.findings import Code, Finding, verdict_of
from harness.scenario.model import Pair
from harness.verdict import Verdict

CHECK = "gsm8k"
_OWN_EVIDENCE = ("dataset.json", "evaluator.json", "requests.jsonl")  # what no plain lm-eval output has


@dataclass(frozen=True, kw_only=True, slots=True)
class _Plain:
    """What lm-eval wrote, and what its audit found."""

    samples: SampleSet
    findings: list[Finding]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Lane:
    """A lane judged again from its files; `run` is the record that lies beside it, if one does."""

    side: Side
    record: LaneRecord
    run: RunRecord | None
    findings: list[Finding]

    @property
    def samples(self) -> SampleSet:
        return load_samples(self.side.folder / CHECK / "lm_eval")


def compare(
    a: Path,
    b: Path,
    *,
    max_drop_pp: float | None = None,
    expect_docs: int | None = None,
    out: Path | None = None,
) -> PairResult:
    """Judge both sides, hold them against each other, and pair them; `a` is the baseline.

    Two lane directories are judged as their run would judge them, and held to the parity of their
    fingerprints, except for what a pair of these lanes declares in the record of the run that either lies
    in. Anything else rests on the evaluator's results files, and PASS is out of reach. The threshold is
    judged on sound evidence only: empty answers, say, make INVALID and not FAIL. All findings and
    disagreements are written into the folder `out`; of the result's findings there are at most 20 of a kind
    for each side. Raises ConfigError when a directory does not exist or the threshold is no number of points.
    """
    _check_arguments(a, b, max_drop_pp)
    baseline, candidate = _examined("baseline", a, expect_docs), _examined("candidate", b, expect_docs)
    if isinstance(baseline, _Lane) and isinstance(candidate, _Lane):
        result = _paired_lanes(baseline, candidate, max_drop_pp, out)
    else:
        result = _paired_outputs(baseline, candidate, max_drop_pp, out)
    known = [*baseline.findings, *candidate.findings]
    told = {(finding.code, finding.where) for finding in known if finding.where}
    found = [finding for finding in result.findings if (finding.code, finding.where) not in told]
    if out is not None:
        write_findings(out, [*known, *found])
    kept = [*listed(baseline.findings, "baseline"), *listed(candidate.findings, "candidate"), *listed(found)]
    return PairResult(verdict=verdict_of(kept, result.verdict), findings=kept, filters=result.filters)


def exempted(a: Path, b: Path) -> tuple[str, ...]:
    """The settings that may differ between the two: those that the record of a run declares for a pair of
    these lanes; none where either is plain lm-eval output."""
    folders = [_lane_folder(given) for given in (a, b)]
    runs = [_run_of(folder)[0] for folder in folders]
    if not all(_is_lane(folder, run) for folder, run in zip(folders, runs, strict=True)):
        return ()
    return _declared((folders[0].name, folders[1].name), runs).may_differ


def _check_arguments(a: Path, b: Path, max_drop_pp: float | None) -> None:
    problems = [f"{folder} does not exist" for folder in (a, b) if not folder.exists()]
    problems += [f"{folder} is a whole run: name a lane in it" for folder in (a, b) if _is_run(folder)]
    problems += [
        f"{folder} is no directory that lm-eval wrote: more than {MAX_ENTRIES} files and folders lie in it"
        for folder in (a, b)
        if files_below(folder, MAX_ENTRIES) is None
    ]
    if not problems and a.resolve() == b.resolve():
        problems.append(f"{a} and {b} are the same directory")
    if problems:
        fix = "name two lane directories of runs, or two directories that lm-eval wrote with --output_path"
        raise ConfigError("there is nothing to compare", problems=tuple(problems), fix=fix)
    if max_drop_pp is not None and not 0 <= max_drop_pp < 100:
        what = f"the accepted drop must be at least 0 and below 100 percentage points, not {max_drop_pp}"
        raise ConfigError(what)


def _is_run(folder: Path) -> bool:
    return (folder / "run.json").is_file()


def _examined(side: str, given: Path, expect_docs: int | None) -> _Lane | _Plain:
    folder = _lane_folder(given)
    run, findings = _run_of(folder)
    if _is_lane(folder, run):
        return _lane(side, folder, run, findings, expect_docs)
    samples = load_samples(given)
    return _Plain(samples=samples, findings=_of(side, audit(samples, expected_docs=expect_docs).findings))


def _lane_folder(given: Path) -> Path:
    """A check's folder stands for its lane."""
    folder = given.resolve()
    own = folder.name == CHECK and any((folder / name).is_file() for name in _OWN_EVIDENCE)
    return folder.parent if own else folder


def _is_lane(folder: Path, run: RunRecord | None) -> bool:
    traces = [folder / FILE_NAME, *(folder / CHECK / name for name in _OWN_EVIDENCE)]
    return (run is not None and folder.name in run.lanes) or any(trace.is_file() for trace in traces)


def _run_of(lane: Path) -> tuple[RunRecord | None, list[Finding]]:
    """The record of the run that a lane's folder lies in, and what is to be said of it."""
    file = lane.parent / "run.json"
    if not file.is_file():
        message = (
            "there is no run.json beside the lane's directory: whether its server lived and was released is "
            "not known, so the most that can be said is REPORTED; compare lanes where their run left them"
        )
        return None, [Finding(code=Code.PARITY_UNKNOWN, message=message, where=str(file))]
    try:
        record = RunDir(lane.parent).read()
    except ConfigError as error:
        return None, [Finding(code=Code.EVIDENCE_MISSING, message=error.what, where=str(file))]
    if lane.name in record.lanes:
        return record, []
    message = f"the run that this directory lies in has no lane `{lane.name}`: was it renamed or copied here?"
    return record, [Finding(code=Code.EVIDENCE_MISSING, message=message, where=str(file))]


def _lane(
    side: str, folder: Path, run: RunRecord | None, findings: list[Finding], expect_docs: int | None
) -> _Lane:
    record = run.lanes.get(folder.name) if run is not None else None
    if record is None:
        record = LaneRecord(name=folder.name, status="done", check_params={CHECK: {}})
    record = record.model_copy(deep=True)
    examine_lane(RunDir(folder.parent), record)
    found = [*findings, *record.findings]
    for result in record.checks.values():
        found += result.findings
    if CHECK not in record.checks:
        message = f"by the record of its run, lane `{record.name}` had no check {CHECK}"
        found.append(Finding(code=Code.EVIDENCE_MISSING, message=message, where=CHECK))
    docs = record.checks[CHECK].metrics.get("n") if CHECK in record.checks else None
    if expect_docs is not None and docs != expect_docs:
        message = f"{docs or 'no'} documents were evaluated, and --expect-docs says {expect_docs}"
        more = isinstance(docs, int) and docs > expect_docs
        found.append(Finding(code=Code.UNEXPECTED_DOC if more else Code.MISSING_DOC, message=message))
    if is_simulated(record) or str(_version(folder)).endswith(MARK):
        message = f"{record.name}: on the simulator; this says nothing of an engine"
        found.append(Finding(code=Code.SIMULATED, message=message, where=record.name))
    return _Lane(
        side=side_of(folder, record, CHECK, found),
        record=record,
        run=run,
        findings=_of(side, found),
    )


def _version(folder: Path) -> object:
    try:
        return read_fingerprint(folder).get("version")
    except HarnessError:  # told elsewhere
        return None


def _of(side: str, findings: list[Finding]) -> list[Finding]:
    return [finding.model_copy(update={"where": f"{side} {finding.where}".strip()}) for finding in findings]


def _paired_lanes(
    baseline: _Lane, candidate: _Lane, max_drop_pp: float | None, out: Path | None
) -> PairResult:
    names = (baseline.side.name, candidate.side.name)
    declared = _declared(names, [baseline.run, candidate.run])
    pair = declared.model_copy(update={"max_drop_pp": max_drop_pp})
    planned = parse_check(CHECK, baseline.record.check_params.get(CHECK, {}))
    try:
        return judge_pair(pair, planned.check, planned.params, baseline.side, candidate.side, out)
    except HarnessError as error:
        finding = error.finding()
        return PairResult(verdict=verdict_of([finding], Verdict.REPORTED), findings=[finding])


def _declared(names: tuple[str, str], runs: Sequence[RunRecord | None]) -> Pair:
    """The pair of these two lanes that a run of either declares, whichever way round; else one that exempts
    nothing."""
    for run in runs:
        for pair in run.pair_specs.values() if run is not None else ():
            if {pair.baseline, pair.candidate} == set(names) and pair.check == CHECK:
                return pair
    return Pair(name="compare", baseline=names[0], candidate=names[1], check=CHECK)


def _paired_outputs(
    baseline: _Lane | _Plain, candidate: _Lane | _Plain, max_drop_pp: float | None, out: Path | None
) -> PairResult:
    left, right = baseline.samples, candidate.samples
    findings = results_parity(left, right)
    for side in (baseline, candidate):
        if isinstance(side, _Lane):
            findings += _fingerprint_findings(side.side.folder)
    everything = [*baseline.findings, *candidate.findings, *findings]
    sound = verdict_of(everything, Verdict.PASS).rank < Verdict.INFRA.rank
    paired, disagreements = pair_samples(left, right, max_drop_pp if sound else None)
    if out is not None:
        write_disagreements(out / "disagreements.jsonl", disagreements)
    return paired.model_copy(update={"findings": [*findings, *paired.findings]})


def _fingerprint_findings(lane: Path) -> list[Finding]:
    try:
        read_fingerprint(lane)
    except HarnessError as error:
        return [error.finding()]
    return []
