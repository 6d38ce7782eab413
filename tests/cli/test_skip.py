"""A lane whose scenario says why it is skipped: nothing of it is started, and the summary says why."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Harness

pytestmark = pytest.mark.process
WHY = "the FP8 kernels are CUDA's"


@pytest.mark.parametrize(("required", "exit_code"), [(False, 0), (True, 3)])
def test_a_skipped_lane_starts_nothing(
    harness: Harness, scenario: Callable[..., Path], tmp_path: Path, required: bool, exit_code: int
) -> None:
    said = harness("run", scenario(skip=WHY, required=required))
    assert said.code == exit_code, said.out
    assert f"SKIPPED  NOT_RUN  a: {WHY}\n" in said.out
    assert said.out.count(WHY) == 2, "once for each lane, not again for each check"
    assert f"a: not run: {WHY}" in said.err
    assert "loading" not in said.err
    run = (tmp_path / "runs" / "latest").resolve()
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    assert {name: lane["verdict"] for name, lane in summary["lanes"].items()} == {
        "a": "SKIPPED",
        "b": "SKIPPED",
    }
    assert summary["lanes"]["a"]["findings"] == [{"code": "NOT_RUN", "message": WHY, "where": "a"}]
    assert summary["pairs"]["p"]["verdict"] == "SKIPPED"
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    assert all(lane["servers"] == [] for lane in record["lanes"].values())
    assert not (run / "a").exists()


def test_the_plan_says_so(harness: Harness, scenario: Callable[..., Path]) -> None:
    said = harness("plan", scenario(skip=WHY))
    assert said.code == 0, said.err
    assert f"will be SKIPPED: {WHY}" in said.out
