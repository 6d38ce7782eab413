"""Pairing by (doc_id, filter): counts, disagreements, threshold, and what makes two sides incomparable."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from harness.accuracy.pairing import pair_samples, write_disagreements
from harness.accuracy.samples import SampleSet, load_samples
from harness.evidence.record import PairResult
from harness.findings import Code
from harness.verdict import Verdict
from tests.accuracy.builders import Line, edit_samples, problems, write_evaluation

N = 40
DOCS = problems(N)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_evaluation(tmp_path / "baseline", DOCS, wrong={0, 1, 2})


def made(folder: Path, **options: object) -> SampleSet:
    return load_samples(write_evaluation(folder, DOCS, **options))  # type: ignore[arg-type]


def codes(result: PairResult) -> set[Code]:
    return {finding.code for finding in result.findings}


def test_counts_by_hand(tmp_path: Path) -> None:
    # 0, 1, 2 wrong on both sides, 2 with another wrong answer; 3 and 4 lost; 5 gained
    baseline = made(tmp_path / "a", wrong={0, 1, 2, 5})
    candidate = made(tmp_path / "b", wrong={0, 1, 3, 4}, answers={2: " Hm.\n#### 7"})
    result, disagreements = pair_samples(baseline, candidate)
    assert result.verdict is Verdict.REPORTED
    assert result.findings == []
    assert list(result.filters) == ["strict-match", "flexible-extract"]
    stats = result.filters["strict-match"]
    assert (stats.n, stats.correct_baseline, stats.correct_candidate) == (40, 36, 35)
    assert (stats.accuracy_baseline, stats.accuracy_candidate) == (0.9, 0.875)
    assert stats.delta_pp == pytest.approx(-2.5)
    assert (stats.only_baseline, stats.only_candidate, stats.both_wrong_different) == (2, 1, 1)
    assert stats.mcnemar_p == pytest.approx(1.0)
    assert stats.ci_low_pp < stats.delta_pp < stats.ci_high_pp
    assert [(item.doc_id, item.right) for item in disagreements if item.filter == "strict-match"] == [
        (2, "neither"),
        (3, "baseline"),
        (4, "baseline"),
        (5, "candidate"),
    ]


def test_the_same_wrong_answer_in_other_clothes_is_no_disagreement(tmp_path: Path) -> None:
    baseline = made(tmp_path / "a", answers={0: " #### 1,234"})
    candidate = made(tmp_path / "b", answers={0: " #### 1234."})
    result, disagreements = pair_samples(baseline, candidate)
    assert result.filters["strict-match"].both_wrong_different == 0
    assert disagreements == []


def test_disagreements_are_readable_lines(tmp_path: Path) -> None:
    _, found = pair_samples(made(tmp_path / "a"), made(tmp_path / "b", wrong={3}))
    path = tmp_path / "out" / "disagreements.jsonl"
    write_disagreements(path, found)
    [line, other] = [json.loads(line) for line in path.read_bytes().split(b"\n") if line]
    assert line == {
        "doc_id": 3,
        "filter": "strict-match",
        "right": "baseline",
        "question": DOCS[3]["question"],
        "gold": DOCS[3]["answer"],
        "baseline_extracted": "1006",
        "candidate_extracted": "1007",
        "baseline_answer": " The shelf then holds 1006 books.\n#### 1006",
        "candidate_answer": " The shelf then holds 1007 books.\n#### 1007",
    }
    assert other["filter"] == "flexible-extract"
    assert "’" in path.read_text(encoding="utf-8")


def test_odd_characters_survive_the_disagreements(tmp_path: Path) -> None:
    odd = " It’s\u2028odd \x00 #### 1"
    _, found = pair_samples(made(tmp_path / "a"), made(tmp_path / "b", answers={3: odd}))
    lone = replace(found[0], candidate_answer="\ud800")  # half a character, which UTF-8 cannot hold
    write_disagreements(tmp_path / "out.jsonl", [*found, lone])
    answers = [json.loads(line)["candidate_answer"] for line in (tmp_path / "out.jsonl").open("rb")]
    assert answers == [odd, odd, "\ud800"]


def test_scores_are_earned_not_believed(tmp_path: Path, folder: Path) -> None:
    def claim(lines: list[Line]) -> None:
        for line in lines:
            line.update(exact_match=1.0)

    other = write_evaluation(tmp_path / "candidate", DOCS, wrong=set(range(10)))
    edit_samples(other, claim)
    result, _ = pair_samples(load_samples(folder), load_samples(other))
    assert result.filters["strict-match"].correct_candidate == 30


def test_a_prompt_that_differs_by_one_byte(tmp_path: Path, folder: Path) -> None:
    def spoil(lines: list[Line]) -> None:
        lines[4]["arguments"]["gen_args_0"]["arg_0"] += " "

    other = write_evaluation(tmp_path / "candidate", DOCS)
    edit_samples(other, spoil)
    result, _ = pair_samples(load_samples(folder), load_samples(other))
    assert [(item.code, item.where) for item in result.findings] == [
        (Code.INPUT_MISMATCH, "doc_id=4 filter=strict-match")
    ]
    length = len(load_samples(folder).samples[4].prompt)
    assert f"at character {length}, '' against ' '" in result.findings[0].message
    assert result.verdict is Verdict.INVALID


def test_what_cannot_be_compared_is_not_judged(tmp_path: Path, folder: Path) -> None:
    other = write_evaluation(tmp_path / "candidate", problems(N - 1), wrong=set(range(30)))
    result, _ = pair_samples(load_samples(folder), load_samples(other), 5)
    assert result.verdict is Verdict.INVALID
    assert Code.MARGIN_EXCEEDED not in codes(result)


def test_a_target_that_differs(tmp_path: Path, folder: Path) -> None:
    other = write_evaluation(tmp_path / "candidate", DOCS)
    edit_samples(other, lambda lines: lines[4].update(target="#### 5"))
    result, _ = pair_samples(load_samples(folder), load_samples(other))
    assert codes(result) == {Code.TARGET_MISMATCH}
    assert "at character 0, 'He has" in result.findings[0].message


def test_documents_on_one_side_only(tmp_path: Path, folder: Path) -> None:
    other = write_evaluation(tmp_path / "candidate", problems(N - 1))
    result, _ = pair_samples(load_samples(folder), load_samples(other), 5)
    assert {item.where for item in result.findings if item.code is Code.MISSING_DOC} == {
        f"candidate doc_id={N - 1} filter=strict-match",
        f"candidate doc_id={N - 1} filter=flexible-extract",
    }
    assert result.verdict is Verdict.INVALID
    assert result.filters["strict-match"].n == N - 1
    result, _ = pair_samples(load_samples(other), load_samples(folder))
    assert result.findings[0].where.startswith("baseline")


def test_a_filter_on_one_side_only(tmp_path: Path, folder: Path) -> None:
    other = write_evaluation(tmp_path / "candidate", DOCS)
    edit_samples(other, lambda lines: lines.__delitem__(slice(N, None)))
    result, _ = pair_samples(load_samples(folder), load_samples(other))
    assert [(item.code, item.where) for item in result.findings] == [
        (Code.FILTER_MISSING, "candidate filter=flexible-extract")
    ]
    assert list(result.filters) == ["strict-match"]


def test_a_repeated_document(tmp_path: Path, folder: Path) -> None:
    other = write_evaluation(tmp_path / "candidate", DOCS)
    edit_samples(other, lambda lines: lines.append(lines[0]))
    result, _ = pair_samples(load_samples(folder), load_samples(other))
    assert [(item.code, item.where) for item in result.findings] == [
        (Code.DUPLICATE_DOC, "candidate doc_id=0 filter=strict-match")
    ]
    assert result.filters["strict-match"].n == N


def test_nothing_to_pair_is_invalid(tmp_path: Path, folder: Path) -> None:
    nothing = SampleSet(folder=tmp_path)
    for sides in ((nothing, nothing), (load_samples(folder), nothing), (nothing, load_samples(folder))):
        result, found = pair_samples(*sides, max_drop_pp=50)
        assert result.verdict is Verdict.INVALID
        assert (result.filters, found) == ({}, [])


def test_a_threshold_that_is_held(tmp_path: Path) -> None:
    result, _ = pair_samples(made(tmp_path / "a"), made(tmp_path / "b"), 20)
    assert result.verdict is Verdict.PASS
    assert result.findings == []


def test_a_threshold_that_is_broken(tmp_path: Path) -> None:
    result, _ = pair_samples(made(tmp_path / "a"), made(tmp_path / "b", wrong=set(range(25))), 5)
    assert result.verdict is Verdict.FAIL
    assert [(item.code, item.where) for item in result.findings] == [
        (Code.MARGIN_EXCEEDED, "filter=strict-match"),
        (Code.MARGIN_EXCEEDED, "filter=flexible-extract"),
    ]
    assert "-62.50 pp" in result.findings[0].message


def test_a_threshold_that_cannot_be_decided_says_what_would_decide_it(tmp_path: Path) -> None:
    result, _ = pair_samples(made(tmp_path / "a"), made(tmp_path / "b", wrong={0, 1}), 1)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert codes(result) == {Code.MARGIN_UNDECIDED}
    assert "times these) would settle it" in result.findings[0].message
    assert "80 % power" in result.findings[0].message


def test_a_difference_on_the_margin_itself(tmp_path: Path) -> None:
    result, _ = pair_samples(made(tmp_path / "a"), made(tmp_path / "b", wrong={0, 1}), 5)
    assert "lies on the margin itself" in result.findings[0].message


def test_the_worst_filter_decides(tmp_path: Path) -> None:
    """Strict answers are all lost, flexible ones are kept."""
    answers: dict[int, str | None] = {
        number: f" It holds {doc['answer'].rpartition(' ')[2]}" for number, doc in enumerate(DOCS)
    }
    result, _ = pair_samples(made(tmp_path / "a"), made(tmp_path / "b", answers=answers), 10)
    assert result.verdict is Verdict.FAIL
    assert [item.where for item in result.findings] == ["filter=strict-match"]
    assert result.filters["flexible-extract"].delta_pp == 0
