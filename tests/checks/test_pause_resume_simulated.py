"""`pause-resume` against the simulated LightLLM: the procedure's own sizes, and every fault of pausing."""

from pathlib import Path

import pytest

from harness.checks.pause_resume import PauseResume, PauseResumeParams
from harness.evidence.record import CheckResult
from harness.findings import Code
from harness.verdict import Verdict
from tests.checks.small_pool import LARGE, SMALL, context_of, serving

pytestmark = pytest.mark.process

PARAMS = PauseResumeParams(reference="control")
CONTROL = PauseResumeParams(expect="none")


def checked(root: Path, lane: str, tokens: str, params: PauseResumeParams, fault: str = "") -> CheckResult:
    with serving(root / "servers" / lane, tokens, fault=fault) as server:
        folder = root / lane / "pause-resume"
        PauseResume().collect(params, context_of(server, folder), None)
    return PauseResume().judge(params, folder)


@pytest.fixture(scope="module")
def lanes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the control collected."""
    root = tmp_path_factory.mktemp("lanes")
    result = checked(root, "control", LARGE, CONTROL)
    assert (result.verdict, result.findings) == (Verdict.PASS, [])
    return root


def test_the_procedure_passes(lanes: Path) -> None:
    result = checked(lanes, "small", SMALL, PARAMS)
    assert (result.verdict, result.findings) == (Verdict.PASS, [])
    assert int(str(result.metrics["requests_paused"])) >= 1
    assert int(str(result.metrics["output_estimate"])) <= 223


@pytest.mark.parametrize(
    ("fault", "verdict", "codes"),
    [
        ("never-pauses", Verdict.INVALID, {Code.NOT_EXERCISED}),
        ("loses-paused", Verdict.FAIL, {Code.BAD_ANSWER, Code.OUTPUT_COUNT, Code.OUTPUT_DIFFERS}),
        ("shortens-paused", Verdict.FAIL, {Code.OUTPUT_COUNT, Code.OUTPUT_DIFFERS}),
        ("resume-corrupts", Verdict.FAIL, {Code.OUTPUT_DIFFERS}),
        ("pool-leak", Verdict.FAIL, {Code.POOL_LEAK}),
    ],
)
def test_each_fault_is_found(lanes: Path, fault: str, verdict: Verdict, codes: set[Code]) -> None:
    result = checked(lanes, fault, SMALL, PARAMS, fault)
    assert (result.verdict, {finding.code for finding in result.findings}) == (verdict, codes)


def test_a_control_with_a_small_pool_is_none(lanes: Path) -> None:
    result = checked(lanes, "false-control", SMALL, CONTROL)
    assert Code.CONTROL_FAILED in {finding.code for finding in result.findings}
    assert result.verdict is Verdict.INVALID


def test_without_lowering_the_estimate_nothing_pauses(lanes: Path) -> None:
    params = PARAMS.model_copy(update={"max_warmups": 0})
    result = checked(lanes, "as-started", SMALL, params)
    assert result.verdict is Verdict.INVALID
    assert "raise max_warmups" in next(
        finding.message for finding in result.findings if finding.code is Code.NOT_EXERCISED
    )
