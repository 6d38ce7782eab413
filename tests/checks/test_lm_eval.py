"""The lab's own command, word by word."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.checks import lm_eval
from harness.checks.dataset import DataSource
from harness.checks.gsm8k import Gsm8k, Gsm8kParams
from harness.errors import HarnessError


def _command(**more: Any) -> list[str]:
    base: dict[str, Any] = {
        "base_url": "http://127.0.0.1:8000",
        "served_name": "glm53",
        "output": Path("/out/gsm8k"),
        "concurrency": 16,
        "batch_size": 16,
        "max_tokens": 512,
        "retries": 3,
        "timeout_s": 600.0,
        "eos": "<|endoftext|>",
        "task_folder": None,
        "limit": None,
    }
    return lm_eval.command(**(base | more))


def test_defaults_give_the_labs_command() -> None:
    argv = _command()
    assert argv[1:3] == ["-m", "lm_eval"]
    assert json.loads(argv[argv.index("--model_args") + 1]) == {
        "model": "glm53",
        "base_url": "http://127.0.0.1:8000/v1/completions",
        "tokenizer_backend": None,
        "eos_string": "<|endoftext|>",
        "num_concurrent": 16,
        "max_gen_toks": 512,
        "max_retries": 3,
        "timeout": 600,
    }
    rest = [word for word in argv[3:] if not word.startswith("{")]
    assert " ".join(rest) == (
        "--model local-completions --model_args --tasks gsm8k --batch_size 16"
        " --confirm_run_unsafe_code --log_samples --output_path /out/gsm8k"
    )
    assert "--limit" not in argv


def test_parameters_default_to_the_labs() -> None:
    params = Gsm8kParams.model_validate({})
    assert (params.num_concurrent, params.batch_size, params.max_gen_toks) == (16, 16, 512)
    assert (params.max_retries, params.timeout_s, params.limit) == (3, 600, None)


def test_offline_and_proxy_variables_are_set() -> None:
    for name in ("HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_OFFLINE", "HF_ALLOW_CODE_EVAL"):
        assert lm_eval.ENVIRONMENT[name] == "1"
    assert lm_eval.ENVIRONMENT["http_proxy"] == lm_eval.ENVIRONMENT["https_proxy"] == ""
    assert lm_eval.ENVIRONMENT["NO_PROXY"] == "127.0.0.1,localhost,::1"


def test_task_differs_from_the_original_only_in_its_data(tmp_path: Path) -> None:
    folder = lm_eval.write_task(DataSource("x", tmp_path), tmp_path / "task")
    task = yaml.safe_load((folder / "gsm8k.yaml").read_text(encoding="utf-8"))
    assert set(task) == {"include", "task", "dataset_path", "dataset_name", "dataset_kwargs"}
    assert Path(task["include"]).is_file()
    assert task["dataset_kwargs"]["data_files"]["test"] == str(tmp_path / "test.jsonl")


def test_the_interpreter_that_will_run_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its version, its task file; not those of our own environment."""
    task = tmp_path / "elsewhere" / "lm_eval" / "tasks" / "gsm8k" / "gsm8k.yaml"
    task.parent.mkdir(parents=True)
    task.write_text("task: gsm8k\n")
    answer = json.dumps({"version": "0.0.1", "places": [str(task.parents[2])]})
    _choose(monkeypatch, tmp_path, f"echo '{answer}'")
    assert lm_eval.missing() is None
    assert lm_eval.version() == "0.0.1"
    folder = lm_eval.write_task(DataSource("x", tmp_path), tmp_path / "task")
    assert yaml.safe_load((folder / "gsm8k.yaml").read_text(encoding="utf-8"))["include"] == str(task)
    task.unlink()
    with pytest.raises(HarnessError, match="not found"):
        lm_eval.write_task(DataSource("x", tmp_path), tmp_path / "task")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('echo \'{"version": "unknown", "places": []}\'', "not installed in"),
        ("echo Python 3.11", "does not behave like a Python"),
        ("echo []", "does not behave like a Python"),
        ("exit 1", "does not behave like a Python"),
    ],
)
def test_an_interpreter_without_lm_eval_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str, reason: str
) -> None:
    _choose(monkeypatch, tmp_path, body)
    problems = Gsm8k().problems(Gsm8kParams.model_validate({"dataset": "arithmetic"}))
    assert any(reason in problem and "HARNESS_LM_EVAL_PYTHON" in problem for problem in problems)


def _choose(monkeypatch: pytest.MonkeyPatch, folder: Path, body: str) -> None:
    program = folder / "python"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    monkeypatch.setenv("HARNESS_LM_EVAL_PYTHON", str(program))


def test_missing_interpreter_is_a_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HARNESS_LM_EVAL_PYTHON", str(tmp_path / "none"))
    problems = Gsm8k().problems(Gsm8kParams.model_validate({"dataset": "arithmetic"}))
    assert any("HARNESS_LM_EVAL_PYTHON" in problem for problem in problems)


def test_only_a_shipped_set_has_fixed_examples(tmp_path: Path) -> None:
    """The lab's draw of examples belongs to the real GSM8K's prompts, and is left alone there."""
    for shipped in (True, False):
        folder = lm_eval.write_task(DataSource("x", tmp_path, shipped), tmp_path / str(shipped))
        task = yaml.safe_load((folder / "gsm8k.yaml").read_text(encoding="utf-8"))
        assert task.get("fewshot_config") == ({"sampler": "first_n"} if shipped else None)
