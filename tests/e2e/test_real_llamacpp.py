"""The thinnest real run: two real llama.cpp servers, the real model, lm-eval, the pair, the release."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from harness import models
from harness.host.ports import still_bound
from tests.e2e.conftest import Bench, marked

pytestmark = pytest.mark.e2e
DOCS = 4


@pytest.fixture
def real(bench: Bench) -> Bench:
    if models.locate("smollm2-135m") is None:
        reason = "the model is not here; get it with: harness models pull smollm2-135m"
        if os.environ.get("HARNESS_REQUIRE_MODEL"):
            pytest.fail(reason)
        pytest.skip(reason)
    bench.use_plain_evaluator()
    test = bench.root / "data" / "test.jsonl"
    lines = test.read_text(encoding="utf-8").splitlines(keepends=True)
    test.write_text("".join(lines[:DOCS]), encoding="utf-8")
    return bench


def _lane(bench: Bench, kv: str) -> dict[str, Any]:
    return {
        "engine": "llamacpp",
        "model": {"pull": "smollm2-135m", "served_name": "smol"},
        "cpus": 1,
        "flags": {"--ctx-size": 4096, "--parallel": 2, "--flash-attn": "on"}
        | {"--cache-type-k": kv, "--cache-type-v": kv},
        "expect": {"kv_dtype": kv},
        "timeouts": {"start_s": 60, "start_cap_s": 120, "stop_s": 10},
        "checks": {"gsm8k": bench.check(num_concurrent=2, batch_size=1, timeout_s=120, stall_s=120)},
    }


def test_bf16_against_q8_0_kv_cache(real: Bench) -> None:
    pair = {"baseline": "bf16", "candidate": "q8", "may_differ": ["flags.--cache-type-*", "config.kv_dtype"]}
    outcome = real.run({"bf16": _lane(real, "bf16"), "q8": _lane(real, "q8_0")}, {"kv": pair})
    assert outcome.code == 0, outcome.stdout + outcome.stderr
    assert outcome.summary["verdict"] == "REPORTED"
    assert outcome.summary["pairs"]["kv"]["filters"]["strict-match"]["n"] == DOCS
    assert outcome.run is not None
    record = json.loads((outcome.run / "run.json").read_text(encoding="utf-8"))
    assert marked(outcome.run) == []
    for name, kv in (("bf16", "bf16"), ("q8", "q8_0")):
        server = record["lanes"][name]["servers"][0]
        assert server["effective_config"]["kv_dtype"] == kv
        assert server["stop"] == "terminated"
        assert still_bound(list(server["ports"].values())) == []
        _assert_recorded(outcome.run / name / "gsm8k")
    again = real.harness("compare", str(outcome.run / "bf16"), str(outcome.run / "q8"), "--json")
    compared = json.loads(again.stdout)
    assert compared["verdict"] == "REPORTED"
    assert compared["filters"] == outcome.summary["pairs"]["kv"]["filters"]


def test_kv_type_that_was_not_asked_for_is_found(real: Bench) -> None:
    lane = _lane(real, "q8_0") | {"expect": {"kv_dtype": "bf16"}, "checks": {}}
    outcome = real.run({"lane": lane})
    assert outcome.code == 5
    assert "CONFIG_REWRITTEN" in outcome.codes()
    assert "q8_0" in outcome.stdout


def _assert_recorded(folder: Path) -> None:
    """One request per document, with what lm-eval drops: finish reason and usage."""
    lines = (folder / "requests.jsonl").read_text(encoding="utf-8").splitlines()
    requests = [json.loads(line) for line in lines]
    assert len(requests) == DOCS
    assert {request["status"] for request in requests} == {200}
    assert {request["finish_reason"] for request in requests} <= {"stop", "length"}
    assert all(request["prompt_tokens"] > 100 for request in requests)
    assert all(request["attempt"] == 1 for request in requests)
