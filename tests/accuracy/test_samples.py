"""Reading lm-eval's output: the real shape, and everything that can be wrong with a file."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.accuracy.samples import SampleSet, load_samples
from harness.findings import Code
from tests.accuracy.builders import (
    REAL_OUTPUT,
    TIME,
    Line,
    edit_samples,
    problems,
    results_file,
    samples_file,
    write_evaluation,
)

LATER = "2026-11-30T12-00-00.5"


def faults(samples: SampleSet) -> list[tuple[str, str]]:
    assert all(finding.code is Code.SAMPLES_UNREADABLE for finding in samples.findings)
    return [(finding.where, finding.message) for finding in samples.findings]


def test_reads_a_real_lm_eval_output() -> None:
    samples = load_samples(REAL_OUTPUT)
    assert not samples.findings
    assert samples.task == "gsm8k"
    assert len(samples.samples) == 12
    assert {sample.filter for sample in samples.samples} == {"strict-match", "flexible-extract"}
    assert samples.results["lm_eval_version"] == "0.4.13"
    first = samples.samples[0]
    assert first.response == " About 7 – or so\u2028then\n"
    assert first.prompt.endswith("Answer:")
    assert first.target.endswith("#### 7")
    assert samples.samples_file == f"glm53/samples_gsm8k_{TIME}.jsonl"


def test_the_builder_makes_the_same_shape(tmp_path: Path) -> None:
    write_evaluation(tmp_path, problems(2))
    for find in (samples_file, results_file):
        made, real = (find(folder).read_text(encoding="utf-8") for folder in (tmp_path, REAL_OUTPUT))
        decoder = json.JSONDecoder()
        assert _shape(decoder.raw_decode(made)[0]) == _shape(decoder.raw_decode(real)[0])


def _shape(value: object) -> object:
    if isinstance(value, dict):
        return {key: _shape(inner) for key, inner in value.items()}
    return type(value).__name__


def test_nothing_there(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing", Path(__file__)):
        assert "no lm-eval output" in faults(load_samples(folder))[0][1]


def test_results_without_samples(tmp_path: Path) -> None:
    samples_file(write_evaluation(tmp_path, problems(2))).unlink()
    samples = load_samples(tmp_path)
    assert not samples.samples
    assert "--log_samples" in faults(samples)[0][1]


def test_samples_without_results_are_read_and_told(tmp_path: Path) -> None:
    results_file(write_evaluation(tmp_path, problems(2))).unlink()
    samples = load_samples(tmp_path)
    assert len(samples.samples) == 4
    assert "did not end" in faults(samples)[0][1]


def test_samples_of_another_time_are_not_taken(tmp_path: Path) -> None:
    path = samples_file(write_evaluation(tmp_path, problems(2)))
    path.rename(path.with_name(f"samples_gsm8k_{LATER}.jsonl"))
    samples = load_samples(tmp_path)
    assert not samples.samples
    assert any("same time" in message for _, message in faults(samples))


def test_of_several_evaluations_the_newest_is_read_and_told(tmp_path: Path) -> None:
    write_evaluation(tmp_path / "z", problems(2))
    write_evaluation(tmp_path / "a", problems(3), time=LATER)
    samples = load_samples(tmp_path)
    assert len(samples.samples) == 6
    assert LATER in samples.results_file
    assert LATER in samples.samples_file
    [(where, message)] = faults(samples)
    assert LATER in where
    assert TIME in message


def test_a_time_without_a_fraction_is_a_time(tmp_path: Path) -> None:
    write_evaluation(tmp_path, problems(2), time="2026-11-30T12-00-00")
    samples = load_samples(tmp_path)
    assert len(samples.samples) == 4
    assert not samples.findings


def test_the_task_is_gsm8k_or_the_only_one_or_the_wanted_one(tmp_path: Path) -> None:
    write_evaluation(tmp_path, problems(2), task="word_problems_v2")
    assert load_samples(tmp_path).task == "word_problems_v2"
    path = samples_file(tmp_path)
    path.with_name(f"samples_gsm8k_{TIME}.jsonl").write_bytes(path.read_bytes())
    assert load_samples(tmp_path).task == "gsm8k"
    assert load_samples(tmp_path, task="word_problems_v2").task == "word_problems_v2"
    assert "are wanted" in faults(load_samples(tmp_path, task="mmlu"))[0][1]
    path.with_name(f"samples_gsm8k_{TIME}.jsonl").rename(path.with_name(f"samples_other_{TIME}.jsonl"))
    assert "there are those of other, word_problems_v2" in faults(load_samples(tmp_path))[0][1]


BROKEN_LINES = [
    b'{"doc_id": 1, "doc":',
    b"null",
    b"[]",
    b"17",
    b"\xff\xfe\x00",
    b"\x00" * 50,
    b"[" * 100_000,
    b'{"doc_id": ' + b"9" * 5000 + b"}",
    b"{}",
]


@pytest.mark.parametrize("broken", BROKEN_LINES, ids=lambda line: repr(line[:12]))
def test_a_broken_line_is_a_finding_with_its_number(tmp_path: Path, broken: bytes) -> None:
    path = samples_file(write_evaluation(tmp_path, problems(2)))
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([lines[0], broken, *lines[1:]]))
    samples = load_samples(tmp_path)
    assert len(samples.samples) == 4
    [(where, _)] = faults(samples)
    assert where == f"glm53/{path.name}:2"


def test_a_file_cut_in_the_middle_says_so(tmp_path: Path) -> None:
    path = samples_file(write_evaluation(tmp_path, problems(2)))
    path.write_bytes(path.read_bytes()[:-100])
    [(where, message)] = faults(load_samples(tmp_path))
    assert where.endswith(":4")
    assert "cut here" in message


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("doc_id", "1", "doc_id"),
        ("doc_id", True, "doc_id"),
        ("doc_id", 1.0, "doc_id"),
        ("doc", "text", "doc"),
        ("exact_match", "1.0", "exact_match"),
        ("exact_match", None, "exact_match"),
        ("exact_match", [1], "exact_match"),
        ("filter", None, "filter"),
        ("target", 18, "target"),
        ("prompt_hash", None, "prompt_hash"),
        ("resps", [[18]], "resps"),
        ("resps", {"text": "x"}, "resps"),
        ("filtered_resps", [{}], "filtered_resps"),
        ("arguments", {}, "prompt"),
        ("arguments", {"gen_args_0": {"arg_0": None}}, "prompt"),
        ("arguments", [], "prompt"),
    ],
)
def test_a_value_of_the_wrong_kind(tmp_path: Path, key: str, value: object, told: str) -> None:
    write_evaluation(tmp_path, problems(2))
    edit_samples(tmp_path, lambda lines: lines[2].update({key: value}))
    [(where, message)] = faults(load_samples(tmp_path))
    assert where.endswith(":3")
    assert told in message


@pytest.mark.parametrize("key", ["doc_id", "doc", "target", "arguments", "resps", "filter", "target_hash"])
def test_a_missing_key(tmp_path: Path, key: str) -> None:
    write_evaluation(tmp_path, problems(2))
    edit_samples(tmp_path, lambda lines: lines[0].pop(key))
    assert f"`{key}` is missing" in faults(load_samples(tmp_path))[0][1]


def test_null_answers_and_odd_scores_are_kept_for_the_audit(tmp_path: Path) -> None:
    def spoil(lines: list[Line]) -> None:
        odd: list[object] = [[[None]], None, [[]], []]
        for line, resps in zip(lines, odd, strict=False):
            line["resps"] = resps
        lines[0]["exact_match"] = float("nan")
        lines[1]["exact_match"] = float("inf")

    write_evaluation(tmp_path, problems(4))
    edit_samples(tmp_path, spoil)
    samples = load_samples(tmp_path)
    assert not samples.findings
    assert [sample.response for sample in samples.samples[:4]] == [None] * 4
    assert all(sample.score != sample.score for sample in samples.samples[:2])


def test_an_empty_file_and_one_of_blank_lines(tmp_path: Path) -> None:
    path = samples_file(write_evaluation(tmp_path, problems(2)))
    for text in (b"", b"\n\n \r\n"):
        path.write_bytes(text)
        assert faults(load_samples(tmp_path))[0][1] == "the samples file is empty"


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'"x"'], ids=lambda line: repr(line[:12])
)
def test_a_broken_results_file(tmp_path: Path, text: bytes) -> None:
    path = results_file(write_evaluation(tmp_path, problems(2)))
    path.write_bytes(text)
    samples = load_samples(tmp_path)
    assert len(samples.samples) == 4
    assert samples.results == {}
    assert faults(samples)[0][0] == f"glm53/{path.name}"


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_files_that_may_not_be_read(tmp_path: Path) -> None:
    write_evaluation(tmp_path, problems(2))
    for path in (samples_file(tmp_path), results_file(tmp_path)):
        path.chmod(0)
    assert len(faults(load_samples(tmp_path))) == 2


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["directory", "pipe"])
def test_what_is_no_file_is_not_opened(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = samples_file(write_evaluation(tmp_path, problems(2)))
    path.unlink()
    make(path)
    assert "--log_samples" in faults(load_samples(tmp_path))[0][1]


def test_older_evaluators_write_arguments_as_a_list(tmp_path: Path) -> None:
    write_evaluation(tmp_path, problems(1))
    before = load_samples(tmp_path).samples[0].prompt
    edit_samples(tmp_path, lambda lines: lines[0].update(arguments=[[before, {}]]))
    assert load_samples(tmp_path).samples[0].prompt == before


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(0, 5000), noise=st.binary(max_size=8))
def test_no_byte_anywhere_makes_it_raise(tmp_path: Path, position: int, noise: bytes) -> None:
    folder = tmp_path / "fuzz"
    if not folder.exists():
        write_evaluation(folder, problems(2))
        samples_file(folder).with_suffix(".good").write_bytes(samples_file(folder).read_bytes())
    good = samples_file(folder).with_suffix(".good").read_bytes()
    samples_file(folder).write_bytes(good[:position] + noise + good[position + len(noise) :])
    samples = load_samples(folder)
    assert len(samples.samples) + len(samples.findings) >= 3  # the noise may have joined two lines
