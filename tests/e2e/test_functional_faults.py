"""The shipped GLM-5.3 scenario's functional lanes on the simulated LightLLM: each fault of a feature is
caught by its check, with the right verdict and code, and the clean run passes.
"""

import json
from typing import Any

import pytest

from harness.host.addresses import own_address
from tests.e2e.conftest import Bench, Outcome

pytestmark = pytest.mark.e2e

BOUNDARY = ("fp8",)
PAUSE = ("pause-control", "pause")
RELOAD = ("pause", "cpu-cache")  # `pause` holds the reload's negative control
PD = ("fp8", "pd")
SMALL = {"max_total_token_num": 4096}
CPU = {"enable_cpu_cache": True}
DECODE = {"run_mode": "decode"}
PREFILL = {"run_mode": "prefill"}


def run(bench: Bench, lanes: tuple[str, ...], fault: dict[str, Any] | None, *more: str) -> Outcome:
    settings = {
        "speed": 0.1,  # at 0 a request may end before the next one comes
        "load_seconds": 0.3,
        "pd_speed": 0.1,
        "faults": [fault] if fault else [],
    }
    file = bench.root / "simulator.json"
    file.write_text(json.dumps(settings), encoding="utf-8")
    bench.env["HARNESS_SIMULATOR"] = str(file)
    words = [word for lane in lanes for word in ("--lane", lane)]
    if "fp8" in lanes:
        words += ["--set", "lanes.fp8.checks.gsm8k=null", "--set", "pairs.fp8=null"]
        words += ["--set", "lanes.fp8.checks.cache-boundary.request_s=5"]
    if "pd" in lanes and own_address().startswith("127."):
        pytest.skip("P/D nodes need an address that is not loopback, and this machine has none")
    if lanes == RELOAD:
        words += ["--set", "lanes.pause.checks.pause-resume=null"]
    if lanes == PAUSE:
        words += ["--set", "lanes.pause.checks.reload-control=null"]
    return bench.harness("run", "glm53-fp8kv", "--simulate", *words, *more)


@pytest.mark.parametrize("lanes", [BOUNDARY, PAUSE, RELOAD, PD], ids="+".join)
def test_a_clean_run_passes(bench: Bench, lanes: tuple[str, ...]) -> None:
    outcome = run(bench, lanes, None)
    verdicts = {name: lane["verdict"] for name, lane in outcome.summary["lanes"].items()}
    assert verdicts == dict.fromkeys(lanes, "PASS"), outcome.stdout
    assert outcome.summary["verdict"] == "REPORTED"  # it is simulated
    assert outcome.code == 0


@pytest.mark.parametrize(
    ("lanes", "fault", "verdict", "code"),
    [
        (BOUNDARY, {"fault": "cold-hits"}, "INVALID", "COLD_NOT_COLD"),
        (BOUNDARY, {"fault": "short-hit"}, "FAIL", "HIT_MISMATCH"),
        (BOUNDARY, {"fault": "warm-differs"}, "FAIL", "OUTPUT_DIFFERS"),
        (BOUNDARY, {"fault": "swapped-answers"}, "FAIL", "OUTPUT_DIFFERS"),
        (BOUNDARY, {"fault": "null-text", "share": 0.3}, "INVALID", "REQUEST_FAILED"),
        (BOUNDARY, {"fault": "stall", "after_requests": 3}, "FAIL", "STALLED"),
        (PAUSE, {"fault": "never-pauses", "when": SMALL}, "INVALID", "NOT_EXERCISED"),
        (PAUSE, {"fault": "loses-paused", "when": SMALL}, "FAIL", "OUTPUT_COUNT"),
        (PAUSE, {"fault": "shortens-paused", "when": SMALL}, "FAIL", "OUTPUT_COUNT"),
        (PAUSE, {"fault": "resume-corrupts", "when": SMALL}, "FAIL", "OUTPUT_DIFFERS"),
        (PAUSE, {"fault": "pool-leak", "when": SMALL}, "FAIL", "POOL_LEAK"),
        (RELOAD, {"fault": "cpu-never-read", "when": CPU}, "INVALID", "NOT_EXERCISED"),
        (RELOAD, {"fault": "cpu-logged-not-copied", "when": CPU}, "INVALID", "NOT_EXERCISED"),
        (RELOAD, {"fault": "reload-corrupts", "when": CPU}, "FAIL", "OUTPUT_DIFFERS"),
        (RELOAD, {"fault": "accept-collapse-after-reload", "when": CPU}, "FAIL", "ACCEPT_COLLAPSE"),
        (PD, {"fault": "pd-argument-mismatch", "when": DECODE}, "INVALID", "PD_MISMATCH"),
        (PD, {"fault": "pd-no-transfer"}, "INVALID", "NOT_EXERCISED"),
        (PD, {"fault": "pd-gap"}, "INVALID", "NOT_EXERCISED"),
        (PD, {"fault": "pd-corrupt-transfer"}, "FAIL", "OUTPUT_DIFFERS"),
        (PD, {"fault": "pd-transfer-error"}, "FAIL", "PD_TRANSFER"),
        (PD, {"fault": "health-green-while-dead"}, "FAIL", "PD_TRANSFER"),
        (PD, {"fault": "prefill-dies", "when": PREFILL, "after_requests": 3}, "FAIL", "SERVER_DIED"),
    ],
    ids=lambda value: value["fault"] if isinstance(value, dict) else None,
)
def test_fault_is_caught(
    bench: Bench, lanes: tuple[str, ...], fault: dict[str, Any], verdict: str, code: str
) -> None:
    outcome = run(bench, lanes, fault)
    judged = outcome.summary["lanes"][lanes[-1]]
    assert judged["verdict"] == verdict, outcome.stdout
    assert code in outcome.codes(), outcome.stdout
    for other in lanes[:-1]:
        assert outcome.summary["lanes"][other]["verdict"] == "PASS", outcome.stdout


def test_a_node_that_never_registers_is_named(bench: Bench) -> None:
    fault = {"fault": "pd-never-registers", "when": DECODE}
    outcome = run(bench, PD, fault, "--set", "lanes.pd.timeouts.start_s=8")
    assert outcome.summary["lanes"]["pd"]["verdict"] == "FAIL", outcome.stdout
    assert "PD_NOT_JOINED" in outcome.codes()
    assert "decode" in outcome.stdout
