"""Our scoring against lm-eval's own functions, on arbitrary text and on nasty text picked by hand."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lm_eval.api.metrics import exact_match_hf_evaluate  # type: ignore[import-untyped]
from lm_eval.filters.extraction import RegexFilter  # type: ignore[import-untyped]

from harness.accuracy import scoring
from harness.accuracy.scoring import FLEXIBLE, STRICT, extract, has_final_number, is_degenerate, score

THEIRS = {
    STRICT: RegexFilter(r"#### (\-?[0-9\.\,]+)"),
    FLEXIBLE: RegexFilter(r"(-?[$0-9.,]{2,})|(-?[0-9]+)", group_select=-1),
}
IGNORED = [",", r"\$", "(?s).*#### ", r"\.$"]

ANY_TEXT = st.one_of(
    st.text(max_size=60),
    st.text(alphabet="#### 0123456789.,$-\n\r\0 İΣßẞ[]ivAa٣²\u2028", max_size=40),
)

NASTY = [
    "",
    " ",
    "####",
    "#### ",
    "#### .",
    "#### -",
    "#### --5",
    "####5",
    "#### 1,000",
    "#### 1,000.",
    "#### 18.\n",
    "#### 18..",
    "#### $18",
    "#### -18.50",
    "#### 5 #### 6",
    "#### 5\n\nQuestion: x\n#### 6",
    "answer 7, or $8. Or 9",
    "$$$",
    "...",
    "-",
    "-5",
    "5-6",
    "1-2",
    "٣٤",
    "#### ٣",
    "²",
    "#### 7\0",
    "#### 7\u2028",
    "İ\0",
    "1" * 5000,
    "#" * 5000,
    "\n".join(["#### "] * 500),
    "[INVALID]",
    "[invalid]",
]


def theirs(response: str, name: str) -> str:
    return str(next(iter(THEIRS[name].apply([[response]], [{}])))[0])


def their_score(extracted: str, target: str) -> bool:
    result = exact_match_hf_evaluate([extracted], [target], IGNORED, True, False)
    return bool(result["exact_match"])


@settings(max_examples=300, deadline=None)
@given(ANY_TEXT)
def test_extracts_as_lm_eval_does(response: str) -> None:
    for name in scoring.FILTERS:
        assert extract(response, name) == theirs(response, name)


@settings(max_examples=300, deadline=None)
@given(ANY_TEXT, ANY_TEXT)
def test_scores_as_lm_eval_does(one: str, other: str) -> None:
    for a, b in (
        (one, other),
        (one, f"{one}."),
        (one, one.upper()),
        (one, f"x#### {one}"),
        (one, f"{one}\0"),
    ):
        assert score(a, b) == their_score(a, b), (a, b)


@pytest.mark.parametrize("text", NASTY, ids=lambda text: repr(text)[:30])
def test_agrees_on_nasty_text(text: str) -> None:
    for name in scoring.FILTERS:
        assert extract(text, name) == theirs(text, name)
        for gold in ("so 18.\n#### 18", "#### 1,000", "#### 5", "#### 7", "[invalid]", text):
            assert score(extract(text, name), gold) == their_score(extract(text, name), gold)
    assert score(text, text)


def test_the_same_answer_in_other_clothes() -> None:
    for spelling in ("1,000", "$1000", "1000.", "$1,000."):
        assert score(spelling, "ten hundreds\n#### 1,000")
    assert not score("1000.5", "#### 1000")
    assert not score("100", "#### 1000")


def test_an_unknown_filter_is_an_error() -> None:
    with pytest.raises(KeyError):
        extract("#### 5", "none")


def test_a_final_number_stands_behind_the_marker() -> None:
    assert has_final_number("so\n#### 18")
    assert has_final_number("#### -1,000.50")
    for unfinished in ("", "The answer is 18.", "16 - 3 - 4 = ", "#### ", "#### unknown", "#### ..."):
        assert not has_final_number(unfinished), unfinished


@pytest.mark.parametrize(
    "text",
    [
        "!" * 40,
        "0" * 12,
        " so\n" + "He has 5 apples. " * 8 + "He has 5 ap",
        "x = 3\n" + "the the the the " * 10,
        "好的" * 60,
        "ab" * 40,
        "Let us see. " + "She buys 3 more and 4 more and 5 more, then pays. " * 10 + "\n#### 5",
        "Janet sells eggs. " + ("word " * 3 + "end of unit with sixteen tail chars ") * 6,
    ],
    ids=lambda text: text[:20],
)
def test_looping_text_is_degenerate(text: str) -> None:
    assert is_degenerate(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "!!!",
        " 1+1+1+1+1+1 = 6\n#### 6",
        " 1/3 = 0.33333333333333333333\n#### 0.33",
        "10 + 10 + 10 + 10 + 10 = 50 dollars.\n#### 50",
        "She has 3 red, 3 blue, 3 green and 3 white pens, so 12 pens.\n#### 12",
        "Day 1: 5 miles. Day 2: 10 miles. Day 3: 15 miles. Day 4: 20 miles. Day 5: 25 miles.\n#### 75",
    ],
    ids=lambda text: text[:20],
)
def test_honest_text_is_not_degenerate(text: str) -> None:
    assert not is_degenerate(text)


@pytest.mark.skipif("HARNESS_GSM8K_DIR" not in os.environ, reason="needs the real GSM8K (HARNESS_GSM8K_DIR)")
def test_the_gold_solutions_of_gsm8k_are_right_finished_and_sane() -> None:
    for split in ("train", "test"):
        lines = (
            Path(os.environ["HARNESS_GSM8K_DIR"], f"{split}.jsonl").read_text(encoding="utf-8").split("\n")
        )
        for gold in [json.loads(line)["answer"] for line in lines if line]:
            assert score(extract(gold, STRICT), gold)
            assert has_final_number(gold)
            assert not is_degenerate(gold)
