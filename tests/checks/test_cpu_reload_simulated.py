"""`cpu-reload` and `accept-length` against the simulated LightLLM, in the FP8 procedure's small pool: clean,
and with every fault of the CPU tier."""

from pathlib import Path

import pytest

from harness.checks.accept_length import AcceptLength, AcceptLengthParams
from harness.checks.cpu_reload import CpuReload, CpuReloadParams
from harness.evidence.record import CheckResult
from harness.findings import Code
from harness.verdict import Verdict
from tests.checks.small_pool import SMALL, context_of, serving

pytestmark = pytest.mark.process

TIER = ("--enable_cpu_cache", "--cpu_cache_storage_size", "16", "--cache_placement_strategy", "legacy")
PARAMS = CpuReloadParams(control="control")
CONTROL = CpuReloadParams(tier=False)
ACCEPT = AcceptLengthParams(prompts=2, prompt_tokens=300, output_tokens=64)


def checked(root: Path, lane: str, params: CpuReloadParams, *flags: str, fault: str = "") -> CheckResult:
    with serving(root / "servers" / lane, SMALL, *flags, fault=fault) as server:
        folder = root / lane / "cpu-reload"
        CpuReload().collect(params, context_of(server, folder), None)
    return CpuReload().judge(params, folder)


@pytest.fixture(scope="module")
def lanes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the control collected."""
    root = tmp_path_factory.mktemp("lanes")
    result = checked(root, "control", CONTROL)
    assert (result.verdict, result.findings) == (Verdict.PASS, [])
    return root


def test_the_procedure_passes(lanes: Path) -> None:
    result = checked(lanes, "tier", PARAMS, *TIER)
    assert (result.verdict, result.findings) == (Verdict.PASS, [])
    assert (result.metrics["hit_device"], result.metrics["hit_host"]) == (0, 2048)
    assert result.metrics["evict_tokens"] == 2 * 2304


def test_a_tier_that_is_off_is_not_exercised(lanes: Path) -> None:
    result = checked(lanes, "none", PARAMS)
    assert (result.verdict, {finding.code for finding in result.findings}) == (
        Verdict.INVALID,
        {Code.NOT_EXERCISED},
    )


def test_a_control_with_a_tier_is_none(lanes: Path) -> None:
    result = checked(lanes, "false-control", CONTROL, *TIER)
    assert (result.verdict, {finding.code for finding in result.findings}) == (
        Verdict.INVALID,
        {Code.CONTROL_FAILED},
    )


@pytest.mark.parametrize(
    ("fault", "verdict", "codes"),
    [
        # Nothing is pushed out either.
        ("cold-hits", Verdict.INVALID, {Code.COLD_NOT_COLD, Code.NOT_EXERCISED}),
        ("short-hit", Verdict.FAIL, {Code.HIT_MISMATCH}),
        ("cpu-never-read", Verdict.INVALID, {Code.NOT_EXERCISED}),
        ("cpu-logged-not-copied", Verdict.INVALID, {Code.NOT_EXERCISED}),
        ("reload-corrupts", Verdict.FAIL, {Code.OUTPUT_DIFFERS}),
        ("accept-collapse-after-reload", Verdict.FAIL, {Code.ACCEPT_COLLAPSE}),
    ],
)
def test_each_fault_is_found(lanes: Path, fault: str, verdict: Verdict, codes: set[Code]) -> None:
    result = checked(lanes, fault, PARAMS, *TIER, fault=fault)
    found = {finding.code for finding in result.findings}
    if fault == "reload-corrupts":
        found.discard(Code.LOGPROB_DRIFT)  # where another word begins with the same token
    assert (result.verdict, found) == (verdict, codes)


def test_accept_length(lanes: Path) -> None:
    """Of a lane with MTP, against another of its kind, and with the legs of its other check."""
    params = ACCEPT.model_copy(update={"reference": "base"})
    for lane, own in (("base", ACCEPT), ("mtp", params)):
        with serving(lanes / "servers" / lane, SMALL, *TIER) as server:
            CpuReload().collect(PARAMS, context_of(server, lanes / lane / "cpu-reload"), None)
            AcceptLength().collect(own, context_of(server, lanes / lane / "accept-length"), None)
    result = AcceptLength().judge(params, lanes / "mtp" / "accept-length")
    assert (result.verdict, result.findings) == (Verdict.PASS, [])
    assert float(str(result.metrics["accept.cold"])) > 1
    assert result.metrics["accept.cold"] == result.metrics["reference.cold"]  # the same prompts
    assert float(str(result.metrics["accept.cpu-reload.reload"])) > 1
