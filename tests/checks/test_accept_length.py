"""Judging accept lengths: what may be claimed, and each way in which the number is wrong or made up."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.checks.accept_length import AcceptLength, AcceptLengthParams
from harness.codes import Code
from harness.verdict import Verdict
from tests.checks.evidence_files import IDS, Story, exchange, mark

CHECK = AcceptLength()
PREFIX = "vllm:spec_decode_num"
Damage = Callable[[Story], Any]


def speculated(accepted: int, steps: int | None = 10) -> dict[str, Any]:
    return {"accepted": accepted, "proposed": 40, "steps": steps}


def story(accepted: int = 20) -> Story:
    """Two prompts, each with an accept length of 3 when cold and when warm."""
    return Story(
        exchanges=[
            exchange(
                leg, str(case), cached={"total": hit}, accept=speculated(accepted), ids=[*IDS[:-1], case]
            )
            for leg, hit in (("cold", 0), ("warm", 512))
            for case in range(2)
        ],
        marks=[mark("begin"), mark("asking"), mark("cold"), mark("warm")],
        notes={"expected_warm": 512},
    )


def counters(accepted: float, steps: float) -> dict[str, float]:
    return {f"{PREFIX}_accepted_tokens_total": accepted, f"{PREFIX}_drafts_total": steps}


def params(**more: Any) -> AcceptLengthParams:
    return AcceptLengthParams(prompts=2, prompt_tokens=600, output_tokens=32, **more)


def write(run: Path, made: Story, lane: str = "mtp") -> Path:
    return made.write(run / lane / "accept-length")


def judged(folder: Path, **more: Any) -> tuple[Verdict, set[Code]]:
    result = CHECK.judge(params(**more), folder)
    return result.verdict, {finding.code for finding in result.findings}


def test_without_a_reference_it_is_reported(tmp_path: Path) -> None:
    result = CHECK.judge(params(), write(tmp_path, story()))
    assert (result.verdict, result.findings) == (Verdict.REPORTED, [])
    assert result.metrics == {"acceptance": "natural", "accept.cold": 3.0, "accept.warm": 3.0}


@pytest.mark.parametrize(
    ("reference", "verdict"), [(2.5, Verdict.PASS), (3.15, Verdict.PASS), (3.2, Verdict.FAIL)]
)
def test_against_a_number(tmp_path: Path, reference: float, verdict: Verdict) -> None:
    codes = {Code.ACCEPT_COLLAPSE} if verdict is Verdict.FAIL else set()
    assert judged(write(tmp_path, story()), reference_length=reference) == (verdict, codes)


def test_against_another_lane(tmp_path: Path) -> None:
    write(tmp_path, story(), "base")
    folder = write(tmp_path, story())
    assert judged(folder, reference="base") == (Verdict.PASS, set())
    for one in (made := story()).exchanges:
        one["accept"] = speculated(18 if one["leg"] == "warm" else 20)
    assert judged(write(tmp_path, made), reference="base") == (Verdict.FAIL, {Code.ACCEPT_COLLAPSE})


def test_legs_of_other_checks_are_phases_too(tmp_path: Path) -> None:
    folder = write(tmp_path, story())
    other = [exchange(leg, "target", accept=speculated(5)) for leg in ("cold", "reload")]
    Story(other).write(tmp_path / "mtp" / "cpu-reload")
    result = CHECK.judge(params(), folder)
    assert result.metrics["accept.cpu-reload.reload"] == 1.5
    assert (result.verdict, result.findings) == (Verdict.REPORTED, [])


@pytest.mark.parametrize(
    ("values", "codes"),
    [
        ({"accept": speculated(20)}, {Code.ACCEPT_COLLAPSE}),
        ({"accept": speculated(197, 100)}, set()),  # 2.97 of 3: within the share
        ({"accept": speculated(120), "ids": [1, 2, 3]}, set()),  # another text has another number
        ({"accept": speculated(20), "ids": [1, 2, 3]}, {Code.ACCEPT_COLLAPSE}),  # but not one like this
    ],
)
def test_a_leg_of_another_check_that_collapses(
    tmp_path: Path, values: dict[str, Any], codes: set[Code]
) -> None:
    """As after a resume: 8 long requests, answered alone, then under pressure."""
    serial = [exchange("serial", str(case), accept=speculated(200, 100)) for case in range(8)]
    stressed = [exchange("stress", str(case), accept=speculated(200, 100)) | values for case in range(8)]
    for one in stressed:
        one["accept"] = {**one["accept"], "steps": 100}
    Story([*serial, *stressed]).write(tmp_path / "mtp" / "pause-resume")
    result = CHECK.judge(params(), write(tmp_path, story()))
    assert {finding.code for finding in result.findings} == codes
    assert {finding.where for finding in result.findings} <= {"pause-resume.stress"}


def test_a_resume_is_held_against_the_same_request_alone(tmp_path: Path) -> None:
    """Neither against a short request of the same name, nor against itself, though both came first."""
    short = [exchange("short", str(case), prompt=[case, 1], accept=speculated(0, 100)) for case in range(4)]
    stressed = [exchange("together", str(case), accept=speculated(0, 100)) for case in range(4)]
    alone = [exchange("alone", str(case), accept=speculated(140, 100)) for case in range(4)]
    Story([*short, *stressed, *alone]).write(tmp_path / "mtp" / "pause-resume")
    result = CHECK.judge(params(), write(tmp_path, story()))
    (finding,) = result.findings
    assert (finding.code, finding.where) == (Code.ACCEPT_COLLAPSE, "pause-resume.together")
    assert "accept length 1.000, 2.400 is the reference" in finding.message


def test_broken_evidence_of_another_check_is_that_check_s_affair(tmp_path: Path) -> None:
    folder = write(tmp_path, story())
    other = tmp_path / "mtp" / "cpu-reload"
    other.mkdir()
    (other / "exchanges.jsonl").write_bytes(b"\xff{")
    assert judged(folder) == (Verdict.REPORTED, set())


def test_counters_stand_where_answers_are_silent(tmp_path: Path) -> None:
    made = story()
    for one in made.exchanges:
        one["accept"] = None
    made.marks = [
        mark("asking", 0, **counters(100, 50)),
        mark("cold", 0, **counters(140, 60)),  # 5.0
        mark("warm", 0, **counters(150, 70)),  # 2.0
    ]
    result = CHECK.judge(params(reference_length=2.0), write(tmp_path, made))
    assert result.verdict is Verdict.PASS
    assert (result.metrics["accept.cold"], result.metrics["accept.warm"]) == (5.0, 2.0)


def test_steps_that_are_not_counted_follow_from_the_tokens(tmp_path: Path) -> None:
    made = story()
    for one in made.exchanges:
        one["accept"] = speculated(24, None)  # of 32 tokens: 8 steps
    assert CHECK.judge(params(), write(tmp_path, made)).metrics["accept.cold"] == 4.0


def every(**values: Any) -> Damage:
    return lambda made: [one.update(values) for one in made.exchanges]


def put(leg: str, **values: Any) -> Damage:
    return lambda made: made.of(leg).update(values)


FAULTS: dict[str, tuple[Damage, Verdict, set[Code]]] = {
    "no drafted token was accepted": (
        every(accept=speculated(0)),
        Verdict.INVALID,
        {Code.NOT_EXERCISED},
    ),
    "the server does not speculate": (every(accept=None), Verdict.INVALID, {Code.NOT_EXERCISED}),
    "it counts zeros": (every(accept=speculated(0, 0)), Verdict.INVALID, {Code.NOT_EXERCISED}),
    "collapsed, every answer right": (every(accept=speculated(1)), Verdict.FAIL, {Code.ACCEPT_COLLAPSE}),
    "cold was not cold": (put("cold", cached={"total": 64}), Verdict.INVALID, {Code.COLD_NOT_COLD}),
    "warm was no hit": (put("warm", cached={"total": 0}), Verdict.FAIL, {Code.HIT_MISMATCH}),
    "request failed": (put("warm", error="no answer"), Verdict.INVALID, {Code.REQUEST_FAILED}),
    "one is missing": (lambda made: made.exchanges.pop(), Verdict.INVALID, {Code.EVIDENCE_MISSING}),
    "two prompts are one": (
        lambda made: [one.update(prompt=made.of("cold")["prompt"]) for one in made.exchanges],
        Verdict.INVALID,
        {Code.NOT_EXERCISED},
    ),
    "other lengths": (
        every(max_tokens=16, ids=[1] * 16, completion_tokens=16),
        Verdict.INVALID,
        {Code.NOT_EXERCISED},
    ),
    "one request does not tell": (put("warm", accept=None), Verdict.INVALID, {Code.NOT_EXERCISED}),
    "accepted without a step": (
        put("warm", accept={"accepted": 41, "proposed": 40, "steps": 0}),
        Verdict.INVALID,
        {Code.NOT_EXERCISED},
    ),
    "one token for ever": (every(ids=[0] * 32), Verdict.INVALID, {Code.NOT_EXERCISED}),
    "one answer to every prompt": (every(ids=IDS), Verdict.INVALID, {Code.NOT_EXERCISED}),
    "counters that stood still": (
        lambda made: [one.update(counters=counters(100, 50)) for one in made.marks],
        Verdict.INVALID,
        {Code.NOT_EXERCISED},
    ),
    "a mark is missing": (lambda made: made.marks.pop(), Verdict.INVALID, {Code.EVIDENCE_MISSING}),
    "answer shortened": (
        put("warm", ids=[1], completion_tokens=1),
        Verdict.FAIL,
        {Code.OUTPUT_COUNT},
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_found(tmp_path: Path, name: str) -> None:
    damage, verdict, codes = FAULTS[name]
    made = story()
    damage(made)
    assert judged(write(tmp_path, made), reference_length=3.0) == (verdict, codes)


def test_acceptance_that_the_environment_makes_up_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, story())
    environment = tmp_path / "mtp" / "environment.json"
    environment.write_text(json.dumps({"SGLANG_SIMULATE_ACC_LEN": "3.5"}), encoding="utf-8")
    assert judged(folder, reference_length=3.0) == (Verdict.INVALID, {Code.ACCEPT_SIMULATED})
    assert CHECK.judge(params(), folder).metrics["acceptance"] == "simulated"
    environment.write_text(json.dumps({"SGLANG_SIMULATE_ACC_LEN": "-1"}), encoding="utf-8")
    assert judged(folder, reference_length=3.0) == (Verdict.PASS, set())


def test_acceptance_that_the_configuration_makes_up_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, story())
    facts = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
    facts["config"]["normal"] = {
        "speculative_config.synthetic_acceptance_length": None,
        "speculative_config.rejection_sample_method": "synthetic",
    }
    (folder / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
    assert judged(folder, reference_length=3.0) == (Verdict.INVALID, {Code.ACCEPT_SIMULATED})


@pytest.mark.parametrize("name", FAULTS)
def test_an_unsound_reference_is_unfit(tmp_path: Path, name: str) -> None:
    damage = FAULTS[name][0]
    base = story()
    damage(base)
    write(tmp_path, base, "base")
    found = judged(write(tmp_path, story()), reference="base")
    if name == "collapsed, every answer right":  # sound by itself: the other lane is the better one
        assert found == (Verdict.PASS, set())
    else:
        assert found == (Verdict.INVALID, {Code.REFERENCE_UNFIT})


def test_a_reference_that_is_not_there_or_made_up_is_unfit(tmp_path: Path) -> None:
    folder = write(tmp_path, story())
    assert judged(folder, reference="base") == (Verdict.INVALID, {Code.REFERENCE_UNFIT})
    write(tmp_path, story(), "base")
    (tmp_path / "base" / "environment.json").write_text('{"SGLANG_SIMULATE_ACC_LEN": "3"}', encoding="utf-8")
    assert judged(folder, reference="base") == (Verdict.INVALID, {Code.REFERENCE_UNFIT})


def test_parameters() -> None:
    assert CHECK.problems(params(reference="base")) == []
    assert CHECK.problems(params(reference="base", reference_length=2.0)) != []


def test_a_reference_that_asked_something_else_is_unfit(tmp_path: Path) -> None:
    other = story()
    for one in other.exchanges:
        one["prompt"] = [9, 9, 9]
    write(tmp_path, other, "other")
    verdict, codes = judged(write(tmp_path, story()), reference="other")
    assert verdict is Verdict.INVALID
    assert Code.REFERENCE_UNFIT in codes


def test_a_warm_phase_that_hits_nothing_is_none(tmp_path: Path) -> None:
    made = story()
    made.notes["expected_warm"] = 0
    for one in made.exchanges:
        one["cached"] = {"total": 0}
    verdict, codes = judged(write(tmp_path, made), reference_length=3.0)
    assert verdict is Verdict.INVALID
    assert Code.NOT_EXERCISED in codes
