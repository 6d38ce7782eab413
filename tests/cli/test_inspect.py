"""`judge`, `show`, `compare`, `triage`, `doctor`, `models`: what there is, looked at and judged again."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from harness.evidence.digests import write_digests
from harness.evidence.files import write_json
from harness.evidence.fingerprint import write_fingerprint
from harness.evidence.record import LaneRecord, RunRecord, ServerRecord
from harness.evidence.run_dir import RunDir
from harness.verdict import Verdict
from tests.accuracy import builders
from tests.cli.conftest import Harness

pytestmark = pytest.mark.process
DOCS = 24
LOGS = Path(__file__).parents[1] / "data" / "logs"


def _lane(folder: Path, wrong: set[int]) -> None:
    docs = builders.problems(DOCS)
    builders.write_lane(folder, docs, wrong=wrong)
    write_fingerprint(folder, {"engine": "llamacpp", "version": "1"})
    questions = [builders.sha256(doc["question"]) for doc in docs]
    manifest = {"name": "x", "docs": DOCS, "sha256": {"test.jsonl": "0"}, "questions": questions}
    write_json(folder / "gsm8k" / "dataset.json", manifest)
    write_json(folder / "gsm8k" / "evaluator.json", {"argv": [], "exit_code": 0})
    write_digests(folder)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A finished run of two lanes and a pair with a margin, as evidence only: not judged yet."""
    place = RunDir.create(tmp_path / "runs", "mine")
    lanes: dict[str, LaneRecord] = {}
    for name, wrong in (("a", {1}), ("b", {1, 2, 3, 4, 5, 6, 7, 8, 9})):
        _lane(place.lane(name), wrong)
        lanes[name] = LaneRecord(name=name, status="done", check_params={"gsm8k": {"dataset": "x"}})
    pair: dict[str, Any] = {
        "name": "p",
        "baseline": "a",
        "candidate": "b",
        "check": "gsm8k",
        "max_drop_pp": 1.0,
    }
    record: dict[str, Any] = {
        "run_id": place.run_id,
        "scenario": "mine\x1b[31m",
        "harness_version": "0",
        "command": [],
        "started_at": "now",
        "status": "done",
        "lanes": lanes,
        "pair_specs": {"p": pair},
    }
    place.write(RunRecord.model_validate(record))
    return place


def test_judge_writes_the_summaries_and_exits_as_the_run_would(harness: Harness, run: RunDir) -> None:
    said = harness("judge")  # runs/latest by default
    assert said.code == 1, said.out
    assert "verdict   FAIL" in said.out
    assert "MARGIN_EXCEEDED" in said.out
    assert "mine\\u001b[31m" in said.out
    summary = json.loads((run.path / "summary.json").read_text(encoding="utf-8"))
    assert summary["pairs"]["p"]["verdict"] == "FAIL"
    assert (run.path / "summary.txt").read_text(encoding="utf-8") == said.out


def test_show_tells_a_judged_run_and_judges_nothing(harness: Harness, run: RunDir) -> None:
    judged = harness("judge", run.path)
    shown = harness("show", run.path)
    assert (shown.code, shown.out) == (0, judged.out)
    told = json.loads(harness("show", "--json").out)  # runs/latest by default
    assert told == json.loads((run.path / "summary.json").read_text(encoding="utf-8"))


def _changed(page: str) -> list[str]:
    return [line for line in page.splitlines() if line.startswith("changed ")]


def test_judging_again_says_what_it_changed(harness: Harness, run: RunDir) -> None:
    """Evidence that is damaged after the run, judged, restored, and judged again."""
    record = run.read()
    record.pair_specs = {}
    run.write(record)
    assert _changed(harness("judge", run.path).out) == []
    assert _changed(harness("judge", run.path).out) == []
    dataset = run.check("a", "gsm8k") / "dataset.json"
    sound = dataset.read_bytes()
    dataset.write_bytes(b"{}")
    told = ["changed   verdict was REPORTED when the run ended, now INVALID (lane a: REPORTED -> INVALID)"]
    once, twice = harness("judge", run.path), harness("judge", run.path)
    assert (once.code, _changed(once.out)) == (5, told)
    assert (twice.code, _changed(twice.out)) == (5, told), "not: was INVALID, as the last judgement said"
    assert harness("show", run.path).out == twice.out
    dataset.write_bytes(sound)
    judged = harness("judge", run.path)
    assert (judged.code, _changed(judged.out)) == (0, []), judged.out


@pytest.mark.parametrize("older", [True, False])
def test_a_judge_that_thinks_better_says_so(harness: Harness, run: RunDir, older: bool) -> None:
    """What the judges of the run itself found INVALID; an older harness kept only the verdicts."""
    record = run.read()
    record.pair_specs = {}
    run.write(record)
    harness("judge", run.path)
    record = run.read()
    record.verdict = record.lanes["a"].verdict = record.lanes["a"].checks["gsm8k"].verdict = Verdict.INVALID
    record.judged_first = {} if older else record.verdicts()
    run.write(record)
    judged = harness("judge", run.path)
    assert judged.code == 0
    told = "changed   verdict was INVALID when the run ended, now REPORTED (lane a: INVALID -> REPORTED)"
    assert _changed(judged.out) == [told]
    changed = json.loads(harness("show", "--json").out)["changed"]
    assert changed["run"] == {"was": "INVALID", "now": "REPORTED"}


@pytest.fixture
def unfinished(run: RunDir) -> RunDir:
    """Lane `a` is over, `b` in the middle of its check, `c` has not begun; nothing is judged."""
    record = run.read()
    record.status = "started"
    record.lanes["b"].status = record.lanes["a"].status = "started"
    record.lanes["a"].status = "done"
    record.lanes["b"].servers = [ServerRecord(role="normal", engine="llamacpp", argv=["x"])]
    record.lanes["c"] = LaneRecord(name="c", check_params={"gsm8k": {}})
    run.write(record)
    return run


def _files(run: RunDir) -> dict[str, bytes]:
    return {
        str(path.relative_to(run.path)): path.read_bytes()
        for path in run.path.rglob("*")
        if path.is_file() and path.name != "run.lock"
    }


def test_a_live_run_is_shown_as_running_and_never_judged(harness: Harness, unfinished: RunDir) -> None:
    with unfinished.hold():
        before = _files(unfinished)
        judged, shown = harness("judge", unfinished.path), harness("show", unfinished.path)
        told = json.loads(harness("show", "--json").out)
        assert _files(unfinished) == before
    assert judged.code == 2
    assert f"still running, pid {os.getpid()}" in judged.err
    assert "what to do: wait for its end" in judged.err
    assert f"(running, pid {os.getpid()})" in shown.out
    assert [line.split(maxsplit=2) for line in shown.out.splitlines() if line[:2] in ("a ", "b ", "c ")] == [
        ["a", "done", "-"],
        ["b", "running", "gsm8k"],
        ["c", "waiting", "-"],
    ]
    assert "SKIPPED" not in shown.out
    assert "None" not in shown.out
    assert (told["status"], told["verdict"], told["exit_code"]) == ("running", None, None)


def test_a_lane_whose_server_loads_is_shown_as_loading(harness: Harness, unfinished: RunDir) -> None:
    unfinished.lane("c").mkdir()
    with unfinished.hold():
        assert "c     running  waiting for its lease" in harness("show").out
        (unfinished.lane("c") / "command.txt").write_text("server\n")
        assert "c     running  loading" in harness("show").out


def test_a_killed_run_is_shown_as_such_and_can_be_judged(harness: Harness, unfinished: RunDir) -> None:
    shown = harness("show", unfinished.path)
    assert "killed" in shown.out
    assert f"harness judge {unfinished.path}" in shown.out
    assert "cut off" in shown.out
    assert json.loads(harness("show", "--json").out)["status"] == "killed"
    judged = harness("judge", unfinished.path)
    assert judged.code == 4, judged.out
    assert "its harness was killed" in judged.out
    assert harness("show", unfinished.path).out == judged.out


@pytest.mark.parametrize("text", ["", "{}", "[]", "not json", '{"schema_version": 99}', "[" * 5000])
def test_a_broken_record_is_exit_2(harness: Harness, tmp_path: Path, text: str) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "run.json").write_text(text)
    for command in ("judge", "show"):
        said = harness(command, "bad")
        assert said.code == 2
        assert "run.json" in said.err


def test_compare(harness: Harness, tmp_path: Path) -> None:
    for name, wrong in (("a", {1}), ("same", {1}), ("worse", set(range(12)))):
        builders.write_evaluation(tmp_path / name, builders.problems(DOCS), wrong=wrong)
    reported = harness("compare", "a", "same", "--expect-docs", str(DOCS))
    assert (reported.code, "pair compare: REPORTED" in reported.out) == (0, True), reported.out
    assert "no threshold stated; may differ: nothing\n" in reported.out
    told = harness("compare", "a", "worse", "--max-drop-pp", "1", "--json")
    assert told.code == 1
    result = json.loads(told.out)
    assert result["verdict"] == "FAIL"
    assert result["filters"]["strict-match"]["n"] == DOCS
    short = harness("compare", "a", "same", "--expect-docs", str(DOCS + 1))
    assert short.code == 5
    assert "MISSING_DOC" in short.out


def test_compare_names_what_the_run_of_its_lanes_exempts(harness: Harness, run: RunDir) -> None:
    record = run.read()
    record.pair_specs["p"] = record.pair_specs["p"].model_copy(update={"may_differ": ("flags.--x",)})
    run.write(record)
    for sides in (("a", "b"), ("a/gsm8k", "b"), ("b", "a")):
        assert "may differ: flags.--x\n" in harness("compare", *(run.path / side for side in sides)).out


def test_compare_with_nothing(harness: Harness, tmp_path: Path) -> None:
    builders.write_evaluation(tmp_path / "a", builders.problems(DOCS))
    (tmp_path / "empty").mkdir()
    for other in ("empty", "nowhere"):
        assert harness("compare", "a", other).code in (2, 5)


@pytest.mark.parametrize(("log", "code"), [("llamacpp-ok.txt", 0), ("vllm-kv-too-small.txt", 1)])
def test_triage(harness: Harness, log: str, code: int) -> None:
    told = harness("triage", LOGS / log, "--json")
    assert told.code == code
    report = json.loads(told.out)
    assert set(report) >= {"engine", "ready", "phases", "fatal"}
    assert report["engine"] == log.partition("-")[0]
    assert bool(report["fatal"]) == bool(code)
    said = harness("triage", LOGS / log)
    assert said.code == code
    assert report["engine"] in said.out


def test_triage_of_something_else(harness: Harness, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\x00\xff\x1b[31m nothing\n" * 10)
    said = harness("triage", "x")
    assert said.code == 2
    assert "--engine" in said.err


def test_doctor(harness: Harness, tmp_path: Path) -> None:
    said = harness("doctor")
    assert said.code == 0, said.out
    rows = {line.split("  ")[0]: line for line in said.out.splitlines()}
    assert " ok " in rows["lm-eval"]
    assert " missing " in rows["GSM8K"]
    assert {"engine llamacpp", "engine vllm", "engine sglang", "ports", "disk"} <= set(rows)


def test_doctor_asks_the_evaluator_that_will_run(harness: Harness, tmp_path: Path) -> None:
    """A program that is no Python, and one that has no lm-eval."""
    bare = tmp_path / "python"
    bare.write_text('#!/bin/sh\necho \'{"version": "unknown", "places": []}\'\n')
    bare.chmod(0o755)
    for program, reason in (("/bin/true", "behave like a Python"), (str(bare), "not installed in")):
        said = harness("doctor", HARNESS_LM_EVAL_PYTHON=program)
        assert said.code == 1
        (line,) = (line for line in said.out.splitlines() if line.startswith("lm-eval"))
        assert reason in line


@pytest.mark.parametrize("text", [b"\xff\xfe\n", b"{}\n", b"not json\n"])
def test_doctor_survives_a_broken_data_set(harness: Harness, tmp_path: Path, text: bytes) -> None:
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_bytes(text)
    said = harness("doctor", HARNESS_GSM8K_DIR=str(tmp_path))
    assert said.code == 0
    (line,) = (line for line in said.out.splitlines() if line.startswith("GSM8K"))
    assert "missing" in line


def test_models_list(harness: Harness, tmp_path: Path) -> None:
    said = harness("models", "list", HARNESS_MODELS_DIR=str(tmp_path / "models"))
    assert said.code == 0
    (line,) = (line for line in said.out.splitlines() if line.startswith("smollm2-135m"))
    assert line.split() == ["smollm2-135m", "-", "Apache-2.0"]
