"""`smoke` against the simulated LightLLM: clean, and with each fault of its answers."""

from pathlib import Path

import pytest

from harness.checks.smoke import Smoke, SmokeParams
from harness.evidence.record import CheckResult
from harness.findings import Code
from harness.verdict import Verdict
from tests.checks.small_pool import LARGE, context_of, serving

pytestmark = pytest.mark.process
PARAMS = SmokeParams(max_tokens=1024)  # its tokens are bytes


def checked(root: Path, fault: str = "") -> CheckResult:
    folder = root / "lane" / "smoke"
    with serving(root / "servers", LARGE, fault=fault) as server:
        Smoke().collect(PARAMS, context_of(server, folder), None)
    return Smoke().judge(PARAMS, folder)


def test_clean_answers_pass(tmp_path: Path) -> None:
    result = checked(tmp_path)
    assert (result.verdict, result.findings) == (Verdict.PASS, [])


@pytest.mark.parametrize(
    ("fault", "verdict", "codes"),
    [
        ("empty-text", Verdict.FAIL, {Code.BAD_ANSWER}),
        ("null-text", Verdict.FAIL, {Code.BAD_ANSWER}),
        ("zero-tokens", Verdict.FAIL, {Code.BAD_ANSWER}),
        ("repeat-answers", Verdict.FAIL, {Code.BAD_ANSWER, Code.DEGENERATE, Code.STOP_RATE, Code.TRUNCATED}),
        ("error-500", Verdict.INVALID, {Code.REQUEST_FAILED}),
        ("busy-429", Verdict.INVALID, {Code.REQUEST_FAILED}),
    ],
)
def test_each_fault_is_found(tmp_path: Path, fault: str, verdict: Verdict, codes: set[Code]) -> None:
    result = checked(tmp_path, fault)
    assert (result.verdict, {finding.code for finding in result.findings}) == (verdict, codes)
