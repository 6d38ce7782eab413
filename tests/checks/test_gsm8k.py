"""What of a GSM8K evaluation must be equal between two lanes."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.checks.gsm8k import Gsm8k, Gsm8kParams
from harness.evidence.fingerprint import Fingerprint, diff
from tests.accuracy.builders import Line, edit_results, problems, results_file, write_lane


def keys(lane: Path, **params: object) -> Fingerprint:
    return Gsm8k().fingerprint(Gsm8kParams.model_validate(params), lane / "gsm8k")


@pytest.fixture
def lane(tmp_path: Path) -> Path:
    return write_lane(tmp_path / "lane", problems(4))


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (lambda r: r.update(lm_eval_version="0.4.12"), "lm_eval.lm_eval_version"),
        (lambda r: r["task_hashes"].update(gsm8k="f"), "lm_eval.task_hashes"),
        (lambda r: r["n-shot"].update(gsm8k=8), "lm_eval.n-shot"),
        (lambda r: r["config"].update(fewshot_seed=1), "lm_eval.config.fewshot_seed"),
        (
            lambda r: r["configs"]["gsm8k"]["generation_kwargs"].update(temperature=1.0),
            "lm_eval.configs.generation_kwargs.temperature",
        ),
    ],
)
def test_how_it_was_evaluated_is_part_of_it(lane: Path, change: Callable[[Line], object], key: str) -> None:
    before = keys(lane)
    edit_results(lane, change)
    assert [item.key for item in diff(before, keys(lane))] == [key]


def test_places_and_the_served_name_are_not(lane: Path) -> None:
    def move(results: Line) -> None:
        results["config"]["model_args"].update(base_url="http://127.0.0.1:9/v1", model="other")
        results.update(model_name="other", date=2.0)

    before = keys(lane)
    edit_results(lane, move)
    assert diff(before, keys(lane)) == []


def test_the_data_decide_and_not_the_name_of_their_folder(lane: Path) -> None:
    before = keys(lane, dataset="/a/here")
    file = lane / "gsm8k" / "dataset.json"
    given = json.loads(file.read_bytes())
    file.write_text(json.dumps(given | {"name": "there"}), encoding="utf-8")
    assert diff(before, keys(lane, dataset="/b/there")) == []
    file.write_text(json.dumps(given | {"sha256": {"test.jsonl": "1" * 64}}), encoding="utf-8")
    assert [item.key for item in diff(before, keys(lane))] == ["sha256.test.jsonl"]


def test_what_cannot_be_read_is_unknown_and_not_nothing(lane: Path) -> None:
    (lane / "gsm8k" / "dataset.json").unlink()
    results_file(lane).write_text("{", encoding="utf-8")
    found = keys(lane)
    assert (found["dataset"], found["lm_eval.conditions"]) == ("unknown", "unknown")


def test_parameters_are_part_of_it(lane: Path) -> None:
    assert [item.key for item in diff(keys(lane), keys(lane, num_concurrent=3))] == ["num_concurrent"]
