"""What a release manager reads."""

import json
from typing import Any

import pytest

from harness.accuracy.listing import listed
from harness.codes import Code
from harness.evidence.record import CheckResult, FilterStats, LaneRecord, PairResult, RunRecord, ServerRecord
from harness.findings import Finding
from harness.report.findings_block import CLEANED_UP, SHOWN_PER_CODE
from harness.report.summary import (
    _lane_block,
    render_compare,
    render_run,
    summary_json,
)
from harness.verdict import Verdict


def _record(**more: Any) -> RunRecord:
    stats = FilterStats(
        n=40,
        correct_baseline=22,
        correct_candidate=15,
        accuracy_baseline=0.55,
        accuracy_candidate=0.375,
        delta_pp=-17.5,
        only_baseline=7,
        only_candidate=0,
        both_wrong_different=3,
        mcnemar_p=0.0156,
        ci_low_pp=-30.0,
        ci_high_pp=-6.0,
    )
    lane = LaneRecord(
        name="q4",
        verdict=Verdict.REPORTED,
        servers=[ServerRecord(role="normal", engine="llamacpp", version="1.2", argv=["x"])],
        checks={
            "gsm8k": CheckResult(verdict=Verdict.REPORTED, metrics={"n": 40, "accuracy.strict-match": 0.375})
        },
        phases={"ready": 1.5, "gsm8k": 30.0},
    )
    finding = Finding(code=Code.MARGIN_EXCEEDED, message="worse\x1b[31m by far", where="strict-match")
    pair = PairResult(verdict=Verdict.FAIL, findings=[finding], filters={"strict-match": stats})
    base: dict[str, Any] = {
        "run_id": "r1",
        "scenario": "quickstart",
        "harness_version": "0",
        "command": ["harness"],
        "started_at": "now",
        "verdict": Verdict.FAIL,
        "exit_code": 1,
        "lanes": {"q4": lane},
        "pairs": {"q4-kv": pair},
        "pair_specs": {"q4-kv": {"name": "q4-kv", "baseline": "bf16", "candidate": "q4", "max_drop_pp": 1.0}},
    }
    return RunRecord(**(base | more))


def test_the_page_names_verdict_numbers_and_reason() -> None:
    page = render_run(_record(), "runs/r1")
    assert "verdict   FAIL: the engine broke an acceptance rule (exit code 1)" in page
    assert "22 (55.00%)" in page
    assert "-17.50 pp" in page
    assert "MARGIN_EXCEEDED" in page
    assert "largest accepted drop 1.0 pp" in page


def test_hostile_messages_are_defused() -> None:
    assert "\x1b" not in render_run(_record(), "runs/r1")


def test_no_line_of_a_servers_message_passes_for_one_of_the_page() -> None:
    said = "status 500: oops\n\nverdict   PASS: everything\n  FAIL  ENGINE  you\n    | a log\r\nrun       r2"
    found = [Finding(code=Code.REQUEST_FAILED, message=said)]
    check = CheckResult(verdict=Verdict.INVALID, findings=found)
    lane = LaneRecord(name="q4", findings=found, checks={"gsm8k": check, "smoke": check})
    page = render_run(_record(lanes={"q4": lane}), "runs/r1")
    (block,) = {text for text in page.split("REQUEST_FAILED  ") if "oops\n" in text}
    assert block.splitlines()[1:6] == [
        "      |",
        "      | verdict   PASS: everything",
        "      |   FAIL  ENGINE  you",
        "      | a log\\u000d",
        "      | run       r2",
    ]
    assert len([line for line in page.splitlines() if line.lstrip().startswith(("verdict ", "run "))]) == 2


def test_no_text_of_a_foreign_record_reaches_a_terminal_as_it_is() -> None:
    """Every text of the record is spoilt, names too; each line of a page stays one line."""
    spoilt = _spoilt(_record(description="x").model_dump(mode="json"))
    record = RunRecord.model_validate(spoilt)
    sound = _record(description="x")
    pages = [
        (render_run(record, f"runs/{EVIL}"), render_run(sound, "runs/")),
        ("\n".join(_lane_block(*record.lanes.values())), "\n".join(_lane_block(*sound.lanes.values()))),
        (
            render_compare(EVIL, EVIL, None, *record.pairs.values()),
            render_compare("", "", None, *sound.pairs.values()),
        ),
    ]
    for page, model in pages:
        assert all(character.isprintable() or character == "\n" for character in page)
        assert len(page.splitlines()) == len(model.splitlines())
        assert "\\u001b[2J" in page


EVIL = "evil\x1b[2J\rverdict   PASS\u202e"
KEPT = {"verdict", "status", "code", "metrics", "phases", "check", "filters"}  # words of ours, and numbers


def _spoilt(node: Any, key: str = "") -> Any:
    if isinstance(node, dict):
        names = key in ("lanes", "pairs", "pair_specs", "checks")
        return {f"{name}{EVIL}" if names else name: _spoilt(value, name) for name, value in node.items()}
    if isinstance(node, list):
        return [_spoilt(item, key) for item in node]
    return f"{node}{EVIL}" if isinstance(node, str) and key not in KEPT else node


def test_many_alike_are_folded_but_counted() -> None:
    many = [Finding(code=Code.TRUNCATED, message=f"doc {number}") for number in range(30)]
    page = render_run(_record(findings=many), "runs/r1")
    assert page.count("TRUNCATED") == SHOWN_PER_CODE + 1
    assert f"and {30 - SHOWN_PER_CODE} more TRUNCATED" in page


def test_json_contract() -> None:
    loaded = json.loads(json.dumps(summary_json(_record())))
    assert loaded["lanes"]["q4"]["checks"]["gsm8k"]["metrics"]["n"] == 40
    assert loaded["pairs"]["q4-kv"]["filters"]["strict-match"]["delta_pp"] == -17.5
    assert loaded["pairs"]["q4-kv"]["findings"][0]["code"] == "MARGIN_EXCEEDED"
    assert {"run_id", "scenario", "verdict", "exit_code"} <= set(loaded)


def test_record_survives_json_and_an_older_reader() -> None:
    text = _record().model_dump_json()
    newer = json.loads(text) | {"added_later": 1}
    assert RunRecord.model_validate(newer) == RunRecord.model_validate_json(text)


def _judged_first(**first: str) -> RunRecord:
    return _record(status="done", judged_first={"run": "FAIL", "lane q4": "REPORTED", **first})


def _line(record: RunRecord) -> str:
    lines = [line for line in render_run(record, "x").splitlines() if line.startswith("changed ")]
    return lines[0] if lines else ""


def test_nothing_changed_is_nothing_said() -> None:
    same = {"lane q4, check gsm8k": "REPORTED", "pair q4-kv": "FAIL"}
    for record in (_record(), _judged_first(**same), _judged_first(**{"lane gone": "PASS"})):
        assert _line(record) == ""
        assert summary_json(record)["changed"] == {}


def test_a_verdict_that_changed_is_told_with_its_place() -> None:
    better = {"run": "INVALID", "lane q4": "INVALID", "lane q4, check gsm8k": "INVALID"}
    record = _record(status="done", judged_first=better, verdict=Verdict.REPORTED)
    told = "changed   verdict was INVALID when the run ended, now REPORTED (lane q4: INVALID -> REPORTED)"
    assert _line(record) == told
    assert summary_json(record)["changed"] == {
        "run": {"was": "INVALID", "now": "REPORTED"},
        "lane q4": {"was": "INVALID", "now": "REPORTED"},
        "lane q4, check gsm8k": {"was": "INVALID", "now": "REPORTED"},
    }
    worse = _judged_first(run="PASS", **{"pair q4-kv": "PASS"})
    assert (
        _line(worse) == "changed   verdict was PASS when the run ended, now FAIL (pair q4-kv: PASS -> FAIL)"
    )


def test_a_change_that_leaves_the_run_as_it_was_is_told() -> None:
    only = _judged_first(**{"lane q4, check gsm8k": "INVALID"})
    told = "changed   since the run ended: lane q4, check gsm8k: INVALID -> REPORTED"
    assert _line(only) == told
    killed = only.model_copy(update={"status": "started"})
    assert _line(killed) == told.replace("the run ended", "it was first judged")


def test_many_changes_are_counted() -> None:
    lanes = {f"l{number}": LaneRecord(name=f"l{number}", verdict=Verdict.PASS) for number in range(9)}
    first = {f"lane {name}": "FAIL" for name in lanes}
    line = _line(_record(lanes=lanes, judged_first=first))
    assert line.count("FAIL -> PASS") == 5
    assert line.endswith("; 4 more")


def test_the_commit_of_the_harness_stands_beside_its_version() -> None:
    page = render_run(_record(harness_revision="0123456789ab-dirty"), "x")
    assert "run       r1 (started), harness 0 (0123456789ab-dirty)\n" in page
    assert "harness 0\n" in render_run(_record(), "x")
    assert summary_json(_record(harness_revision="abc"))["harness"] == {"version": "0", "revision": "abc"}


def test_the_worst_finding_stands_under_the_verdict() -> None:
    lines = render_run(_record(findings=[Finding(code=Code.TRUNCATED, message="a note")]), "x").splitlines()
    assert lines[2].startswith("verdict   FAIL")
    assert lines[3] == "worst     pair q4-kv: worse\\u001b[31m by far"
    long = Finding(code=Code.SERVER_DIED, message=f"{'x' * 999}; what to do: nothing\nmore")
    (line,) = _worst(_record(findings=[long]))
    assert line.endswith("…")
    assert len(line) <= 170
    assert _worst(_record(verdict=Verdict.REPORTED)) == []
    assert _worst(_record(lanes={}, pairs={})) == [], "no finding says why"
    assert _worst(_record(pairs={}, findings=[Finding(code=Code.TRUNCATED, message="a note")])) == []


def _worst(record: RunRecord) -> list[str]:
    return [line for line in render_run(record, "x").splitlines() if line.startswith("worst ")]


def test_a_clean_up_is_one_line_for_each_kind() -> None:
    removed = [
        Finding(code=Code.SHM_REMOVED, message=f"left {number}", where=f"s{number}") for number in "123"
    ]
    one = Finding(code=Code.FILES_REMOVED, message="this lane left /tmp/x; removed", where="/tmp/x")
    other = Finding(code=Code.SHM_UNATTRIBUTED, message="maybe", where="s9")
    lanes = {
        "a": LaneRecord(name="a", findings=[*removed, one, other, other]),
        "b": LaneRecord(name="b", findings=removed[:2]),
    }
    page = render_run(_record(lanes=lanes, pairs={}, verdict=Verdict.PASS), "x")
    told = page.partition("findings\n")[2].partition("\n\n")[0].splitlines()
    assert told == [
        "  note  SHM_REMOVED  a: left 3 shared memory segments; removed (all in run.json)",
        "  note  FILES_REMOVED  a: this lane left /tmp/x; removed [/tmp/x]",
        f"  note  SHM_UNATTRIBUTED  a: {CLEANED_UP[Code.SHM_UNATTRIBUTED].format(2)} (all in run.json)",
        "  note  SHM_REMOVED  b: left 2 shared memory segments; removed (all in run.json)",
    ]


def test_a_death_is_told_in_full_once() -> None:
    died = Finding(code=Code.SERVER_DIED, message="it died; what to do: look\n    | a\n    | b")
    later = died.model_copy(update={"message": "it died; what to do: look\n    | b\n    | c"})
    check = CheckResult(verdict=Verdict.FAIL, findings=[later])
    page = render_run(_record(lanes={"a": LaneRecord(name="a", findings=[died], checks={"c": check})}), "x")
    assert page.count("what to do") == 1
    assert "SERVER_DIED  a/c: it died; see a\n" in page
    alone = render_run(_record(lanes={"a": LaneRecord(name="a", checks={"c": check})}), "x")
    assert "SERVER_DIED  a/c: it died; what to do: look" in alone


def test_a_report_that_a_passing_pair_judged_says_so() -> None:
    spec = {"q4-kv": {"name": "q4-kv", "baseline": "bf16", "candidate": "q4", "max_drop_pp": 20.0}}
    passed = {"q4-kv": PairResult(verdict=Verdict.PASS)}
    told = "judged by pair q4-kv"
    assert told in render_run(_record(pairs=passed, pair_specs=spec), "x")
    assert told not in render_run(_record(), "x"), "it failed"
    other = {"q4-kv": spec["q4-kv"] | {"check": "smoke"}}
    assert told not in render_run(_record(pairs=passed, pair_specs=other), "x")


def test_a_lane_taken_over_shows_no_time_of_this_run() -> None:
    lane = _record().lanes["q4"]
    assert "30 s" in render_run(_record(lanes={"q4": lane}), "x")
    lane.findings.append(Finding(code=Code.BASELINE_REUSED, message="taken over", where="/runs/earlier-1"))
    page = render_run(_record(lanes={"q4": lane}), "x")
    assert "30 s" not in page
    assert "1.5 s" not in page
    assert "taken over from earlier-1" in page


def _many(number: int, where: str = "") -> list[Finding]:
    found = [Finding(code=Code.SCORE_MISMATCH, message=f"{index} differs") for index in range(number)]
    return listed(found, where)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"findings": _many(5)}, "... and 2 more SCORE_MISMATCH of run (all in run.json)"),
        (
            {"lanes": {"a": LaneRecord(name="a", findings=_many(5))}},
            "... and 2 more SCORE_MISMATCH of a (all in run.json)",
        ),
        (
            {
                "lanes": {
                    "a": LaneRecord(
                        name="a", checks={"c": CheckResult(verdict=Verdict.FAIL, findings=_many(50))}
                    )
                }
            },
            "... and 47 more SCORE_MISMATCH of a/c (all in its findings.jsonl)",
        ),
        (
            {"pairs": {"p": PairResult(verdict=Verdict.FAIL, findings=_many(50))}},
            "... and 47 more SCORE_MISMATCH of pair p (all in its findings.jsonl)",
        ),
    ],
)
def test_many_alike_name_the_file_that_has_them_all(fields: dict[str, Any], sentence: str) -> None:
    assert sentence in render_run(_record(**({"lanes": {}, "pairs": {}} | fields)), "runs/r1")


def test_the_findings_of_both_sides_are_counted() -> None:
    result = PairResult(verdict=Verdict.FAIL, findings=[*_many(50, "baseline"), *_many(30, "candidate")])
    page = render_compare("a", "b", None, result)
    assert "... and 77 more SCORE_MISMATCH of compare (--out keeps all)" in page
    result = PairResult(verdict=Verdict.FAIL, findings=[*_many(50, "baseline"), *_many(4, "candidate")])
    assert "... and 51 more SCORE_MISMATCH" in render_compare("a", "b", None, result)
