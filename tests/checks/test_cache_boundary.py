"""Judging the prefix cache from files: the clean story passes, and each damage to it is found."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.checks.cache_boundary import UNRELATED_TOKENS, CacheBoundary, CacheBoundaryParams
from harness.codes import Code
from harness.evidence.record import CheckResult
from harness.scenario.model import Pair
from harness.verdict import Verdict
from tests.checks.evidence_files import IDS, Story, exchange, mark

CHECK = CacheBoundary()
LENGTHS = (600, 601)
EXPECTED = {"600": 512, "601": 512}
LEGS = {
    "cold": 0,
    "warm": 512,
    "warm-again": 512,
    "control": 0,
    "cold-together": 0,
    "warm-together": 512,
    "control-together": 0,
    "single": 512,
}
OTHER = [*IDS[:-1], 7]


def story() -> Story:
    unrelated = [
        exchange("unrelated", case, asked_tokens=UNRELATED_TOKENS, prompt_tokens=UNRELATED_TOKENS)
        for case in EXPECTED
    ]
    return Story(
        exchanges=[
            exchange(
                leg,
                case,
                cached={"total": hit},
                asked_tokens=int(case),
                prompt_tokens=int(case),
                ids=[*IDS[:-1], int(case)],
            )
            for case in EXPECTED
            for leg, hit in LEGS.items()
        ]
        + unrelated,
        marks=[mark("begin")],
        notes={**EXPECTED, "has_control": True},
    )


def judged(folder: Path, made: Story) -> CheckResult:
    return CHECK.judge(CacheBoundaryParams(lengths=LENGTHS), made.write(folder / "lane" / "cache-boundary"))


def test_a_clean_story_passes(tmp_path: Path) -> None:
    result = judged(tmp_path, story())
    assert (result.verdict, result.findings) == (Verdict.PASS, [])
    assert result.told == "hits 512/512"


def put(leg: str, **values: Any) -> Callable[[Story], Any]:
    return lambda made: made.of(leg).update(values)


def drop(leg: str) -> Callable[[Story], Any]:
    return lambda made: made.exchanges.remove(made.of(leg))


def every(**values: Any) -> Callable[[Story], Any]:
    return lambda made: [one.update(values) for one in made.exchanges]


def both_differ(made: Story) -> None:
    made.of("warm").update(ids=OTHER)
    made.of("control").update(ids=OTHER)


def another_differs(made: Story) -> None:
    """The control moved in the other case: batch shape moves numbers here."""
    made.of("warm").update(ids=OTHER)
    next(one for one in made.exchanges if one["leg"] == "control" and one["case"] == "601").update(ids=OTHER)


def swapped(made: Story) -> None:
    """Whatever is asked together comes back crossed, every time."""
    for leg in ("cold-together", "warm-together", "control-together"):
        one, two = (item for item in made.exchanges if item["leg"] == leg)
        one["ids"], two["ids"] = two["ids"], one["ids"]


FAULTS: dict[str, tuple[Callable[[Story], Any], Verdict, Code]] = {
    "cold that was not": (put("cold", cached={"total": 256}), Verdict.INVALID, Code.COLD_NOT_COLD),
    "hits not told": (put("cold", cached={"total": None}), Verdict.INVALID, Code.NOT_EXERCISED),
    "short hit": (put("warm", cached={"total": 256}), Verdict.FAIL, Code.HIT_MISMATCH),
    "hit beyond the arithmetic": (put("warm", cached={"total": 599}), Verdict.FAIL, Code.HIT_MISMATCH),
    "no hit after something else": (put("warm-again", cached={"total": 0}), Verdict.FAIL, Code.HIT_MISMATCH),
    "warm differs": (put("warm", ids=OTHER), Verdict.FAIL, Code.OUTPUT_DIFFERS),
    "together differs": (put("warm-together", ids=OTHER), Verdict.FAIL, Code.OUTPUT_DIFFERS),
    "control differs too": (both_differ, Verdict.INCONCLUSIVE, Code.OUTPUT_UNSTABLE),
    "control differs elsewhere": (another_differs, Verdict.INCONCLUSIVE, Code.OUTPUT_UNSTABLE),
    "a control without a reference hides nothing": (
        lambda made: [
            put("warm", ids=OTHER)(made),
            made.exchanges[len(LEGS)].update(error="500"),  # the other case's cold answer
        ],
        Verdict.FAIL,
        Code.OUTPUT_DIFFERS,
    ),
    "control swapped": (
        lambda made: made.of("control-together").update(ids=[*IDS[:-1], 601]),
        Verdict.FAIL,
        Code.OUTPUT_DIFFERS,
    ),
    "warm moves a log-probability": (
        put("warm-again", logprobs=[-0.5] * 31 + [-1.5]),
        Verdict.INCONCLUSIVE,
        Code.LOGPROB_DRIFT,
    ),
    "control that hits": (put("control", cached={"total": 512}), Verdict.INVALID, Code.CONTROL_FAILED),
    "control that does not tell": (
        put("control", cached={"total": None}),
        Verdict.INVALID,
        Code.NOT_EXERCISED,
    ),
    "control lost": (drop("control"), Verdict.INVALID, Code.EVIDENCE_MISSING),
    "leg lost": (drop("warm-again"), Verdict.INVALID, Code.EVIDENCE_MISSING),
    "another length": (put("warm", prompt_tokens=599), Verdict.INVALID, Code.NOT_EXERCISED),
    "nothing else in between": (drop("unrelated"), Verdict.INVALID, Code.EVIDENCE_MISSING),
    "asked twice": (
        lambda made: made.exchanges.append(dict(made.of("warm"))),
        Verdict.INVALID,
        Code.NOT_EXERCISED,
    ),
    "one id for two requests": (put("warm", request_id="id-cold-600"), Verdict.INVALID, Code.NOT_EXERCISED),
    "a shorter prompt": (
        put("warm", asked_tokens=300, prompt_tokens=300, prompt=[600, *range(1, 300)]),
        Verdict.INVALID,
        Code.NOT_EXERCISED,
    ),
    "one prompt for two lengths": (
        lambda made: [
            one.update(prompt=made.of(one["leg"])["prompt"])
            for one in made.exchanges
            if one["case"] == "601" and one["leg"] in LEGS
        ],
        Verdict.INVALID,
        Code.NOT_EXERCISED,
    ),
    "together, one after the other": (
        put("warm-together", started_s=9.0),
        Verdict.INVALID,
        Code.NOT_EXERCISED,
    ),
    "cold by the answer, not by the log": (
        lambda made: made.log.update(requests={"id-cold-600": {"cached": {"device": 512}}}),
        Verdict.INVALID,
        Code.COLD_NOT_COLD,
    ),
    "finish reason unknown": (put("warm", finish_reason=""), Verdict.FAIL, Code.BAD_ANSWER),
    "request failed": (put("warm", error="500"), Verdict.INVALID, Code.REQUEST_FAILED),
    "given up with 200": (put("warm", finish_reason="abort"), Verdict.FAIL, Code.BAD_ANSWER),
    "one token for ever": (every(ids=[0] * len(IDS)), Verdict.INVALID, Code.NOT_EXERCISED),
    "one answer to every prompt": (every(ids=IDS), Verdict.INVALID, Code.NOT_EXERCISED),
    "one token for ever when warm": (put("warm", ids=[0] * len(IDS)), Verdict.FAIL, Code.OUTPUT_DIFFERS),
    "no text": (put("warm", text=""), Verdict.FAIL, Code.BAD_ANSWER),
    "output cut": (put("warm", ids=IDS[:5], completion_tokens=5), Verdict.FAIL, Code.OUTPUT_COUNT),
    "answers swapped": (swapped, Verdict.FAIL, Code.OUTPUT_DIFFERS),
    "another prompt": (put("warm", prompt=[9]), Verdict.INVALID, Code.NOT_EXERCISED),
    "control with the cache": (put("control", use_cache=True), Verdict.INVALID, Code.NOT_EXERCISED),
    "ids lost": (put("warm", ids=IDS[:5]), Verdict.FAIL, Code.BAD_ANSWER),
    "shorter than a page": (lambda made: made.notes.update({"600": 0}), Verdict.INVALID, Code.NOT_EXERCISED),
    "arithmetic not on file": (lambda made: made.notes.pop("600"), Verdict.INVALID, Code.EVIDENCE_MISSING),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_found(tmp_path: Path, name: str) -> None:
    damage, verdict, code = FAULTS[name]
    made = story()
    damage(made)
    result = judged(tmp_path, made)
    assert code in {finding.code for finding in result.findings}
    assert result.verdict is verdict


def test_without_a_control_nothing_more_than_a_report(tmp_path: Path) -> None:
    made = story()
    made.exchanges = [one for one in made.exchanges if not one["leg"].startswith("control")]
    made.notes["has_control"] = False
    assert judged(tmp_path, made).verdict is Verdict.REPORTED


@pytest.mark.parametrize("name", ["exchanges.jsonl", "marks.jsonl", "facts.json"])
@pytest.mark.parametrize("content", [None, b"", b"{", b"\xff", b"null\n", b"[" * 100_000])
def test_broken_evidence_is_missing_evidence(tmp_path: Path, name: str, content: bytes | None) -> None:
    folder = story().write(tmp_path / "lane" / "cache-boundary")
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    result = CHECK.judge(CacheBoundaryParams(lengths=LENGTHS), folder)
    if (name, content) == ("marks.jsonl", b""):
        return  # this check needs no mark
    assert result.verdict is Verdict.INVALID
    assert {finding.code for finding in result.findings} == {Code.EVIDENCE_MISSING}


def test_the_first_difference_is_told_with_its_margin(tmp_path: Path) -> None:
    made = story()
    made.of("warm").update(ids=OTHER, logprobs=[-0.5] * 31 + [-0.25])
    (finding,) = judged(tmp_path, made).findings
    assert "first at token 32 of 32" in finding.message
    assert f"margin {0.25:.4f}" in finding.message


def test_it_cannot_be_paired(tmp_path: Path) -> None:
    pair = Pair(name="p", baseline="a", candidate="b", check="cache-boundary")
    assert CHECK.pair(CacheBoundaryParams(), pair, tmp_path, tmp_path, None).verdict is Verdict.INVALID


def test_lengths_that_mean_nothing_are_refused() -> None:
    assert CHECK.problems(CacheBoundaryParams(lengths=(2,)))
    (problem,) = CHECK.problems(CacheBoundaryParams(lengths=(600, 601, 600)))
    assert problem == "lengths: 600 is there 2 times; once is enough"
    assert not CHECK.problems(CacheBoundaryParams())
