"""Judging from files alone: nothing here starts a process or opens a socket."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from harness.codes import Code
from harness.errors import ConfigError
from harness.evidence.digests import FILE_NAME as DIGESTS
from harness.evidence.digests import write_digests
from harness.evidence.files import write_json
from harness.evidence.fingerprint import write_fingerprint
from harness.evidence.record import LaneRecord, RunRecord, ServerRecord
from harness.evidence.run_dir import RunDir
from harness.executors import judge
from harness.findings import Finding
from harness.verdict import Verdict
from tests.accuracy import builders

DOCS = 24
KEYS = {"engine": "llamacpp", "flags.--cache-type-k": "bf16"}


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir.create(tmp_path, "test")


def _lane(
    run: RunDir, name: str, *, wrong: set[int] | None = None, keys: dict[str, Any] | None = None
) -> LaneRecord:
    folder = builders.write_lane(run.lane(name), builders.problems(DOCS), wrong=wrong or set())
    write_fingerprint(folder, KEYS | (keys or {}))
    return LaneRecord(name=name, status="done", check_params={"gsm8k": {"dataset": "x"}})


def _record(*lanes: LaneRecord, pair: dict[str, Any] | None = None, **more: Any) -> RunRecord:
    specs = (
        {"p": {"name": "p", "baseline": "a", "candidate": "b", "check": "gsm8k"} | pair}
        if pair is not None
        else {}
    )
    base: dict[str, Any] = {
        "run_id": "r",
        "scenario": "s",
        "harness_version": "0",
        "command": [],
        "started_at": "now",
        "status": "done",
        "lanes": {lane.name: lane for lane in lanes},
        "pair_specs": specs,
    }
    return RunRecord(**(base | more))


def judge_run(run: RunDir, record: RunRecord) -> None:
    """As a run ends: its evidence, such as it is, is fixed by digests before it is judged."""
    for name in record.lanes:
        if run.lane(name).is_dir() and not (run.lane(name) / DIGESTS).exists():
            write_digests(run.lane(name))
    judge.judge_run(run, record)


def _codes(findings: list[Finding]) -> set[Code]:
    return {finding.code for finding in findings}


def test_sound_lane_is_reported_never_passed(run: RunDir) -> None:
    record = _record(_lane(run, "a"))
    judge_run(run, record)
    assert record.lanes["a"].verdict is Verdict.REPORTED, record.lanes["a"].checks
    assert record.exit_code == 0


def test_a_gate_wants_more_than_a_report(run: RunDir) -> None:
    record = _record(_lane(run, "a"), require_gate=True)
    judge_run(run, record)
    assert record.exit_code == 3


def test_equal_lanes_pass_a_wide_margin(run: RunDir) -> None:
    record = _record(_lane(run, "a"), _lane(run, "b"), pair={"max_drop_pp": 20.0})
    judge_run(run, record)
    assert record.pairs["p"].verdict is Verdict.PASS, record.pairs["p"]
    assert record.verdict is Verdict.PASS, "both lanes went into a pair that passed its stated rule"


def test_a_lane_outside_the_passing_pair_still_only_reports(run: RunDir) -> None:
    lanes = (_lane(run, "a"), _lane(run, "b"), _lane(run, "c"))
    record = _record(*lanes, pair={"max_drop_pp": 20.0}, require_gate=True)
    judge_run(run, record)
    assert record.pairs["p"].verdict is Verdict.PASS
    assert record.verdict is Verdict.REPORTED
    assert record.exit_code == 3


def test_a_gate_can_be_passed(run: RunDir) -> None:
    record = _record(_lane(run, "a"), _lane(run, "b"), pair={"max_drop_pp": 20.0}, require_gate=True)
    judge_run(run, record)
    assert record.exit_code == 0


def test_equal_lanes_are_inconclusive_at_a_margin_too_narrow_for_the_evidence(run: RunDir) -> None:
    record = _record(_lane(run, "a"), _lane(run, "b", wrong={1}), pair={"max_drop_pp": 1.0})
    judge_run(run, record)
    assert record.pairs["p"].verdict is Verdict.INCONCLUSIVE
    assert record.exit_code == 3


def test_undeclared_difference_is_invalid(run: RunDir) -> None:
    record = _record(_lane(run, "a"), _lane(run, "b", keys={"flags.--cache-type-k": "q8_0"}), pair={})
    judge_run(run, record)
    assert Code.PARITY in _codes(record.pairs["p"].findings)
    assert record.exit_code == 5


def test_declared_difference_is_not(run: RunDir) -> None:
    lanes = (_lane(run, "a"), _lane(run, "b", keys={"flags.--cache-type-k": "q8_0"}))
    record = _record(*lanes, pair={"may_differ": ["flags.--cache-type-*"]})
    judge_run(run, record)
    assert record.pairs["p"].verdict is Verdict.REPORTED


def test_setting_that_only_one_side_has_is_a_difference(run: RunDir) -> None:
    record = _record(_lane(run, "a"), _lane(run, "b", keys={"config.added_last_week": 1}), pair={})
    judge_run(run, record)
    assert Code.PARITY in _codes(record.pairs["p"].findings)


def test_lane_that_failed_cannot_carry_a_pair(run: RunDir) -> None:
    broken = _lane(run, "b")
    broken.status = "failed"
    broken.findings.append(Finding(code=Code.SERVER_DIED, message="gone"))
    record = _record(_lane(run, "a"), broken, pair={"max_drop_pp": 20.0})
    judge_run(run, record)
    assert record.pairs["p"].verdict is Verdict.INVALID
    assert record.verdict is Verdict.FAIL


def test_margin_is_not_judged_on_unsound_evidence(run: RunDir) -> None:
    worse = _lane(run, "b", wrong=set(range(DOCS)), keys={"flags.--tp": 8})
    record = _record(_lane(run, "a"), worse, pair={"max_drop_pp": 1.0})
    judge_run(run, record)
    assert record.pairs["p"].verdict is Verdict.INVALID
    assert Code.MARGIN_EXCEEDED not in _codes(record.pairs["p"].findings)


def test_exemption_that_exempts_nothing_is_noted(run: RunDir) -> None:
    record = _record(_lane(run, "a"), _lane(run, "b"), pair={"may_differ": ["flags.--no-such", "engine"]})
    judge_run(run, record)
    notes = [f.message for f in record.pairs["p"].findings if f.code is Code.IDLE_EXEMPTION]
    assert len(notes) == 2


def test_missing_fingerprint_is_missing_evidence(run: RunDir) -> None:
    record = _record(_lane(run, "a"), _lane(run, "b"), pair={"max_drop_pp": 20.0})
    (run.lane("b") / "fingerprint.json").unlink()
    judge_run(run, record)
    assert record.pairs["p"].verdict is Verdict.INVALID
    assert Code.EVIDENCE_MISSING in _codes(record.pairs["p"].findings)


def test_evaluator_exit_code_counts_even_with_full_samples(run: RunDir) -> None:
    record = _record(_lane(run, "a"))
    write_json(run.check("a", "gsm8k") / "evaluator.json", {"argv": [], "exit_code": 1})
    judge_run(run, record)
    assert record.lanes["a"].verdict is Verdict.INVALID


@pytest.mark.parametrize("name", ["dataset.json", "evaluator.json"])
def test_lost_or_broken_evidence_is_invalid_not_a_crash(run: RunDir, name: str) -> None:
    record = _record(_lane(run, "a"))
    (run.check("a", "gsm8k") / name).write_text("{", encoding="utf-8")
    judge_run(run, record)
    assert Code.EVIDENCE_MISSING in _codes(record.lanes["a"].checks["gsm8k"].findings)
    assert record.exit_code == 5


def test_lane_never_run_is_skipped_and_not_a_success(run: RunDir) -> None:
    lane = LaneRecord(name="a", check_params={"gsm8k": {"dataset": "x"}})
    record = _record(lane)
    lane.status = "started"
    judge_run(run, record)
    assert record.verdict is Verdict.SKIPPED
    assert record.exit_code == 3


def test_optional_lane_that_was_skipped_does_not_worsen_the_run(run: RunDir) -> None:
    skipped = LaneRecord(name="b", required=False, status="done", check_params={"gsm8k": {"dataset": "x"}})
    skipped.findings.append(Finding(code=Code.NOT_RUN, message="needs Hopper"))
    record = _record(_lane(run, "a"), skipped, pair={})
    judge_run(run, record)
    assert record.pairs["p"].verdict is Verdict.SKIPPED
    assert record.verdict is Verdict.REPORTED


def test_judging_again_changes_nothing(run: RunDir) -> None:
    record = _record(_lane(run, "a"), _lane(run, "b", wrong={1, 2}), pair={"max_drop_pp": 1.0})
    judge_run(run, record)
    first = record.model_dump_json()
    judge_run(run, record)
    assert record.model_dump_json() == first
    assert json.loads(first)["pairs"]["p"]["filters"]["strict-match"]["n"] == DOCS


def test_record_of_another_harness_is_told_not_crashed(run: RunDir) -> None:
    lane = _lane(run, "a")
    lane.check_params = {"gsm8k": {"dataset": "x", "unknown_parameter": 1}}
    record = _record(lane)
    judge_run(run, record)
    assert record.lanes["a"].verdict is Verdict.INFRA
    assert Code.HARNESS_BUG in _codes(record.lanes["a"].checks["gsm8k"].findings)


@pytest.mark.parametrize("status", ["started", "interrupted"])
def test_lane_whose_release_was_never_verified_cannot_pass(run: RunDir, status: Any) -> None:
    """Killed while the last lane was stopping: all evidence is on disk, and yet nothing may be claimed."""
    stopping = _lane(run, "b")
    stopping.status = status
    record = _record(_lane(run, "a"), stopping, pair={"max_drop_pp": 20.0}, status="started")
    judge_run(run, record)
    judge_run(run, record)
    assert record.verdict is Verdict.INFRA
    assert record.exit_code == 4
    assert record.status == "started", "a judge states no facts"
    assert len([f for f in record.findings if f.code is Code.INTERRUPTED]) == 1


@pytest.mark.parametrize(
    ("status", "phases", "servers", "told"),
    [
        ("interrupted", {"release": 0.1}, ["x"], "its servers were stopped, and their release was verified"),
        ("interrupted", {"stop": 0.1}, ["x"], "its release was not verified"),
        ("interrupted", {}, [], "none of its servers had been started"),
        ("started", {}, [], "its release was not verified"),  # killed: they are on record only once ready
    ],
)
def test_how_far_the_release_of_an_interrupted_lane_came(
    run: RunDir, status: Any, phases: dict[str, float], servers: list[str], told: str
) -> None:
    lane = LaneRecord(name="a", status=status, check_params={"gsm8k": {"dataset": "x"}}, phases=phases)
    lane.servers = [ServerRecord(role=role, engine="e", argv=[]) for role in servers]
    run.lane("a").mkdir()
    record = _record(lane, LaneRecord(name="b", check_params={"gsm8k": {}}), status="interrupted")
    for _ in range(2):  # judging again says the same
        judge_run(run, record)
        (finding,) = record.lanes["a"].findings
        assert finding.code is Code.INTERRUPTED
        assert finding.message == f"the lane did not come to its end ({status}): {told}"
        assert record.lanes["a"].verdict is Verdict.INFRA
        for name in "ab":
            (skipped,) = record.lanes[name].checks["gsm8k"].findings
            assert skipped.message == "not run: the run was interrupted before this check"


def test_interrupted_run_exits_130_again(run: RunDir) -> None:
    record = _record(_lane(run, "a"), status="interrupted")
    judge_run(run, record)
    assert record.exit_code == 130


def test_optional_lane_that_was_never_reached_is_not_excused(run: RunDir) -> None:
    lane = LaneRecord(name="b", required=False, check_params={"gsm8k": {"dataset": "x"}})
    record = _record(_lane(run, "a"), lane, status="interrupted")
    judge_run(run, record)
    assert record.verdict is Verdict.SKIPPED


def test_run_of_optional_skipped_lanes_only(run: RunDir) -> None:
    lane = LaneRecord(name="b", required=False, status="done", check_params={"gsm8k": {}})
    lane.findings.append(Finding(code=Code.NOT_RUN, message="needs Hopper"))
    record = _record(lane)
    judge_run(run, record)
    assert (record.verdict, record.exit_code) == (Verdict.SKIPPED, 0)
    record.require_gate = True
    judge_run(run, record)
    assert record.exit_code == 3


def test_lane_that_the_host_let_down_leaves_its_pair_to_the_host(run: RunDir) -> None:
    down = _lane(run, "b")
    down.status = "failed"
    down.findings.append(Finding(code=Code.PORT_TAKEN, message="taken"))
    record = _record(_lane(run, "a"), down, pair={"max_drop_pp": 20.0})
    judge_run(run, record)
    assert record.pairs["p"].verdict is Verdict.INFRA
    assert record.exit_code == 4


@pytest.mark.parametrize("value", ["missing", "unknown"])
def test_what_neither_side_knows_is_not_parity(run: RunDir, value: str) -> None:
    lanes = [_lane(run, name, keys={"model.digest": value}) for name in "ab"]
    record = _record(*lanes, pair={"max_drop_pp": 20.0})
    judge_run(run, record)
    assert record.pairs["p"].verdict is Verdict.REPORTED


@pytest.mark.parametrize("name", ["../x", "..", "a/b", ""])
def test_names_of_a_foreign_record_lead_nowhere(run: RunDir, name: str) -> None:
    with pytest.raises(ConfigError):
        run.pair(name)


def test_disk_that_was_full_is_the_hosts_fault_and_nothing_else(run: RunDir) -> None:
    lane = _lane(run, "a")
    lane.collect_findings["gsm8k"] = [Finding(code=Code.DISK_FULL, message="no space left on device")]
    check = run.check("a", "gsm8k")
    (check / "evaluator.json").unlink()
    record = _record(lane)
    judge_run(run, record)
    assert (record.verdict, record.exit_code) == (Verdict.INFRA, 4)
    assert _codes(record.lanes["a"].checks["gsm8k"].findings) == {Code.DISK_FULL}
    write_json(check / "evaluator.json", {"argv": [], "exit_code": 1})  # evidence lost on the way instead
    (run.lane("a") / DIGESTS).unlink()
    builders.edit_lines(check / "requests.jsonl", lambda lines: lines.pop())
    builders.edit_samples(check, lambda lines: lines.pop())
    judge_run(run, record)
    assert record.verdict is Verdict.INFRA


def test_server_that_hung_is_not_missing_evidence_as_well(run: RunDir) -> None:
    lane = _lane(run, "a")
    lane.collect_findings["gsm8k"] = [Finding(code=Code.STALLED, message="hangs")]
    builders.edit_lines(run.check("a", "gsm8k") / "requests.jsonl", lambda lines: lines.pop())
    (run.check("a", "gsm8k") / "evaluator.json").unlink()
    record = _record(lane)
    judge_run(run, record)
    assert record.verdict is Verdict.FAIL
    assert _codes(record.lanes["a"].checks["gsm8k"].findings) == {Code.STALLED}


def test_a_finding_that_explains_nothing_excuses_nothing(run: RunDir) -> None:
    lane = _lane(run, "a")
    lane.collect_findings["gsm8k"] = [Finding(code=Code.TRUNCATED, message="cut")]
    (run.check("a", "gsm8k") / "evaluator.json").unlink()
    record = _record(lane)
    judge_run(run, record)
    assert Code.EVIDENCE_MISSING in _codes(record.lanes["a"].checks["gsm8k"].findings)


@pytest.mark.parametrize("text", ["", "500"])
def test_unknown_stop_rate_is_not_a_low_one(run: RunDir, text: str) -> None:
    """Nothing was answered: that is no sound evidence, and convicts nobody."""
    lane = _lane(run, "a")
    lane.check_params["gsm8k"]["min_natural_stop"] = 0.5
    requests = run.check("a", "gsm8k") / "requests.jsonl"
    if text:
        fault = {"status": 500, "error": "boom"}
        builders.edit_lines(requests, lambda lines: [line.update(fault) for line in lines])
    else:
        requests.write_text("", encoding="utf-8")
    record = _record(lane)
    judge_run(run, record)
    assert record.verdict is Verdict.INVALID
    assert Code.STOP_RATE not in _codes(record.lanes["a"].checks["gsm8k"].findings)


def test_low_stop_rate_fails_the_lane(run: RunDir) -> None:
    lane = _lane(run, "a")
    lane.check_params["gsm8k"]["min_natural_stop"] = 0.5
    cut = {"finish_reason": "length"}
    requests = run.check("a", "gsm8k") / "requests.jsonl"
    builders.edit_lines(requests, lambda lines: [line.update(cut) for line in lines[1:]])
    record = _record(lane)
    judge_run(run, record)
    assert Code.STOP_RATE in _codes(record.lanes["a"].checks["gsm8k"].findings)
    assert record.verdict is Verdict.FAIL


def test_every_finding_is_filed_and_the_record_keeps_the_first(run: RunDir) -> None:
    lanes = (_lane(run, "a"), _lane(run, "b"))
    docs = builders.problems(DOCS)
    answers = dict.fromkeys(range(DOCS), " I do not know.")
    for lane in lanes:
        builders.write_lane(run.lane(lane.name), docs, fingerprint=KEYS, answers=answers)
    keys = KEYS | {f"config.{number}": number for number in range(30)}
    write_fingerprint(run.lane("b"), keys)
    record = _record(*lanes, pair={})
    judge_run(run, record)
    judge_run(run, record)
    kept = [f for f in record.lanes["a"].checks["gsm8k"].findings if f.code is Code.NO_FINAL_ANSWER]
    assert len(kept) == 21
    filed = builders.read_lines(run.check("a", "gsm8k") / "findings.jsonl")
    assert {line["where"] for line in filed} == {f"doc_id={number}" for number in range(DOCS)}
    assert len([f for f in record.pairs["p"].findings if f.code is Code.PARITY]) == 21
    filed = builders.read_lines(run.pair("p") / "findings.jsonl")
    assert len([line for line in filed if line["code"] == "PARITY"]) >= 30


def test_data_set_without_a_digest_proves_nothing(run: RunDir) -> None:
    record = _record(_lane(run, "a"))
    file = run.check("a", "gsm8k") / "dataset.json"
    write_json(file, json.loads(file.read_bytes()) | {"sha256": {}})
    judge_run(run, record)
    assert Code.EVIDENCE_MISSING in _codes(record.lanes["a"].checks["gsm8k"].findings)
    assert record.verdict is Verdict.INVALID


def test_empty_fingerprints_are_not_equal(run: RunDir) -> None:
    record = _record(_lane(run, "a"), _lane(run, "b"), pair={"max_drop_pp": 20.0})
    for name in "ab":
        write_fingerprint(run.lane(name), {})
    judge_run(run, record)
    assert Code.EVIDENCE_MISSING in _codes(record.pairs["p"].findings)
    assert record.verdict is Verdict.INVALID


def test_documents_of_another_number_than_the_data_set_has(run: RunDir) -> None:
    record = _record(_lane(run, "a"))
    file = run.check("a", "gsm8k") / "dataset.json"
    write_json(file, json.loads(file.read_bytes()) | {"docs": 9999})
    judge_run(run, record)
    assert Code.MISSING_DOC in _codes(record.lanes["a"].checks["gsm8k"].findings)


def test_two_servers_that_are_equally_broken_cannot_pass(run: RunDir) -> None:
    everything = set(range(DOCS))
    lanes = (_lane(run, "a", wrong=everything), _lane(run, "b", wrong=everything))
    record = _record(*lanes, pair={"max_drop_pp": 20.0})
    judge_run(run, record)
    assert record.pairs["p"].verdict is Verdict.INVALID
    assert Code.BASELINE_UNFIT in _codes(record.pairs["p"].findings)


def test_margin_that_would_allow_to_lose_everything_cannot_pass(run: RunDir) -> None:
    mostly = set(range(DOCS - 6))
    lanes = (_lane(run, "a", wrong=mostly), _lane(run, "b", wrong=mostly))
    record = _record(*lanes, pair={"max_drop_pp": 25.0})
    judge_run(run, record)
    assert record.pairs["p"].verdict is Verdict.INVALID


@pytest.mark.parametrize("name", ["gsm8k/raw_responses.jsonl", "eval.log", "gsm8k/requests.jsonl"])
def test_raw_evidence_that_is_gone_is_missed(run: RunDir, name: str) -> None:
    record = _record(_lane(run, "a"), _lane(run, "b"), pair={"max_drop_pp": 20.0})
    (run.lane("a") / name).unlink()
    judge_run(run, record)
    assert record.exit_code == 5


def test_check_folder_that_is_gone_is_lost_evidence_even_if_the_lane_is_optional(run: RunDir) -> None:
    lane = _lane(run, "a")
    lane.required = False
    shutil.rmtree(run.check("a", "gsm8k"))
    record = _record(lane)
    judge_run(run, record)
    assert (record.verdict, record.exit_code) == (Verdict.INVALID, 5)


def test_lane_without_a_check_measured_nothing(run: RunDir) -> None:
    record = _record(LaneRecord(name="a", status="done"))
    judge_run(run, record)
    assert (record.verdict, record.exit_code) == (Verdict.SKIPPED, 3)


def test_pairs_without_a_specification_are_dropped(run: RunDir) -> None:
    record = _record(_lane(run, "a"), _lane(run, "b"), pair={})
    judge_run(run, record)
    record.pair_specs = {}
    judge_run(run, record)
    assert record.pairs == {}


def test_record_that_forgot_its_checks_is_told_in_words(run: RunDir) -> None:
    record = _record(_lane(run, "a"), _lane(run, "b"), pair={"max_drop_pp": 20.0})
    for lane in record.lanes.values():
        lane.check_params = {}
    judge_run(run, record)
    assert record.exit_code != 0
    assert "Traceback" not in str(record.pairs["p"].findings)


@pytest.mark.parametrize("text", ["[]", "[" * 5000, '{"argv": [], "exit_code": false}', "{}"])
def test_evaluator_file_that_is_no_such_thing(run: RunDir, text: str) -> None:
    record = _record(_lane(run, "a"))
    (run.check("a", "gsm8k") / "evaluator.json").write_text(text, encoding="utf-8")
    judge_run(run, record)
    assert record.exit_code == 5
    assert Code.EVIDENCE_MISSING in _codes(record.lanes["a"].checks["gsm8k"].findings)


def test_record_of_one_lane_under_the_name_of_another_is_refused(run: RunDir) -> None:
    record = _record(_lane(run, "a"))
    record.lanes["b"] = record.lanes["a"]
    run.write(record)
    with pytest.raises(ConfigError, match="another lane"):
        run.read()


def _skipped_check(run: RunDir, lane: LaneRecord) -> LaneRecord:
    """The lane also has a check that its engine cannot do."""
    folder = run.check(lane.name, "pause-resume")
    folder.mkdir(parents=True)
    (folder / "exchanges.jsonl").write_text("")
    (folder / "marks.jsonl").write_text("")
    facts = {"notes": {"skipped": "this engine never pauses"}}
    (folder / "facts.json").write_text(json.dumps(facts))
    lane.check_params["pause-resume"] = {}
    return lane


def test_a_skipped_check_hides_no_pair(run: RunDir) -> None:
    """An optional lane whose engine cannot do one of its checks has run: its pair is judged, and counts."""
    candidate = _skipped_check(run, _lane(run, "b", wrong=set(range(20))))
    candidate.required = False
    record = _record(_lane(run, "a"), candidate, pair={"max_drop_pp": 20.0})
    judge_run(run, record)
    assert record.lanes["b"].checks["pause-resume"].verdict is Verdict.SKIPPED
    assert record.pairs["p"].verdict is Verdict.FAIL
    assert record.exit_code == 1


def test_lost_evidence_is_not_excused_by_a_note(run: RunDir) -> None:
    lane = _lane(run, "a")
    lane.required = False
    lane.findings.append(Finding(code=Code.SHM_REMOVED, message="removed", where="x"))
    shutil.rmtree(run.check("a", "gsm8k"))
    record = _record(lane)
    judge_run(run, record)
    assert record.verdict is Verdict.INVALID
    assert Code.EVIDENCE_MISSING in _codes(record.lanes["a"].checks["gsm8k"].findings)


def test_a_kv_type_that_no_server_told_is_not_parity(run: RunDir) -> None:
    keys = {"config.kv_dtype": None}
    record = _record(_lane(run, "a", keys=keys), _lane(run, "b", keys=keys), pair={"max_drop_pp": 20.0})
    judge_run(run, record)
    assert record.pairs["p"].verdict is Verdict.REPORTED
    assert Code.PARITY_UNKNOWN in _codes(record.pairs["p"].findings)


@pytest.mark.parametrize("value", [None, "unknown"])
@pytest.mark.parametrize("side", ["a", "b"])
def test_a_kv_type_that_one_server_does_not_tell_is_not_exempt(
    run: RunDir, side: str, value: str | None
) -> None:
    keys = {"a": {"config.kv_dtype": "bf16"}, "b": {"config.kv_dtype": "fp8"}}
    keys[side] = {"config.kv_dtype": value}  # type: ignore[dict-item]
    lanes = [_lane(run, name, keys=keys[name]) for name in "ab"]
    record = _record(*lanes, pair={"max_drop_pp": 20.0, "may_differ": ["config.kv_dtype"]})
    judge_run(run, record)
    assert record.pairs["p"].verdict is Verdict.REPORTED
    (finding,) = [item for item in record.pairs["p"].findings if item.code is Code.PARITY_UNKNOWN]
    which = "the baseline" if side == "a" else "the candidate"
    assert finding.message == f"config.kv_dtype is {value} on {which}"


def test_an_ended_lane_whose_digests_are_gone_is_missing_them(run: RunDir) -> None:
    record = _record(_lane(run, "a"))
    judge.judge_run(run, record)
    assert record.verdict is Verdict.INVALID
    assert any("digests.json cannot be read" in item.message for item in record.lanes["a"].findings)
    record = _record(_lane(run, "b"))
    record.lanes["b"].status = "started"
    judge.judge_run(run, record)
    assert Code.EVIDENCE_MISSING not in _codes(record.lanes["b"].findings), "it was never to have them"


def test_an_empty_message_is_a_headline_too(run: RunDir) -> None:
    lane = LaneRecord(name="a", status="failed", check_params={"gsm8k": {"dataset": "x"}})
    lane.findings.append(Finding(code=Code.HOST_FAULT, message=""))
    record = _record(lane)
    judge_run(run, record)
    assert record.lanes["a"].checks["gsm8k"].findings[0].message == "not run: "
