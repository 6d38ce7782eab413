"""`run.json`: the one versioned description of what happened.

Written before, during and after a run, atomically. Its status is `started` until proven otherwise, so a
record that was left behind by a crash says so by itself.
"""

from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from harness.findings import Finding
from harness.scenario.model import Pair, Scalar
from harness.verdict import Verdict

SCHEMA_VERSION = 1
RUN = "run"  # the place of the run's own verdict

Status: TypeAlias = Literal["started", "done", "interrupted", "failed"]


class Recorded(BaseModel):
    """Base of record types: unknown keys of a newer minor version are kept out, missing ones defaulted."""

    model_config = ConfigDict(extra="ignore")


class CheckResult(Recorded):
    """The judged evidence of one check. `metrics` are numbers a person may want in a table; `told` is what
    was measured, in a few words."""

    verdict: Verdict
    findings: list[Finding] = Field(default_factory=list)
    metrics: dict[str, float | int | str | None] = Field(default_factory=dict)
    told: str = ""


class FilterStats(Recorded):
    """One filter of a pair. Accuracies are fractions; `delta_pp` = candidate - baseline, in percentage
    points; the interval is 95 % two-sided on that difference."""

    n: int
    correct_baseline: int
    correct_candidate: int
    accuracy_baseline: float
    accuracy_candidate: float
    delta_pp: float
    only_baseline: int
    only_candidate: int
    both_wrong_different: int
    mcnemar_p: float
    ci_low_pp: float
    ci_high_pp: float


class PairResult(Recorded):
    """The judged pair. `filters` maps a filter name to its statistics."""

    verdict: Verdict
    findings: list[Finding] = Field(default_factory=list)
    filters: dict[str, FilterStats] = Field(default_factory=dict)


class ServerRecord(Recorded):
    """One server process as it was started. `argv` and `env` are redacted; `env` is the difference."""

    role: str
    engine: str
    version: str = "unknown"
    argv: list[str]
    env: dict[str, str] = Field(default_factory=dict)
    ports: dict[str, int] = Field(default_factory=dict)
    gpus: list[str] = Field(default_factory=list)
    cpus: list[int] = Field(default_factory=list)
    pid: int | None = None
    exit_code: int | None = None
    stop: str = ""  # how it ended: exited | terminated | killed
    effective_config: dict[str, Scalar | None] = Field(default_factory=dict)


class LaneRecord(Recorded):
    """One lane. `phases` maps a phase (launch, ready, gsm8k, stop, ...) to seconds."""

    name: str
    status: Status = "started"
    verdict: Verdict = Verdict.SKIPPED
    required: bool = True
    findings: list[Finding] = Field(default_factory=list)
    servers: list[ServerRecord] = Field(default_factory=list)
    checks: dict[str, CheckResult] = Field(default_factory=dict)
    check_params: dict[str, dict[str, Any]] = Field(default_factory=dict)
    collect_findings: dict[str, list[Finding]] = Field(default_factory=dict)  # by check, while collecting
    phases: dict[str, float] = Field(default_factory=dict)


class RunRecord(Recorded):
    """The run. Times are UTC, ISO 8601. `harness_revision` is the commit of the checkout that the harness ran
    from, with `-dirty` where files differed from it; empty where it was installed. `judged_first` are the
    verdicts by place (`run`, `lane fp8`, `lane fp8, check gsm8k`, `pair fp8`) as the run ended, which judging
    again does not change."""

    schema_version: int = SCHEMA_VERSION
    run_id: str
    scenario: str
    description: str = ""
    harness_version: str
    harness_revision: str = ""
    command: list[str]
    status: Status = "started"
    verdict: Verdict = Verdict.SKIPPED
    exit_code: int | None = None
    require_gate: bool = False
    started_at: str
    finished_at: str | None = None
    host: dict[str, str | int | float | None] = Field(default_factory=dict)
    lanes: dict[str, LaneRecord] = Field(default_factory=dict)
    pairs: dict[str, PairResult] = Field(default_factory=dict)
    pair_specs: dict[str, Pair] = Field(default_factory=dict)
    findings: list[Finding] = Field(default_factory=list)
    judged_first: dict[str, Verdict] = Field(default_factory=dict)

    def verdicts(self) -> dict[str, Verdict]:
        """Every verdict of the record, by place."""
        found = {RUN: self.verdict}
        for name, lane in self.lanes.items():
            found[f"lane {name}"] = lane.verdict
            found |= {f"lane {name}, check {check}": result.verdict for check, result in lane.checks.items()}
        return found | {f"pair {name}": result.verdict for name, result in self.pairs.items()}
