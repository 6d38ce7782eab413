"""Real llama.cpp servers: reload from the host's prompt cache with its negative control, the same with the
cache switched off, a draft model's accept length, and the probes."""

from typing import Any

import pytest

from harness import models
from tests.e2e.conftest import Bench, assert_clean, bench

__all__ = ["bench"]
pytestmark = [pytest.mark.e2e, pytest.mark.process]
MODEL = "smollm2-135m"
RELOAD = {"length": 200, "output_tokens": 8}
ACCEPT = {"prompts": 1, "prompt_tokens": 100, "output_tokens": 24, "reference_length": 1.5}


@pytest.fixture
def real(bench: Bench) -> Bench:
    if models.locate(MODEL) is None:
        pytest.skip(f"the model is not here; get it with: harness models pull {MODEL}")
    return bench


def _lane(checks: dict[str, Any], **flags: Any) -> dict[str, Any]:
    base = {"--ctx-size": 1024, "--parallel": 1, "--flash-attn": "on"}
    base |= {"--cache-type-k": "bf16", "--cache-type-v": "bf16"}  # with f16 the model loops on some questions
    return {
        "engine": "llamacpp",
        "model": {"pull": MODEL, "served_name": "smol"},
        "cpus": 1,
        "flags": base | {f"--{name.replace('_', '-')}": value for name, value in flags.items()},
        "timeouts": {"start_s": 60, "start_cap_s": 120, "request_s": 120, "stop_s": 10},
        "checks": checks,
    }


def test_reload_speculation_and_probes(real: Bench) -> None:
    draft = {"model_draft": str(models.locate(MODEL)), "spec_type": "draft-simple", "spec_draft_n_max": 4}
    outcome = real.run(
        {
            "off": _lane({"cpu-reload": RELOAD | {"tier": False}, "accept-length": ACCEPT}, cache_ram=0),
            "on": _lane({"cpu-reload": RELOAD | {"control": "off"}, "smoke": {}}),
            "claimed": _lane({"cpu-reload": RELOAD | {"control": "off"}}, cache_ram=0),
            "draft": _lane({"accept-length": ACCEPT, "cpu-reload": RELOAD}, **draft),
        }
    )
    checks = {name: lane["checks"] for name, lane in outcome.summary["lanes"].items()}
    told = {
        (lane, check): (result["verdict"], {finding["code"] for finding in result["findings"]})
        for lane, results in checks.items()
        for check, result in results.items()
    }
    assert told == {
        ("off", "cpu-reload"): ("PASS", set()),
        ("off", "accept-length"): ("INVALID", {"NOT_EXERCISED"}),  # it does not speculate
        ("on", "cpu-reload"): ("PASS", set()),
        ("on", "smoke"): ("PASS", set()),
        ("claimed", "cpu-reload"): ("INVALID", {"NOT_EXERCISED"}),
        ("draft", "accept-length"): ("PASS", set()),
        ("draft", "cpu-reload"): ("REPORTED", set()),  # no negative control ran
    }
    metrics = checks["draft"]["cpu-reload"]["metrics"]
    assert metrics["hit"] == metrics["expected_host"] == RELOAD["length"] - 1
    assert metrics["accept_after"] == metrics["accept_before"] > 1
    assert outcome.code == 5
    assert_clean(outcome.run)
