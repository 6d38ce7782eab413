"""Which documents are right, by KV type."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.simulator.answer_key import AnswerKey, Answers, Document


def key(number: int, accuracies: dict[str, float], discordance: float = 0.0) -> AnswerKey:
    documents = [Document(f"How many are {n} and {n}?", str(2 * n)) for n in range(number)]
    return AnswerKey(documents, accuracies, discordance)


@given(number=st.integers(1, 120), base=st.floats(0, 1), other=st.floats(0, 1), discordance=st.floats(0, 1))
def test_accuracies_hold_exactly_and_the_discordance_as_far_as_it_can(
    number: int, base: float, other: float, discordance: float
) -> None:
    answers = key(number, {"bf16": base, "fp8": other}, discordance)
    first, second = answers.right("bf16"), answers.right("fp8")
    assert (len(first), len(second)) == (round(base * number), round(other * number))
    gap = len(second) - len(first)
    wanted = max(round(discordance * number), abs(gap))
    wanted += (wanted - gap) % 2
    possible = gap + 2 * min(len(first), number - len(second))
    assert len(first ^ second) == min(wanted, possible)


def test_discordance_goes_both_ways() -> None:
    answers = key(1000, {"bf16": 0.60, "fp8": 0.55}, 0.15)
    first, second = answers.right("bf16"), answers.right("fp8")
    assert (len(first), len(second)) == (600, 550)
    assert (len(first - second), len(second - first)) == (100, 50)


def test_without_discordance_the_better_is_a_superset() -> None:
    answers = key(100, {"bf16": 0.60, "fp8": 0.55})
    assert answers.right("fp8") < answers.right("bf16")


def test_the_choice_does_not_follow_the_order_of_the_documents() -> None:
    documents = [Document(f"Question {n}?", str(n)) for n in range(50)]
    forward = AnswerKey(documents, {"a": 0.5}).right("a")
    assert forward == AnswerKey(documents[::-1], {"a": 0.5}).right("a")
    assert forward != {document.question for document in documents[:25]}


def test_a_kv_type_that_is_not_named_is_as_good_as_the_base_and_differs() -> None:
    answers = key(200, {"bf16": 0.6}, 0.1)
    other = answers.right("bf16 again")
    assert len(other) == 120
    assert len(other ^ answers.right("bf16")) == 20


@pytest.mark.parametrize("answer", ["42", "1,000", "-3", "2.5", "half"])
def test_a_wrong_answer_is_wrong(answer: str) -> None:
    answers = Answers.of(AnswerKey([Document("How many?", answer)], {"a": 0.0}), "a")
    wrong = answers.number("How many?")
    assert wrong is not None
    assert wrong != answer.replace(",", "")
    int(wrong)


@pytest.mark.parametrize(("accuracies", "discordance"), [({}, 0.0), ({"a": 1.1}, 0.0), ({"a": 0.5}, -0.1)])
def test_shares_must_be_shares(accuracies: dict[str, float], discordance: float) -> None:
    with pytest.raises(ValueError, match="shares"):
        key(10, accuracies, discordance)


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "test.jsonl"
    rows = [{"question": " How\nmany? ", "answer": "It is 1 + 1.\n#### 2"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + "\n")
    answers = AnswerKey.load(path, {"a": 1.0})
    assert len(answers) == 1
    assert Answers.of(answers, "a").number("How many?") == "2"
    assert Answers.of(answers, "a").number("How much?") is None


@pytest.mark.parametrize("content", ["{", "3\n", '{"question": "a"}\n'])
def test_a_file_that_is_no_key_is_a_value_error(tmp_path: Path, content: str) -> None:
    path = tmp_path / "test.jsonl"
    path.write_text(content)
    with pytest.raises(ValueError):  # noqa: PT011 - json's own among them
        AnswerKey.load(path, {"a": 1.0})


@pytest.mark.skipif("HARNESS_GSM8K_DIR" not in os.environ, reason="HARNESS_GSM8K_DIR is not set")
def test_the_real_set_has_no_two_equal_questions() -> None:
    answers = AnswerKey.load(Path(os.environ["HARNESS_GSM8K_DIR"]) / "test.jsonl", {"a": 0.5})
    assert len(answers) == 1319


def test_each_kv_type_flips_its_own_documents() -> None:
    answers = key(200, {"bf16": 0.6, "fp8": 0.6, "int8": 0.6}, 0.2)
    assert answers.right("fp8") != answers.right("int8")
