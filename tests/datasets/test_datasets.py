"""The shipped data sets: in GSM8K's form, right, and without a question twice."""

import json
import re
from pathlib import Path

import pytest

from harness import datasets

EQUATION = re.compile(r"(\d+) \+ (\d+) = (\d+)")
SHOTS = 5


def documents(folder: Path, split: str) -> list[dict[str, str]]:
    lines = (folder / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(params=datasets.names())
def folder(request: pytest.FixtureRequest) -> Path:
    return datasets.path(request.param)


def test_the_arithmetic_set_is_shipped() -> None:
    folder = datasets.path("arithmetic")
    assert "arithmetic" in datasets.names()
    assert len(documents(folder, "test")) == 60
    assert len(documents(folder, "train")) > SHOTS
    assert "Apache-2.0" in (folder / "README.md").read_text(encoding="utf-8")


def test_an_unknown_set() -> None:
    for name in ("gsm8k", "__pycache__", "..", "../datasets"):
        with pytest.raises(KeyError):
            datasets.path(name)


def test_form(folder: Path) -> None:
    for split in ("train", "test"):
        for document in documents(folder, split):
            assert list(document) == ["question", "answer"]
            assert document["question"] == document["question"].strip()
            assert document["question"].endswith("?")
            assert re.fullmatch(r"[^\n]+\n#### \d+", document["answer"]), document


def test_no_question_comes_twice(folder: Path) -> None:
    questions = [d["question"] for split in ("train", "test") for d in documents(folder, split)]
    assert len(set(questions)) == len(questions)


def test_the_answers_are_right() -> None:
    """Each sum is right, is one of the question's numbers after the other, and leads to the answer."""
    folder = datasets.path("arithmetic")
    for document in documents(folder, "train") + documents(folder, "test"):
        steps = [tuple(map(int, step)) for step in EQUATION.findall(document["answer"])]
        final = int(document["answer"].rpartition("#### ")[2])
        asked = [int(number) for number in re.findall(r"\d+", document["question"])]
        assert len(steps) in (1, 2)
        assert all(left + right == total for left, right, total in steps), document
        assert [steps[0][0], *(right for _, right, _ in steps)] == asked, document
        assert [left for left, _, _ in steps[1:]] == [total for _, _, total in steps[:-1]], document
        assert steps[-1][2] == final == sum(asked), document
