"""Two directories in, one judged pair out: lane directories of runs, or plain lm-eval output."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.accuracy.audit import audit
from harness.accuracy.listing import listed
from harness.accuracy.pairing import pair_samples, write_disagreements
from harness.accuracy.parity import results_parity
from harness.accuracy.samples import SampleSet, load_samples
from harness.errors import ConfigError, HarnessError
from harness.evidence import fingerprint
from harness.evidence.record import PairResult, RunRecord
from harness.findings import Finding, verdict_of
from harness.verdict import Verdict

CHECK = "gsm8k"


def compare(
    a: Path,
    b: Path,
    *,
    max_drop_pp: float | None = None,
    expect_docs: int | None = None,
    may_differ: Sequence[str] | None = None,
    disagreements: Path | None = None,
) -> PairResult:
    """Audit both sides, hold them against each other, and pair them; `a` is the baseline.

    Two lane directories are held to the parity of their fingerprints, except for `may_differ`: by default
    what a pair of these lanes declares in the record of the run that either lies in. Anything else rests on
    the evaluator's results files, and PASS is out of reach. The threshold is judged on sound evidence only:
    empty answers, say, make INVALID and not FAIL. Disagreements are written where `disagreements` says.
    Raises ConfigError when a directory does not exist or the threshold is no number of points.
    """
    _check_arguments(a, b, max_drop_pp)
    baseline, candidate = _load(a), _load(b)
    findings = [
        *_audited("baseline", baseline, expect_docs, _requests(a)),
        *_audited("candidate", candidate, expect_docs, _requests(b)),
    ]
    told = {(finding.code, finding.where) for finding in findings if finding.where}
    if _is_lane(a) and _is_lane(b):
        findings += _lane_parity(a, b, _declared(a, b) if may_differ is None else may_differ)
    else:
        findings += listed(results_parity(baseline, candidate))
    sound = verdict_of(findings, Verdict.PASS) is not Verdict.INVALID
    paired, found = pair_samples(baseline, candidate, max_drop_pp if sound else None)
    findings += [finding for finding in paired.findings if (finding.code, finding.where) not in told]
    if disagreements is not None:
        write_disagreements(disagreements, found)
    return PairResult(verdict=verdict_of(findings, paired.verdict), findings=findings, filters=paired.filters)


def _check_arguments(a: Path, b: Path, max_drop_pp: float | None) -> None:
    problems = tuple(f"{folder} does not exist" for folder in (a, b) if not folder.exists())
    if problems:
        fix = "name two lane directories of runs, or two directories that lm-eval wrote with --output_path"
        raise ConfigError("there is nothing to compare", problems=problems, fix=fix)
    if max_drop_pp is not None and not 0 <= max_drop_pp <= 100:
        what = f"the accepted drop must lie between 0 and 100 percentage points, not {max_drop_pp}"
        raise ConfigError(what)


def _audited(side: str, samples: SampleSet, docs: int | None, requests: Path | None) -> list[Finding]:
    found = audit(samples, expected_docs=docs, requests=requests).findings
    return [finding.model_copy(update={"where": f"{side} {finding.where}".strip()}) for finding in found]


def _is_lane(folder: Path) -> bool:
    return (folder / fingerprint.FILE_NAME).is_file() and (folder / CHECK).is_dir()


def _load(folder: Path) -> SampleSet:
    return load_samples(folder / CHECK / "lm_eval" if _is_lane(folder) else folder)


def _requests(folder: Path) -> Path | None:
    path = folder / CHECK / "requests.jsonl"
    return path if _is_lane(folder) or path.is_file() else None


def _lane_parity(a: Path, b: Path, may_differ: Sequence[str]) -> list[Finding]:
    try:
        baseline, candidate = fingerprint.read_fingerprint(a), fingerprint.read_fingerprint(b)
    except HarnessError as error:
        return [error.finding()]
    return listed(fingerprint.parity_findings(baseline, candidate, may_differ))


def _declared(a: Path, b: Path) -> Sequence[str]:
    """`may_differ` of the pair of these two lanes in the record of a run that either belongs to."""
    names = {a.resolve().name, b.resolve().name}
    for folder in (a, b):
        for spec in _pair_specs(folder.resolve().parent / "run.json"):
            if {spec.get("baseline"), spec.get("candidate")} == names and spec.get("check", CHECK) == CHECK:
                return [str(entry) for entry in spec.get("may_differ") or ()]
    return ()


def _pair_specs(record: Path) -> list[dict[str, Any]]:
    """No readable record declares nothing: then nothing may differ."""
    try:
        specs = RunRecord.model_validate_json(record.read_bytes()).pair_specs
        return [pair.model_dump() for pair in specs.values()]
    except (OSError, ValueError):
        return []
