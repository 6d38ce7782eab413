"""What speaks against a baseline of an earlier run. Everything here is files."""

import errno
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.engines.base import Engine, Launch
from harness.errors import HarnessError
from harness.evidence.digests import write_digests
from harness.evidence.fingerprint import write_fingerprint
from harness.evidence.record import LaneRecord, RunRecord, ServerRecord
from harness.evidence.run_dir import RunDir
from harness.executors.judge import judge_lane, judge_run
from harness.executors.planned import PlannedLane
from harness.executors.planned_check import parse_check
from harness.executors.references import apart
from harness.executors.reuse import EarlierRun, discard, objections, planned_fingerprint
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
        name="lightllm",
        argv=lambda launch: [],
        version=lambda launch: "1.0",
        environment=lambda launch: {"A": "1"},
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
    write_fingerprint(run.lane("bf16"), planned_fingerprint(LANE, launches))
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


@pytest.mark.parametrize("version", ["v1.2-3-gf76017b-dirty", "1.2 (f76017b-dirty)", "1.2 (f76017b)"])
def test_a_checkout_with_changes_is_not_taken_over(
    past: RunDir, launches: list[tuple[Engine, Launch]], version: str
) -> None:
    record = past.read()
    record.lanes["bf16"].servers.append(ServerRecord(role="normal", engine="x", version=version, argv=[]))
    past.write(record)
    found = [reason for reason in _objections(past, launches) if "checkout with changes" in reason]
    assert bool(found) == ("-dirty" in version)


def test_a_write_protected_archive_gives_a_lane_that_can_be_judged(past: RunDir, tmp_path: Path) -> None:
    lane = past.lane("bf16")
    for path in (lane, *lane.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    new = RunDir.create(tmp_path / "new", "test")
    try:
        record = EarlierRun.open(past.path).take_over("bf16", new.lane("bf16"))
    finally:
        for path in (lane, *lane.rglob("*")):
            path.chmod(0o755)
    copies = [new.lane("bf16"), *new.lane("bf16").rglob("*")]
    assert all(path.stat().st_mode & stat.S_IWUSR for path in copies)
    judge_lane(new, record)
    assert record.verdict is Verdict.REPORTED
    discard(new.lane("bf16"))
    assert not new.lane("bf16").exists()


def test_only_what_the_digests_list_is_taken_over(past: RunDir, tmp_path: Path) -> None:
    """A FIFO would keep the copy waiting, /dev/zero never end, and /etc/passwd is nobody's evidence."""
    lane = past.lane("bf16")
    os.mkfifo(lane / "extra")
    (lane / "gsm8k" / "extra").symlink_to("/etc/passwd")
    (lane / "zero").symlink_to("/dev/zero")
    (lane / "summary.txt").write_text("what an older judge thought")
    new = RunDir.create(tmp_path / "new", "test")
    record = EarlierRun.open(past.path).take_over("bf16", new.lane("bf16"))
    files = [path for path in new.lane("bf16").rglob("*") if not path.is_dir()]
    copied = {str(path.relative_to(new.lane("bf16"))) for path in files}
    assert copied == {"digests.json", *json.loads((lane / "digests.json").read_text())}
    judge_lane(new, record)
    assert record.verdict is Verdict.REPORTED


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EACCES])
def test_only_a_full_disk_is_called_full(
    past: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("harness.executors.reuse.shutil.copyfileobj", refuse)
    with pytest.raises(HarnessError, match=os.strerror(number)) as caught:
        EarlierRun.open(past.path).take_over("bf16", tmp_path / "copy")
    assert caught.value.code is (Code.HOST_FAULT if number == errno.EACCES else Code.DISK_FULL)


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "nul\0", "gsm8k", "link", "gone"])
def test_odd_names_in_the_digests_are_a_foreseen_error(past: RunDir, tmp_path: Path, name: str) -> None:
    (past.path / "outside").write_text("not this lane's")
    (past.lane("bf16") / "link").symlink_to("/dev/zero")
    digests = past.lane("bf16") / "digests.json"
    digests.write_text(json.dumps(json.loads(digests.read_text()) | {name: "0"}))
    copy = tmp_path / "copy" / "bf16"
    with pytest.raises(HarnessError, match="bf16"):
        EarlierRun.open(past.path).take_over("bf16", copy)
    assert not (tmp_path / "copy" / "outside").exists()


def test_a_copy_that_cannot_be_removed_is_a_foreseen_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy", str(path))

    monkeypatch.setattr("harness.executors.reuse.shutil.rmtree", refuse)
    with pytest.raises(HarnessError, match="cannot be removed: Device or resource busy"):
        discard(tmp_path)


def _planned(name: str, reference: str = "", *, skip: str = "", reuse: EarlierRun | None) -> PlannedLane:
    given = {"pause-resume": {"reference": reference} if reference else {}}
    lane = LANE.model_copy(update={"name": name, "checks": given})
    checks = tuple(parse_check(check, params) for check, params in given.items())
    return PlannedLane(lane=lane, servers=(), checks=checks, skip=skip, reuse=reuse)


def test_a_lane_that_refers_or_is_referred_to_runs_anew(past: RunDir) -> None:
    earlier = EarlierRun.open(past.path)
    lanes = [
        _planned("alone", reuse=earlier),
        _planned("reference", reuse=earlier),
        _planned("referring", "reference", reuse=earlier),
        _planned("unread", reuse=earlier),
        _planned("skipped", "unread", skip="not here", reuse=None),
    ]
    found = apart(lanes)
    assert [lane.lane.name for lane in found if lane.reuse] == ["alone", "unread"]
    assert [lane.rerun for lane in found if lane.rerun] == [
        ("its answers are compared with those of lane `referring`, and both are asked anew",),
        ("its answers are compared with those of lane `reference`, and both are asked anew",),
    ]
