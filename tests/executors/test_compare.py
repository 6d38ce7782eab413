"""Two directories compared: plain lm-eval output, lane directories, and both at once."""

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.errors import ConfigError
from harness.evidence.digests import FILE_NAME as DIGESTS
from harness.evidence.digests import write_digests
from harness.evidence.record import LaneRecord, PairResult, RunRecord
from harness.executors import compare as compared
from harness.findings import Code, Finding
from harness.scenario.model import Pair
from harness.verdict import Verdict
from tests.accuracy.builders import (
    Line,
    edit_lines,
    edit_results,
    edit_samples,
    problems,
    read_lines,
    results_file,
    samples_file,
    write_evaluation,
    write_lane,
)

N = 40
DOCS = problems(N)


@pytest.fixture
def a(tmp_path: Path) -> Path:
    return write_evaluation(tmp_path / "a", DOCS, wrong={0, 1})


@pytest.fixture
def b(tmp_path: Path) -> Path:
    return write_evaluation(tmp_path / "b", DOCS, wrong={1, 2}, port=9107)


def compare(one: Path, other: Path, **more: Any) -> PairResult:
    """Of lanes whose evidence, such as it is, was fixed by digests as they ended."""
    for given in (one, other):
        folder = given.parent if given.name == "gsm8k" else given
        if (folder / "gsm8k").is_dir() and not (folder / DIGESTS).exists():
            write_digests(folder)
    return compared.compare(one, other, **more)


def codes(result: PairResult) -> set[Code]:
    return {finding.code for finding in result.findings}


def places(result: PairResult, code: Code) -> list[str]:
    return [finding.where for finding in result.findings if finding.code is code]


# --- plain lm-eval output --------------------------------------------------------------------------------


def test_two_sound_outputs_are_reported(a: Path, b: Path) -> None:
    result = compare(a, b, expect_docs=N)
    assert result.verdict is Verdict.REPORTED
    assert codes(result) == {Code.PARITY_UNKNOWN}
    stats = result.filters["strict-match"]
    assert (stats.only_baseline, stats.only_candidate, stats.both_wrong_different) == (1, 1, 0)


def test_the_json_contract(a: Path, b: Path) -> None:
    whole = json.loads(compare(a, b).model_dump_json())
    assert list(whole) == ["verdict", "findings", "filters"]
    assert list(whole["findings"][0]) == ["code", "message", "where"]
    assert list(whole["filters"]) == ["strict-match", "flexible-extract"]
    assert list(whole["filters"]["strict-match"]) == [
        "n",
        "correct_baseline",
        "correct_candidate",
        "accuracy_baseline",
        "accuracy_candidate",
        "delta_pp",
        "only_baseline",
        "only_candidate",
        "both_wrong_different",
        "mcnemar_p",
        "ci_low_pp",
        "ci_high_pp",
    ]


def twin(folder: Path) -> Path:
    """The same evaluation in another place; a directory is not compared with itself."""
    return Path(shutil.copytree(folder, folder.with_name(f"{folder.name}-twin"), dirs_exist_ok=True))


def test_directory_is_not_compared_with_itself(a: Path) -> None:
    with pytest.raises(ConfigError, match="nothing to compare") as caught:
        compare(a, a, max_drop_pp=30)
    assert "same directory" in str(caught.value)


def test_pass_is_out_of_reach_and_fail_is_not(tmp_path: Path, a: Path) -> None:
    assert compare(a, twin(a), max_drop_pp=30).verdict is Verdict.REPORTED
    worse = write_evaluation(tmp_path / "worse", DOCS, wrong=set(range(30)))
    result = compare(a, worse, max_drop_pp=5)
    assert result.verdict is Verdict.FAIL
    assert places(result, Code.MARGIN_EXCEEDED) == ["filter=strict-match", "filter=flexible-extract"]
    assert compare(a, twin(a), max_drop_pp=0.5).verdict is Verdict.INCONCLUSIVE


def relocate(results: Line) -> None:
    """Everything that says where and when."""
    for place in (results["config"]["model_args"], results["configs"]["gsm8k"]["metadata"]):
        place["base_url"] = "http://10.0.0.7:31000/v1/completions"
    results["configs"]["gsm8k"]["metadata"]["config_source"] = "/elsewhere/gsm8k.yaml"
    results["configs"]["gsm8k"]["dataset_kwargs"] = {
        "data_files": {"train": "/mnt/sets/train.jsonl", "test": "/mnt/sets/test.jsonl"}
    }
    results.update(
        date=1.0,
        total_evaluation_time_seconds="1",
        git_hash="abc1234",
        upper_git_hash="abc",
        pretty_env_info="another machine",
        transformers_version="5.0",
    )


def test_run_locations_are_no_differences(a: Path, b: Path) -> None:
    edit_results(b, relocate)
    assert codes(compare(a, b)) == {Code.PARITY_UNKNOWN}


def test_a_model_path_counts_by_its_name(a: Path, b: Path) -> None:
    def at(path: str) -> Callable[[Line], object]:
        def change(results: Line) -> None:
            results["config"]["model_args"]["model"] = path
            results["model_name"] = path

        return change

    edit_results(a, at("/models/glm-5.3"))
    edit_results(b, at("/mnt/other/disk/glm-5.3"))
    assert codes(compare(a, b)) == {Code.PARITY_UNKNOWN}
    edit_results(b, at("/models/glm-5.2"))
    result = compare(a, b)
    assert places(result, Code.PARITY) == ["config.model_args.model", "model_name"]


def test_the_owner_of_a_data_set_is_no_place(a: Path, b: Path) -> None:
    edit_results(a, lambda r: config(r).update(dataset_path="openai/gsm8k"))
    edit_results(b, lambda r: config(r).update(dataset_path="somebody/gsm8k"))
    assert places(compare(a, b), Code.PARITY) == ["configs.dataset_path"]


def test_a_model_argument_is_told_once(a: Path, b: Path) -> None:
    """The evaluator copies the model's arguments into the task's metadata."""

    def change(results: Line) -> None:
        for place in (results["config"]["model_args"], config(results)["metadata"]):
            place["num_concurrent"] = 99

    edit_results(b, change)
    assert places(compare(a, b), Code.PARITY) == ["config.model_args.num_concurrent"]
    edit_results(b, lambda r: config(r)["metadata"].update(version=4.0))
    assert "configs.metadata.version" in places(compare(a, b), Code.PARITY)


@pytest.mark.parametrize("odd", [None, [], 3, ""])
def test_odd_results_differ_and_do_not_raise(a: Path, b: Path, odd: object) -> None:
    for key in ("model_args", "limit"):
        edit_results(b, lambda r, key=key: r["config"].update({key: odd}))  # type: ignore[misc]
        assert compare(a, b).verdict is Verdict.INVALID
    edit_results(b, lambda r: r.update(config=odd, configs=odd, versions=odd, results=odd))
    assert compare(a, b).verdict is Verdict.INVALID


def test_a_broken_results_file_is_one_fault(a: Path, b: Path) -> None:
    results_file(b).write_bytes(b"{")
    result = compare(a, b)
    assert codes(result) == {Code.SAMPLES_UNREADABLE, Code.PARITY_UNKNOWN}
    assert result.verdict is Verdict.INVALID


def test_model_args_as_text_are_those_as_an_object(a: Path, b: Path) -> None:
    def as_text(results: Line) -> None:
        args = results["config"]["model_args"]
        results["config"]["model_args"] = ",".join(f"{key}={value}" for key, value in args.items())

    edit_results(b, as_text)
    assert codes(compare(a, b)) == {Code.PARITY_UNKNOWN}


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda r: r.update(lm_eval_version="0.4.12"), "lm_eval_version"),
        (lambda r: r["task_hashes"].update(gsm8k="f" * 64), "task_hashes"),
        (lambda r: r["versions"].update(gsm8k=2.0), "versions"),
        (lambda r: r["n-shot"].update(gsm8k=8), "n-shot"),
        (lambda r: r["config"].update(random_seed=1), "config.random_seed"),
        (lambda r: r["config"].update(numpy_seed=1), "config.numpy_seed"),
        (lambda r: r["config"].update(torch_seed=1), "config.torch_seed"),
        (lambda r: r["config"].update(fewshot_seed=None), "config.fewshot_seed"),
        (lambda r: r["config"].update(model="local-chat-completions"), "config.model"),
        (lambda r: r["config"].update(batch_size="16"), "config.batch_size"),
        (lambda r: r["config"].update(gen_kwargs={"temperature": 1}), "config.gen_kwargs"),
        (lambda r: r["config"]["model_args"].update(num_concurrent=16), "config.model_args.num_concurrent"),
        (lambda r: r["config"]["model_args"].update(max_gen_toks=256), "config.model_args.max_gen_toks"),
        (lambda r: r["config"]["model_args"].pop("eos_string"), "config.model_args.eos_string"),
        (lambda r: r["config"]["model_args"].update(brand_new=1), "config.model_args.brand_new"),
        (lambda r: r.update(system_instruction="Be brief."), "system_instruction"),
        (lambda r: r.update(chat_template_sha="f"), "chat_template_sha"),
        (lambda r: config(r).update(num_fewshot=4), "configs.num_fewshot"),
        (lambda r: config(r).update(doc_to_text="Q: {{question}}"), "configs.doc_to_text"),
        (
            lambda r: config(r)["generation_kwargs"].update(temperature=0.7),
            "configs.generation_kwargs.temperature",
        ),
        (lambda r: config(r)["generation_kwargs"]["until"].append("/"), "configs.generation_kwargs.until.3"),
        (lambda r: config(r)["fewshot_config"].update(sampler="first_n"), "configs.fewshot_config.sampler"),
        (
            lambda r: config(r)["metric_list"][0].update(ignore_case=False),
            "configs.metric_list.0.ignore_case",
        ),
        (
            lambda r: config(r)["filter_list"][0]["filter"][0].update(regex_pattern="(.*)"),
            "configs.filter_list.0.filter.0.regex_pattern",
        ),
    ],
)
def test_every_condition_that_differs_is_named(
    a: Path, b: Path, change: Callable[[Line], object], where: str
) -> None:
    edit_results(b, change)
    result = compare(a, b)
    assert where in places(result, Code.PARITY) or any(
        place.startswith(f"{where}.") for place in places(result, Code.PARITY)
    )
    assert result.verdict is Verdict.INVALID


def config(results: Line) -> Line:
    task: Line = results["configs"]["gsm8k"]
    return task


def test_secrets_are_neither_compared_nor_shown(a: Path, b: Path) -> None:
    edit_results(a, lambda r: r["config"]["model_args"].update(auth_token="s3cret", header={"x": "s3cret"}))
    result = compare(a, b)
    assert codes(result) == {Code.PARITY_UNKNOWN}
    assert "s3cret" not in result.model_dump_json()


def test_findings_say_which_side(a: Path, b: Path) -> None:
    edit_samples(a, lambda lines: lines[5].update(exact_match=float("nan")))
    edit_samples(b, lambda lines: lines.pop(0))
    result = compare(a, b, expect_docs=N)
    assert places(result, Code.SCORE_MISMATCH) == ["baseline doc_id=5 filter=strict-match"]
    assert places(result, Code.MISSING_DOC) == ["candidate doc_id=0 filter=strict-match"]
    assert places(result, Code.RESULTS_MISMATCH) == [f"candidate {results_file(b).relative_to(b)}"] * 2
    assert result.verdict is Verdict.INVALID


def test_a_limit_on_both_sides_is_still_a_limit(a: Path, b: Path) -> None:
    for folder in (a, b):
        edit_results(folder, lambda r: r["config"].update(limit=N))
    assert len(places(compare(a, b), Code.LIMIT_USED)) == 2


def test_too_few_documents_on_both_sides(a: Path, b: Path) -> None:
    result = compare(a, b, expect_docs=1319)
    assert result.verdict is Verdict.INVALID
    assert len(places(result, Code.MISSING_DOC)) == 42  # 20 and a total, on each side


def test_unsound_evidence_convicts_nobody(tmp_path: Path, a: Path) -> None:
    """Empty answers count as wrong with the evaluator; that is no proof of a loss of accuracy."""
    empty = write_evaluation(tmp_path / "empty", DOCS, answers=dict.fromkeys(range(30), ""))
    result = compare(a, empty, max_drop_pp=5)
    assert result.filters["strict-match"].delta_pp < -60
    assert result.verdict is Verdict.INVALID
    assert Code.MARGIN_EXCEEDED not in codes(result)


def test_unreadable_sides_are_invalid(tmp_path: Path, a: Path) -> None:
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    for sides in ((a, nothing), (nothing, a), (nothing, twin(nothing)), (a, samples_file(a))):
        result = compare(*sides, max_drop_pp=50)
        assert result.verdict is Verdict.INVALID
        assert Code.SAMPLES_UNREADABLE in codes(result)


def test_what_does_not_exist_is_a_usage_error(tmp_path: Path, a: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist") as caught:
        compare(tmp_path / "x", tmp_path / "y")
    assert len(caught.value.problems) == 2
    for margin in (-1.0, float("nan"), 101.0):
        with pytest.raises(ConfigError, match="below 100"):
            compare(a, twin(a), max_drop_pp=margin)


def test_everything_is_written_where_wanted(tmp_path: Path, a: Path, b: Path) -> None:
    out = tmp_path / "out"
    result = compare(a, b, expect_docs=N + 30, out=out)
    assert len(read_lines(out / "disagreements.jsonl")) == 4
    missing = [line for line in read_lines(out / "findings.jsonl") if line["code"] == "MISSING_DOC"]
    assert len(missing) == 2 * 2 * 30
    assert len(places(result, Code.MISSING_DOC)) == 2 * 21


@pytest.mark.parametrize("left", ["{}", '{"config": {}}'])
def test_results_files_that_say_nothing_are_not_alike(a: Path, b: Path, left: str) -> None:
    for folder in (a, b):
        results_file(folder).write_text(left, encoding="utf-8")
    result = compare(a, b, expect_docs=N, max_drop_pp=30)
    assert result.verdict is Verdict.INVALID
    assert len(places(result, Code.SAMPLES_UNREADABLE)) >= 2


# --- lane directories ------------------------------------------------------------------------------------


def lanes(tmp_path: Path, *, wrong: set[int] | None = None, **other: str) -> tuple[Path, Path]:
    """Two lanes of one run, whose record is to be written by `declare`."""
    run = tmp_path / "run"
    baseline = write_lane(run / "bf16", DOCS)
    keys = {"flags.--kv-cache-dtype": "fp8", **other}
    return baseline, write_lane(run / "fp8", DOCS, fingerprint=keys, wrong=wrong or ())


def declare(tmp_path: Path, *may_differ: str, check: str = "gsm8k", **fp8: Any) -> None:
    """The run's record; `fp8` are fields of the second lane's."""
    params: dict[str, Any] = {"gsm8k": {}}
    record = RunRecord(
        run_id="r",
        scenario="s",
        harness_version="0",
        command=[],
        started_at="",
        lanes={
            "bf16": LaneRecord(name="bf16", status="done", check_params=params),
            "fp8": LaneRecord(**({"name": "fp8", "status": "done", "check_params": params} | fp8)),
        },
        pair_specs={
            "kv": Pair(name="kv", baseline="bf16", candidate="fp8", may_differ=may_differ, check=check)
        },
    )
    (tmp_path / "run" / "run.json").write_text(record.model_dump_json(), encoding="utf-8")


KV = "flags.--kv-cache-dtype"


def test_lanes_with_parity_can_pass(tmp_path: Path) -> None:
    baseline, candidate = lanes(tmp_path)
    declare(tmp_path, KV)
    for sides in ((baseline, candidate), (candidate, baseline)):
        result = compare(*sides, max_drop_pp=20)
        assert result.verdict is Verdict.PASS, result.findings
    assert compare(baseline, candidate).verdict is Verdict.REPORTED
    assert compare(baseline / "gsm8k", candidate, max_drop_pp=20).verdict is Verdict.PASS


def test_comparing_writes_nothing_into_a_run(tmp_path: Path) -> None:
    sides = lanes(tmp_path)
    declare(tmp_path, KV)
    for side in sides:
        write_digests(side)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    compare(*sides, max_drop_pp=20)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_difference_that_nobody_exempted(tmp_path: Path) -> None:
    sides = lanes(tmp_path)
    declare(tmp_path)
    result = compare(*sides, max_drop_pp=20)
    assert places(result, Code.PARITY) == [KV]
    assert "'auto' on the baseline, 'fp8' on the candidate" in result.findings[0].message
    assert result.verdict is Verdict.INVALID


def test_a_declaration_exempts_nothing_else(tmp_path: Path) -> None:
    sides = lanes(tmp_path, version="1.1")
    declare(tmp_path, KV)
    assert places(compare(*sides), Code.PARITY) == ["version"]


def test_a_declaration_for_another_check_exempts_nothing(tmp_path: Path) -> None:
    sides = lanes(tmp_path)
    declare(tmp_path, KV, check="cache-boundary")
    assert places(compare(*sides), Code.PARITY) == [KV]


def test_a_declaration_for_other_lanes_exempts_nothing(tmp_path: Path) -> None:
    baseline, _ = lanes(tmp_path)
    declare(tmp_path, KV)
    other = write_lane(tmp_path / "other" / "q8", DOCS, fingerprint={KV: "q8"})
    assert places(compare(baseline, other), Code.PARITY) == [KV]


def test_lanes_without_the_record_of_their_run_cannot_pass(tmp_path: Path) -> None:
    baseline, _ = lanes(tmp_path)
    result = compare(baseline, twin(baseline), max_drop_pp=20)
    assert result.verdict is Verdict.REPORTED
    assert len(places(result, Code.PARITY_UNKNOWN)) == 2


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"pair_specs": 3}'])
def test_a_broken_record_is_missing_evidence(tmp_path: Path, text: str) -> None:
    baseline, _ = lanes(tmp_path)
    (tmp_path / "run" / "run.json").write_text(text, encoding="utf-8")
    result = compare(baseline, twin(baseline), max_drop_pp=20)
    assert Code.EVIDENCE_MISSING in codes(result)
    assert result.verdict is Verdict.INVALID


def test_a_lane_that_its_run_does_not_know(tmp_path: Path) -> None:
    baseline, candidate = lanes(tmp_path)
    declare(tmp_path, KV)
    stranger = candidate.rename(candidate.with_name("stranger"))
    assert Code.EVIDENCE_MISSING in codes(compare(baseline, stranger, max_drop_pp=20))


def test_the_recorder_of_each_lane_is_held_against_its_samples(tmp_path: Path) -> None:
    baseline, candidate = lanes(tmp_path)
    declare(tmp_path, KV)
    requests = candidate / "gsm8k" / "requests.jsonl"
    edit_lines(requests, lambda lines: lines[7].update(status=500, error="boom"))
    result = compare(baseline, candidate)
    assert places(result, Code.REQUEST_FAILED) == ["candidate doc_id=7 requests.jsonl:8"]
    requests.unlink()
    result = compare(baseline, candidate)
    assert result.verdict is Verdict.INVALID
    assert places(result, Code.EVIDENCE_MISSING)[0].startswith("candidate")


def test_an_empty_recorder_file_cannot_pass(tmp_path: Path) -> None:
    sides = lanes(tmp_path)
    declare(tmp_path, KV)
    for lane in sides:
        (lane / "gsm8k" / "requests.jsonl").write_bytes(b"")
    result = compare(*sides, max_drop_pp=20)
    assert Code.REQUEST_COUNT in codes(result)
    assert result.verdict is Verdict.INVALID


def spoil(lane: Path, name: str, **change: object) -> None:
    path = lane / "gsm8k" / name
    path.write_text(json.dumps(json.loads(path.read_bytes()) | change), encoding="utf-8")


def test_an_evaluator_that_failed_with_full_samples(tmp_path: Path) -> None:
    sides = lanes(tmp_path)
    declare(tmp_path, KV)
    spoil(sides[1], "evaluator.json", exit_code=1)
    result = compare(*sides, max_drop_pp=20)
    assert {Code.EVALUATOR_FAILED, Code.LANE_UNSOUND} <= codes(result)
    assert result.verdict is Verdict.INVALID


def test_a_data_set_with_more_documents_than_the_samples(tmp_path: Path) -> None:
    sides = lanes(tmp_path)
    declare(tmp_path, KV)
    for lane in sides:
        spoil(lane, "dataset.json", docs=9999)
    result = compare(*sides, max_drop_pp=20)
    assert Code.MISSING_DOC in codes(result)
    assert result.verdict is Verdict.INVALID


@pytest.mark.parametrize("docs", [N - 1, N + 1])
def test_another_number_of_documents_than_expected(tmp_path: Path, docs: int) -> None:
    sides = lanes(tmp_path)
    declare(tmp_path, KV)
    result = compare(*sides, max_drop_pp=20, expect_docs=docs)
    assert codes(result) & {Code.MISSING_DOC, Code.UNEXPECTED_DOC}
    assert result.verdict is Verdict.INVALID
    assert compare(*sides, max_drop_pp=20, expect_docs=N).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("fields", "verdict"),
    [
        ({"findings": [Finding(code=Code.SERVER_DIED, message="gone")]}, Verdict.FAIL),
        ({"findings": [Finding(code=Code.CONFIG_REWRITTEN, message="page size")]}, Verdict.INVALID),
        ({"findings": [Finding(code=Code.RELEASE_PORT, message="port held")]}, Verdict.INFRA),
        ({"collect_findings": {"gsm8k": [Finding(code=Code.DISK_FULL, message="full")]}}, Verdict.INFRA),
        ({"check_params": {"gsm8k": {"no_such": 1}}}, Verdict.INFRA),
        ({"check_params": {"gsm8k": {}, "other": {}}}, Verdict.INVALID),
        ({"check_params": {}}, Verdict.INVALID),
        ({"status": "started"}, Verdict.INFRA),
        ({"status": "interrupted"}, Verdict.INFRA),
    ],
)
def test_what_befell_a_lane_counts(tmp_path: Path, fields: dict[str, Any], verdict: Verdict) -> None:
    sides = lanes(tmp_path)
    declare(tmp_path, KV, **fields)
    result = compare(*sides, max_drop_pp=20)
    assert result.verdict is verdict


def test_a_gate_of_the_lane_counts(tmp_path: Path) -> None:
    sides = lanes(tmp_path)
    declare(tmp_path, KV, check_params={"gsm8k": {"min_natural_stop": 0.9}})
    cut = {"finish_reason": "length"}
    for lane in sides:
        edit_lines(lane / "gsm8k" / "requests.jsonl", lambda lines: [line.update(cut) for line in lines[1:]])
    result = compare(*sides, max_drop_pp=20)
    assert places(result, Code.STOP_RATE) == ["candidate gsm8k"]
    assert result.verdict is Verdict.FAIL


@pytest.mark.parametrize("text", [None, "{", "{}"])
@pytest.mark.parametrize("recorded", [True, False])
def test_a_lane_without_its_fingerprint_is_no_plain_output(
    tmp_path: Path, a: Path, text: str | None, recorded: bool
) -> None:
    baseline, candidate = lanes(tmp_path)
    if recorded:
        declare(tmp_path, KV)
    for lane in (baseline, candidate):
        if text is None:
            (lane / "fingerprint.json").unlink()
        else:
            (lane / "fingerprint.json").write_text(text, encoding="utf-8")
    for sides in ((baseline, candidate), (candidate, a), (a, candidate), (candidate / "gsm8k", a)):
        result = compare(*sides, max_drop_pp=20)
        assert Code.EVIDENCE_MISSING in codes(result)
        assert result.verdict is Verdict.INVALID


def test_a_lane_that_left_nothing(tmp_path: Path) -> None:
    baseline, _ = lanes(tmp_path)
    declare(tmp_path, KV, status="failed", findings=[Finding(code=Code.START_TIMEOUT, message="never")])
    empty = tmp_path / "run" / "fp8"
    shutil.rmtree(empty)
    empty.mkdir()
    assert compare(baseline, empty, max_drop_pp=20).verdict is Verdict.FAIL


def test_a_lane_against_plain_output_is_plain(tmp_path: Path, a: Path) -> None:
    baseline, candidate = lanes(tmp_path)
    declare(tmp_path, KV)
    result = compare(baseline, a, max_drop_pp=50)
    assert result.verdict is Verdict.REPORTED
    assert Code.PARITY_UNKNOWN in codes(result)
    assert result.filters["strict-match"].only_baseline == 2
    spoil(candidate, "evaluator.json", exit_code=1)
    assert compare(a, candidate, max_drop_pp=50).verdict is Verdict.INVALID


def test_a_whole_run_is_not_one_evaluation(tmp_path: Path) -> None:
    run = lanes(tmp_path)[0].parent
    result = compare(run, twin(run))
    assert result.verdict is Verdict.INVALID
    assert any("evaluations lie in one directory" in finding.message for finding in result.findings)
    declare(tmp_path)
    with pytest.raises(ConfigError) as caught:
        compare(run, run)
    assert "name a lane" in caught.value.problems[0]


def test_a_folder_full_of_other_things_is_refused_at_once(tmp_path: Path, a: Path) -> None:
    began = time.monotonic()
    with pytest.raises(ConfigError) as caught:
        compare(a, Path("/"))
    assert "/ is no directory that lm-eval wrote" in str(caught.value)
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    "name",
    ["requests.j", "dataset.json", "evaluator.json", "fingerprint.json", "samples_", "results_", "run.json"],
)
@pytest.mark.parametrize("odd", ["fifo", "/dev/zero"])
def test_what_is_no_file_is_not_read(tmp_path: Path, name: str, odd: str) -> None:
    a, b = lanes(tmp_path)
    declare(tmp_path, KV)
    assert compare(a, b, max_drop_pp=20).verdict is Verdict.PASS
    victim = next(path for path in [*b.rglob("*"), b.parent / "run.json"] if path.name.startswith(name))
    victim.unlink()
    if odd == "fifo":
        os.mkfifo(victim)
    else:
        victim.symlink_to(odd)
    assert compare(a, b, max_drop_pp=20).verdict is not Verdict.PASS
