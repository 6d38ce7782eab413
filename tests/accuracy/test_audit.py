"""Every acceptance rule of a lane's evidence, each with a planted fault."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.accuracy.audit import audit
from harness.accuracy.integrity import doc_hash
from harness.accuracy.listing import LISTED, listed
from harness.accuracy.samples import load_samples
from harness.evidence.record import CheckResult
from harness.findings import Code
from harness.verdict import Verdict
from tests.accuracy.builders import (
    REAL_OUTPUT,
    TIME,
    Line,
    edit_lines,
    edit_results,
    edit_samples,
    finished,
    problems,
    samples_file,
    write_evaluation,
    write_lane,
)

N = 12
DOCS = problems(N)


def judged(folder: Path, **options: Any) -> CheckResult:
    return audit(load_samples(folder), **options)


def judged_lane(folder: Path) -> CheckResult:
    requests = folder / "gsm8k" / "requests.jsonl"
    return audit(load_samples(folder), expected_docs=N, requests=requests)


def codes(result: CheckResult) -> set[Code]:
    return {finding.code for finding in result.findings}


def places(result: CheckResult, code: Code) -> list[str]:
    return [finding.where for finding in result.findings if finding.code is code]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_evaluation(tmp_path / "out", DOCS, wrong={3, 7, 8})


@pytest.fixture
def lane(tmp_path: Path) -> Path:
    return write_lane(tmp_path / "lane", DOCS, wrong={3})


def test_sound_evidence_is_reported_and_counted(folder: Path) -> None:
    result = judged(folder, expected_docs=N)
    assert result.verdict is Verdict.REPORTED
    assert result.findings == []
    assert result.metrics["n"] == N
    assert result.metrics["accuracy.strict-match"] == 9 / 12
    assert result.metrics["accuracy.flexible-extract"] == 9 / 12
    assert result.metrics["natural_stop_rate"] is None


def test_a_real_lm_eval_output_holds_but_for_its_null_answer() -> None:
    result = judged(REAL_OUTPUT)
    assert places(result, Code.EMPTY_RESPONSE) == ["doc_id=3"]
    assert places(result, Code.NO_FINAL_ANSWER) == ["doc_id=0", "doc_id=1", "doc_id=5"]
    assert codes(result) == {Code.EMPTY_RESPONSE, Code.NO_FINAL_ANSWER}
    assert result.verdict is Verdict.INVALID


def test_no_samples_at_all_is_invalid(tmp_path: Path) -> None:
    result = judged(tmp_path)
    assert result.verdict is Verdict.INVALID
    assert codes(result) == {Code.SAMPLES_UNREADABLE}


def test_odd_lines_reach_the_verdict(folder: Path) -> None:
    path = samples_file(folder)
    path.write_bytes(path.read_bytes() + b"{broken\n")
    result = judged(folder)
    assert places(result, Code.SAMPLES_UNREADABLE) == [f"glm53/{path.name}:{2 * N + 1}"]
    assert result.verdict is Verdict.INVALID


# --- the documents ---------------------------------------------------------------------------------------


def test_limit(folder: Path) -> None:
    edit_results(folder, lambda results: results["config"].update(limit=12.0))
    assert places(judged(folder), Code.LIMIT_USED) == [f"glm53/results_{TIME}.json"]


def test_chosen_samples_are_a_limit_too(folder: Path) -> None:
    edit_results(folder, lambda results: results["n-samples"]["gsm8k"].update(original=1319))
    assert Code.LIMIT_USED in codes(judged(folder))


def test_results_that_do_not_tell_of_a_limit(folder: Path) -> None:
    edit_results(folder, lambda results: results.pop("config"))
    assert codes(judged(folder)) == {Code.SAMPLES_UNREADABLE}


@pytest.mark.parametrize("left", [{}, {"config": {}}, {"config": {"model": "x"}}, {"results": {}}])
def test_results_that_say_nothing(folder: Path, left: Line) -> None:
    def empty(results: Line) -> None:
        results.clear()
        results.update(left)

    edit_results(folder, empty)
    result = judged(folder, expected_docs=N)
    assert Code.SAMPLES_UNREADABLE in codes(result)
    assert result.verdict is Verdict.INVALID


@pytest.mark.parametrize("counts", [None, {}, {"gsm8k": {}}, {"gsm8k": {"original": None}}])
def test_an_unknown_number_of_documents(folder: Path, counts: object) -> None:
    edit_results(folder, lambda results: results.update({"n-samples": counts}))
    assert codes(judged(folder)) == {Code.SAMPLES_UNREADABLE}
    assert judged(folder, expected_docs=N).verdict is Verdict.REPORTED


def test_missing_documents_under_one_filter(folder: Path) -> None:
    def drop(lines: list[Line]) -> None:
        lines[:] = [line for line in lines if (line["doc_id"], line["filter"]) != (5, "strict-match")]

    edit_samples(folder, drop)
    result = judged(folder)
    assert places(result, Code.MISSING_DOC) == ["doc_id=5 filter=strict-match"]
    assert result.verdict is Verdict.INVALID


def test_the_last_document_missing_everywhere(tmp_path: Path) -> None:
    folder = write_evaluation(tmp_path, DOCS[:-1])
    assert judged(folder).verdict is Verdict.REPORTED  # consistent in itself
    result = judged(folder, expected_docs=N)
    assert places(result, Code.MISSING_DOC) == [
        f"doc_id={N - 1} filter=strict-match",
        f"doc_id={N - 1} filter=flexible-extract",
    ]


def test_a_duplicate(folder: Path) -> None:
    edit_samples(folder, lambda lines: lines.append(lines[2]))
    result = judged(folder)
    assert places(result, Code.DUPLICATE_DOC) == ["doc_id=2 filter=strict-match"]


def test_a_duplicate_in_place_of_another(folder: Path) -> None:
    def swap(lines: list[Line]) -> None:
        lines[4] = lines[2]

    edit_samples(folder, swap)
    assert {Code.DUPLICATE_DOC, Code.MISSING_DOC} <= codes(judged(folder))


def test_a_document_too_many(tmp_path: Path) -> None:
    result = judged(write_evaluation(tmp_path, problems(1320)), expected_docs=1319)
    assert places(result, Code.UNEXPECTED_DOC) == [
        "doc_id=1319 filter=strict-match",
        "doc_id=1319 filter=flexible-extract",
    ]


def test_a_negative_document(folder: Path) -> None:
    edit_samples(folder, lambda lines: lines[0].update(doc_id=-1))
    assert {Code.UNEXPECTED_DOC, Code.MISSING_DOC} <= codes(judged(folder))


@pytest.mark.parametrize("name", ["strict-match", "flexible-extract"])
def test_a_missing_filter(folder: Path, name: str) -> None:
    edit_samples(
        folder, lambda lines: lines.__setitem__(slice(None), [x for x in lines if x["filter"] != name])
    )
    result = judged(folder)
    assert places(result, Code.FILTER_MISSING) == [f"filter={name}"]
    assert Code.MISSING_DOC not in codes(result)


def test_a_filter_that_cannot_be_recomputed(folder: Path) -> None:
    edit_samples(folder, lambda lines: lines.append({**lines[0], "filter": "none"}))
    result = judged(folder)
    assert "doc_id=0 filter=none" in places(result, Code.SCORE_MISMATCH)


def test_questions_of_another_data_set(folder: Path) -> None:
    digests = [hashlib.sha256(doc["question"].encode()).hexdigest() for doc in DOCS]
    assert judged(folder, expected_questions=digests).verdict is Verdict.REPORTED
    digests[0], digests[1] = digests[1], digests[0]
    assert places(judged(folder, expected_questions=digests), Code.UNEXPECTED_DOC) == ["doc_id=0", "doc_id=1"]


def test_an_absurd_number_of_documents_ends_soon(folder: Path) -> None:
    result = judged(folder, expected_docs=10**9)
    assert len(places(result, Code.MISSING_DOC)) == 2


# --- hashes, targets, scores -----------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["doc_hash", "prompt_hash", "target_hash"])
def test_a_changed_hash(folder: Path, key: str) -> None:
    edit_samples(folder, lambda lines: lines[4].update({key: "0" * 64}))
    result = judged(folder)
    assert codes(result) == {Code.HASH_MISMATCH}
    assert places(result, Code.HASH_MISMATCH) == ["doc_id=4 filter=strict-match"]
    assert key in result.findings[0].message


def test_a_prompt_changed_by_one_character(folder: Path) -> None:
    def spoil(lines: list[Line]) -> None:
        for line in lines:
            if line["doc_id"] == 6:
                line["arguments"]["gen_args_0"]["arg_0"] += " "

    edit_samples(folder, spoil)
    assert codes(judged(folder)) == {Code.HASH_MISMATCH}


def test_a_document_changed_under_its_hash(folder: Path) -> None:
    edit_samples(folder, lambda lines: lines[4]["doc"].update(question="Who’s there?"))
    assert Code.HASH_MISMATCH in codes(judged(folder))


def test_a_target_that_is_not_the_documents_answer(folder: Path) -> None:
    def spoil(lines: list[Line]) -> None:
        for number, line in enumerate(lines):
            if line["doc_id"] == 6:
                lines[number] = finished({**line, "target": "#### 1"})

    edit_samples(folder, spoil)
    result = judged(folder)
    assert places(result, Code.TARGET_MISMATCH) == [
        "doc_id=6 filter=strict-match",
        "doc_id=6 filter=flexible-extract",
    ]


@pytest.mark.parametrize("points", [0.0, 0.5, float("nan"), float("inf"), -1.0, 2])
def test_a_changed_score(folder: Path, points: float) -> None:
    edit_samples(folder, lambda lines: lines[4].update(exact_match=points))
    result = judged(folder)
    assert places(result, Code.SCORE_MISMATCH) == ["doc_id=4 filter=strict-match"]


def test_an_extractor_that_finds_more(folder: Path) -> None:
    edit_samples(folder, lambda lines: lines[3].update(filtered_resps=["1006"], exact_match=1.0))
    assert Code.SCORE_MISMATCH in codes(judged(folder))


@pytest.mark.parametrize("filtered", [[], [None], None, ["1008 "]])
def test_a_changed_extracted_answer(folder: Path, filtered: object) -> None:
    edit_samples(folder, lambda lines: lines[4].update(filtered_resps=filtered))
    assert codes(judged(folder)) == {Code.SCORE_MISMATCH}


def test_answers_swapped_between_documents(folder: Path) -> None:
    def swap(lines: list[Line]) -> None:
        for first in (0, N):
            one, other = lines[first], lines[first + 1]
            one["resps"], other["resps"] = other["resps"], one["resps"]

    edit_samples(folder, swap)
    assert Code.SCORE_MISMATCH in codes(judged(folder))


def test_two_filters_that_saw_different_answers(folder: Path) -> None:
    def spoil(lines: list[Line]) -> None:
        lines[4] = finished({**lines[4], "resps": [[" Simply.\n#### 1008"]]})

    edit_samples(folder, spoil)
    result = judged(folder)
    assert places(result, Code.HASH_MISMATCH) == ["doc_id=4 filter=flexible-extract"]


def test_hashes_are_those_of_lm_eval() -> None:
    for sample in load_samples(REAL_OUTPUT).samples:
        assert sample.doc_hash == doc_hash(sample.doc)


# --- the results file ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r.update({"exact_match,strict-match": r["exact_match,strict-match"] + 0.0001}),
        lambda r: r.update({"exact_match,flexible-extract": float("nan")}),
        lambda r: r.update({"exact_match,flexible-extract": "0.75"}),
        lambda r: r.pop("exact_match,strict-match"),
        lambda r: r.update(sample_len=1319),
    ],
)
def test_results_that_are_not_the_samples(folder: Path, change: Callable[[Line], object]) -> None:
    edit_results(folder, lambda results: change(results["results"]["gsm8k"]))
    result = judged(folder)
    assert codes(result) == {Code.RESULTS_MISMATCH}
    assert result.verdict is Verdict.INVALID


@pytest.mark.parametrize("results", [{}, {"gsm8k": None}, [], "x"])
def test_results_of_another_task(folder: Path, results: object) -> None:
    edit_results(folder, lambda whole: whole.update(results=results))
    assert codes(judged(folder)) == {Code.RESULTS_MISMATCH}


def test_scores_raised_in_samples_and_results_alike(folder: Path) -> None:
    def raise_scores(lines: list[Line]) -> None:
        for line in lines:
            line["exact_match"] = 1.0

    edit_samples(folder, raise_scores)
    edit_results(folder, lambda r: r["results"]["gsm8k"].update({"exact_match,strict-match": 1.0}))
    assert {Code.SCORE_MISMATCH, Code.RESULTS_MISMATCH} <= codes(judged(folder))


# --- the answers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", " \n", None, "None", "LMEVAL_MODEL_NONE_ANSWER_PLACEHOLDER"])
def test_an_empty_or_null_answer(tmp_path: Path, text: str | None) -> None:
    result = judged(write_evaluation(tmp_path, DOCS, answers={5: text}))
    assert codes(result) == {Code.EMPTY_RESPONSE}
    assert places(result, Code.EMPTY_RESPONSE) == ["doc_id=5"]
    assert result.verdict is Verdict.INVALID
    assert result.metrics["empty"] == 1


def test_answers_without_an_end_and_loops_are_counted_not_judged(tmp_path: Path) -> None:
    folder = write_evaluation(
        tmp_path, DOCS, answers={1: " It is 1002.", 2: " I cannot say.", 3: " so and so" * 40}
    )
    result = judged(folder)
    assert result.verdict is Verdict.REPORTED
    assert places(result, Code.NO_FINAL_ANSWER) == ["doc_id=1", "doc_id=2", "doc_id=3"]
    assert places(result, Code.DEGENERATE) == ["doc_id=3"]
    assert result.metrics["no_final_answer"] == 3
    assert result.metrics["degenerate"] == 1
    assert "its last number is 1002" in result.findings[0].message


def test_every_document_without_an_answer_is_told(tmp_path: Path) -> None:
    folder = write_evaluation(tmp_path, problems(50), answers=dict.fromkeys(range(50), " I do not know."))
    result = judged(folder)
    assert places(result, Code.NO_FINAL_ANSWER) == [f"doc_id={number}" for number in range(50)]
    assert result.metrics["no_final_answer"] == 50
    kept = listed(result.findings, "baseline")
    assert len(kept) == LISTED + 1
    assert kept[-1].message.startswith("50 findings of this kind in all")
    assert kept[-1].where == "baseline"


# --- the recorder's requests -----------------------------------------------------------------------------


def test_sound_requests(lane: Path) -> None:
    result = judged_lane(lane)
    assert result.verdict is Verdict.REPORTED
    assert result.findings == []
    assert result.metrics["natural_stop_rate"] == 1.0
    assert result.metrics["requests"] == N
    assert result.metrics["failed_requests"] == 0
    assert result.metrics["retried_requests"] == 0
    assert result.metrics["truncated"] == 0
    assert (result.metrics["prompt_tokens"], result.metrics["completion_tokens"]) == (100 * N, 10 * N)


def edit_requests(lane: Path, change: Callable[[list[Line]], object]) -> None:
    edit_lines(lane / "gsm8k" / "requests.jsonl", change)


@pytest.mark.parametrize(
    "fault",
    [
        {"status": 500, "error": "HTTP 500: boom", "text_sha256": None, "text_empty": None},
        {"status": None, "error": "connection reset", "finish_reason": None},
        {"finish_reason": "abort"},
        {"finish_reason": "error"},
        {"status": 0},
    ],
)
def test_a_failed_request(lane: Path, fault: Line) -> None:
    edit_requests(lane, lambda lines: lines[4].update(fault))
    result = judged_lane(lane)
    assert places(result, Code.REQUEST_FAILED) == ["doc_id=4 requests.jsonl:5"]
    assert codes(result) == {Code.REQUEST_FAILED}
    why = str(fault.get("error") or fault.get("finish_reason") or "")
    assert any(why in item.message for item in result.findings if item.code is Code.REQUEST_FAILED)
    assert result.metrics["failed_requests"] == 1
    assert result.verdict is Verdict.INVALID


def test_a_failure_hidden_by_a_retry(lane: Path) -> None:
    def retry(lines: list[Line]) -> None:
        lines.append({**lines[4], "attempt": 2})
        lines[4].update(status=500, error="boom")

    edit_requests(lane, retry)
    result = judged_lane(lane)
    assert codes(result) == {Code.REQUEST_COUNT, Code.REQUEST_FAILED, Code.REQUEST_RETRIED}
    assert places(result, Code.REQUEST_RETRIED) == [f"doc_id=4 requests.jsonl:{N + 1}"]
    assert "hidden retries" in result.findings[0].message
    assert result.metrics["retried_requests"] == 1


def test_an_answer_from_a_cache(lane: Path) -> None:
    edit_requests(lane, lambda lines: lines.pop(4))
    result = judged_lane(lane)
    assert codes(result) == {Code.REQUEST_COUNT}
    assert places(result, Code.REQUEST_COUNT) == ["", "doc_id=4"]


def test_one_prompt_in_place_of_another(lane: Path) -> None:
    edit_requests(lane, lambda lines: lines[4].update(prompt_sha256="f" * 64))
    assert places(judged_lane(lane), Code.REQUEST_COUNT) == ["doc_id=4", "requests.jsonl:5"]


def test_cut_answers_are_counted_and_listed(lane: Path) -> None:
    edit_requests(lane, lambda lines: [line.update(finish_reason="length") for line in lines[:3]])
    result = judged_lane(lane)
    assert result.verdict is Verdict.REPORTED
    assert [where.split()[0] for where in places(result, Code.TRUNCATED)] == [
        "doc_id=0",
        "doc_id=1",
        "doc_id=2",
    ]
    assert result.metrics["truncated"] == 3
    assert result.metrics["natural_stop_rate"] == 9 / 12


@pytest.mark.parametrize(
    ("own", "total", "cut", "found"),
    [
        (64, None, 1, 1),  # the server says of this very answer that it is short
        (512, None, 1, 0),
        (None, 64, 2, 1),  # the first answer alone, or a sum that is too small for even one
        (None, 512, 2, 0),
        (None, 700, 2, 1),  # a sum, too small for two answers at their limit
        (None, 1100, 2, 0),
    ],
)
def test_a_silently_lowered_limit(
    lane: Path, own: int | None, total: int | None, cut: int, found: int
) -> None:
    def lowered(lines: list[Line]) -> None:
        for index, line in enumerate(lines[:4]):
            usage = {"completion_tokens": total} if index == 0 and total is not None else None
            line.update(http_id=0, index=index, max_tokens=512, completion_tokens=own, usage=usage)
        for line in lines[:cut]:
            line.update(finish_reason="length")

    edit_requests(lane, lowered)
    result = judged_lane(lane)
    assert len(places(result, Code.CUT_SHORT)) == found
    assert (result.verdict is Verdict.INVALID) == bool(found)


def test_a_cut_answer_without_any_count_is_missing_evidence(lane: Path) -> None:
    def silent(lines: list[Line]) -> None:
        lines[0].update(finish_reason="length", http_id=0, max_tokens=512, completion_tokens=None, usage=None)

    edit_requests(lane, silent)
    assert codes(judged_lane(lane)) >= {Code.EVIDENCE_MISSING, Code.TRUNCATED}


def test_an_unknown_finish_is_missing_evidence(lane: Path) -> None:
    edit_requests(lane, lambda lines: lines[0].update(finish_reason=None))
    assert codes(judged_lane(lane)) == {Code.EVIDENCE_MISSING}


def test_an_empty_answer_that_the_evaluator_replaced(lane: Path) -> None:
    """LMEVAL_MODEL_NONE_ANSWER_PLACEHOLDER can be any text: the recorder knows better."""
    edit_requests(lane, lambda lines: lines[4].update(text_sha256=None, text_empty=True))
    assert places(judged_lane(lane), Code.EMPTY_RESPONSE) == ["doc_id=4"]


def test_an_empty_answer_is_told_once(tmp_path: Path) -> None:
    lane = write_lane(tmp_path / "lane", DOCS, answers={4: ""})
    assert places(judged_lane(lane), Code.EMPTY_RESPONSE) == ["doc_id=4"]


def test_answers_swapped_with_all_scores_to_match(lane: Path) -> None:
    def swap(lines: list[Line]) -> None:
        for first in (0, N):
            one, other = lines[first], lines[first + 1]
            one["resps"], other["resps"] = other["resps"], one["resps"]
            lines[first : first + 2] = [finished(one), finished(other)]

    edit_samples(lane, swap)
    result = judged_lane(lane)
    assert places(result, Code.HASH_MISMATCH) == ["doc_id=0", "doc_id=1"]


def test_two_documents_with_one_prompt_are_two_requests(tmp_path: Path) -> None:
    twins = [DOCS[0], DOCS[0], *DOCS[1:]]
    lane = write_lane(tmp_path / "lane", twins)
    result = audit(load_samples(lane), requests=lane / "gsm8k" / "requests.jsonl")
    assert result.findings == []


def test_an_empty_recorder_file_means_that_nothing_was_asked(lane: Path) -> None:
    (lane / "gsm8k" / "requests.jsonl").write_bytes(b"")
    result = judged_lane(lane)
    assert places(result, Code.REQUEST_COUNT)[:2] == ["", "doc_id=0"]
    assert result.verdict is Verdict.INVALID


def test_the_recorder_is_missing(lane: Path) -> None:
    (lane / "gsm8k" / "requests.jsonl").unlink()
    result = judged_lane(lane)
    assert codes(result) == {Code.EVIDENCE_MISSING}
    assert result.verdict is Verdict.INVALID


@pytest.mark.parametrize(
    "broken",
    [b"{", b"[]", b"\xff", b"{}", b"[" * 100_000, b'{"prompt_sha256": 1}', b""],
    ids=lambda line: repr(line[:12]),
)
def test_a_broken_line_of_the_recorder(lane: Path, broken: bytes) -> None:
    path = lane / "gsm8k" / "requests.jsonl"
    path.write_bytes(path.read_bytes() + broken + b"\n")
    assert places(judged_lane(lane), Code.EVIDENCE_MISSING) == [f"requests.jsonl:{N + 1}"]


@pytest.mark.parametrize(
    "key", ["status", "finish_reason", "error", "attempt", "prompt_sha256", "text_empty"]
)
def test_a_fact_that_the_recorder_left_out(lane: Path, key: str) -> None:
    edit_requests(lane, lambda lines: lines[0].pop(key))
    assert Code.EVIDENCE_MISSING in codes(judged_lane(lane))


def test_unknown_token_counts_are_not_a_smaller_total(lane: Path) -> None:
    edit_requests(lane, lambda lines: lines[0].update(prompt_tokens=None))
    result = judged_lane(lane)
    assert result.metrics["prompt_tokens"] is None
    assert result.metrics["completion_tokens"] == 10 * N


def test_a_lane_of_wrong_answers_is_sound(tmp_path: Path) -> None:
    everything = set(range(N))
    result = judged_lane(write_lane(tmp_path / "lane", DOCS, wrong=everything))
    assert result.verdict is Verdict.REPORTED
    assert result.metrics["accuracy.strict-match"] == 0
