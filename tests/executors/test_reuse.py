"""What speaks against a baseline of an earlier run. Everything here is files."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.engines.base import Engine, Launch
from harness.evidence.digests import write_digests
from harness.evidence.fingerprint import write_fingerprint
from harness.evidence.record import LaneRecord, RunRecord
from harness.evidence.run_dir import RunDir
from harness.executors.judge import judge_run
from harness.executors.reuse import EarlierRun, _planned_fingerprint, objections
from harness.findings import Code, Finding
from harness.scenario.model import Lane, ModelSpec, ServerSpec
from harness.verdict import Verdict
from tests.accuracy import builders

CHECK = {"dataset": "x"}
LANE = Lane(
    name="bf16",
    engine="lightllm",
    model=ModelSpec(path="/nowhere"),
    servers=(ServerSpec(),),
    checks={"gsm8k": CHECK},
)


@pytest.fixture
def launches() -> list[tuple[Engine, Launch]]:
    engine = SimpleNamespace(
        name="lightllm", version=lambda launch: "1.0", environment=lambda launch: {"A": "1"}
    )
    launch = Launch(
        lane="bf16",
        role="normal",
        model_path="/nowhere",
        served_name="model",
        flags={"--tp": "4"},
        env={},
        ports={},
        folder=Path(),
    )
    return [(cast("Engine", engine), launch)]


@pytest.fixture
def past(tmp_path: Path, launches: list[tuple[Engine, Launch]]) -> RunDir:
    """A run that ended well, judged REPORTED, with its digests."""
    run = RunDir.create(tmp_path, "test")
    builders.write_lane(run.lane("bf16"), builders.problems(24), wrong={1, 2})
    write_fingerprint(run.lane("bf16"), _planned_fingerprint(LANE, launches))
    write_digests(run.lane("bf16"))
    lane = LaneRecord(name="bf16", status="done", check_params={"gsm8k": CHECK})
    fields: dict[str, Any] = {
        "run_id": run.run_id,
        "scenario": "s",
        "harness_version": "0",
        "command": [],
        "started_at": "now",
        "status": "done",
        "lanes": {"bf16": lane},
    }
    record = RunRecord(**fields)
    judge_run(run, record)
    assert record.lanes["bf16"].verdict is Verdict.REPORTED
    run.write(record)
    return run


def _objections(past: RunDir, launches: list[tuple[Engine, Launch]]) -> list[str]:
    return objections(EarlierRun.open(past.path), LANE, launches)


def _edit_samples(past: RunDir) -> None:
    """Somebody turns wrong answers into right ones, scores and extracted answers too."""

    def better(lines: list[dict[str, Any]]) -> None:
        for line in lines:
            if line["doc_id"] in (1, 2):
                line["exact_match"] = 1.0

    builders.edit_samples(past.check("bf16", "gsm8k"), better)


def test_nothing_speaks_against_a_sound_one(past: RunDir, launches: list[tuple[Engine, Launch]]) -> None:
    before = {path: path.read_bytes() for path in past.path.rglob("*") if path.is_file()}
    assert _objections(past, launches) == []
    assert {path: path.read_bytes() for path in past.path.rglob("*") if path.is_file()} == before


def test_samples_that_were_edited_after_the_run(past: RunDir, launches: list[tuple[Engine, Launch]]) -> None:
    _edit_samples(past)
    found = _objections(past, launches)
    assert any("has changed since it was written" in reason for reason in found), found
    assert any(reason.startswith("judged again, its evidence is INVALID: ") for reason in found), found


def test_samples_that_were_edited_with_their_digest(
    past: RunDir, launches: list[tuple[Engine, Launch]]
) -> None:
    """No digest tells; the record says REPORTED; only judging finds it."""
    _edit_samples(past)
    write_digests(past.lane("bf16"))
    (reason,) = _objections(past, launches)
    assert reason.startswith("judged again, its evidence is INVALID: SCORE_MISMATCH ")


def _unanswered(past: RunDir) -> None:
    """As if an older judge had not minded answers that the server never gave."""
    requests = past.check("bf16", "gsm8k") / "requests.jsonl"
    builders.edit_lines(requests, lambda lines: lines[0].update(status=500, error="boom"))
    write_digests(past.lane("bf16"))


def _crashing(past: RunDir) -> None:
    """The engine broke a rule, by the record's own finding, and the verdict was not made of it."""
    record = past.read()
    record.lanes["bf16"].findings.append(Finding(code=Code.FATAL_LOG, message="a fatal line\nmore"))
    past.write(record)


def _foreign(past: RunDir) -> None:
    record = json.loads((past.path / "run.json").read_text())
    record["lanes"]["bf16"]["check_params"]["gsm8k"]["limit"] = "many"
    (past.path / "run.json").write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (_unanswered, "judged again, its evidence is INVALID: REQUEST_FAILED "),
        (_crashing, "judged again, its evidence is FAIL: FATAL_LOG a fatal line"),
        (_foreign, "judged again, its evidence is INFRA: HARNESS_BUG "),
    ],
)
def test_a_record_that_says_reported_is_not_believed(
    past: RunDir, launches: list[tuple[Engine, Launch]], spoil: Callable[[RunDir], None], reason: str
) -> None:
    spoil(past)
    assert past.read().lanes["bf16"].verdict is Verdict.REPORTED
    found = _objections(past, launches)
    assert any(item.startswith(reason) for item in found), found
    assert all("\n" not in item for item in found)
