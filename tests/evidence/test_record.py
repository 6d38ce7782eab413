"""The record of a run: what it says of its verdicts, and what an older or newer harness makes of it."""

import json
from typing import Any

from harness.evidence.record import CheckResult, LaneRecord, PairResult, RunRecord
from harness.verdict import Verdict


def _record(**more: Any) -> RunRecord:
    base: dict[str, Any] = {
        "run_id": "r",
        "scenario": "s",
        "harness_version": "0",
        "command": [],
        "started_at": "now",
    }
    return RunRecord(**(base | more))


def test_every_verdict_has_its_place() -> None:
    lane = LaneRecord(
        name="fp8", verdict=Verdict.INVALID, checks={"gsm8k": CheckResult(verdict=Verdict.REPORTED)}
    )
    pairs = {"fp8": PairResult(verdict=Verdict.FAIL)}
    assert _record(verdict=Verdict.FAIL, lanes={"fp8": lane}, pairs=pairs).verdicts() == {
        "run": Verdict.FAIL,
        "lane fp8": Verdict.INVALID,
        "lane fp8, check gsm8k": Verdict.REPORTED,
        "pair fp8": Verdict.FAIL,
    }


def test_an_older_record_is_read_and_a_newer_one_too() -> None:
    record = _record(judged_first={"run": Verdict.PASS}, harness_revision="abc-dirty")
    told = json.loads(record.model_dump_json())
    assert RunRecord.model_validate(told | {"added_later": 1}) == record
    older = {key: value for key, value in told.items() if key not in ("judged_first", "harness_revision")}
    read = RunRecord.model_validate(older)
    assert (read.judged_first, read.harness_revision) == ({}, "")
