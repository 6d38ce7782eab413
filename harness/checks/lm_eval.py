"""The lab's own evaluator command. lm-eval is run as a program, never imported."""

import json
import os
import sys
from collections.abc import Mapping
from functools import cache
from importlib import metadata, util
from pathlib import Path

from harness.checks.dataset import DataSource
from harness.errors import HarnessError
from harness.evidence.files import write_atomic
from harness.findings import Code

TASK = "gsm8k"
PYTHON_VARIABLE = "HARNESS_LM_EVAL_PYTHON"

# The lab's variables: nothing is fetched during a run, and loopback never goes through a proxy.
ENVIRONMENT: Mapping[str, str] = {
    "HF_ALLOW_CODE_EVAL": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_OFFLINE": "1",
    "http_proxy": "",
    "https_proxy": "",
    "HTTP_PROXY": "",
    "HTTPS_PROXY": "",
    "all_proxy": "",
    "ALL_PROXY": "",
    "no_proxy": "127.0.0.1,localhost,::1",
    "NO_PROXY": "127.0.0.1,localhost,::1",
    "PYTHONUNBUFFERED": "1",
}


def python() -> str:
    """The interpreter that has lm-eval: HARNESS_LM_EVAL_PYTHON, else our own."""
    return os.environ.get(PYTHON_VARIABLE) or sys.executable


def missing() -> str | None:
    """Why the evaluator cannot be run, None when it can."""
    if os.environ.get(PYTHON_VARIABLE):
        if not Path(python()).is_file():
            return f"{PYTHON_VARIABLE}={python()} is not a file"
        return None
    if util.find_spec("lm_eval") is None:
        return f'lm-eval is not installed here: pip install "lm-eval[api]", or set {PYTHON_VARIABLE}'
    return None


@cache
def version() -> str:
    """Version of the evaluator in our own environment, for `doctor` and `plan`."""
    try:
        return metadata.version("lm_eval")
    except metadata.PackageNotFoundError:
        return "unknown"


def command(
    *,
    base_url: str,
    served_name: str,
    output: Path,
    concurrency: int,
    batch_size: int,
    max_tokens: int,
    retries: int,
    timeout_s: float,
    eos: str | None,
    task_folder: Path | None,
    limit: int | None,
) -> list[str]:
    """One evaluator command line; `task_folder` holds a task file that reads local data."""
    model_args = {
        "model": served_name,
        "base_url": f"{base_url}/v1/completions",
        "tokenizer_backend": None,
        "eos_string": eos,
        "num_concurrent": concurrency,
        "max_gen_toks": max_tokens,
        "max_retries": retries,
        "timeout": int(timeout_s),
    }
    argv = [python(), "-m", "lm_eval", "--model", "local-completions"]
    argv += [
        "--model_args",
        json.dumps({key: value for key, value in model_args.items() if key != "eos_string" or value}),
    ]
    argv += ["--tasks", TASK, "--batch_size", str(batch_size), "--confirm_run_unsafe_code", "--log_samples"]
    argv += ["--output_path", str(output)]
    if task_folder is not None:
        argv += ["--include_path", str(task_folder)]
    if limit is not None:
        argv += ["--limit", str(limit)]
    return argv


def write_task(source: DataSource, folder: Path) -> Path:
    """A task file that is lm-eval's own gsm8k in all but the place of its data; returns its folder.

    Raises HarnessError when lm-eval's task cannot be found.
    """
    spec = util.find_spec("lm_eval")
    roots = [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
    original = next((root / "tasks" / "gsm8k" / "gsm8k.yaml" for root in roots), None)
    if original is None or not original.is_file():
        what = "lm-eval's own gsm8k task file was not found beside the installed package"
        raise HarnessError(what, fix='reinstall it: pip install "lm-eval[api]"', code=Code.EVALUATOR_FAILED)
    files = {split: str(source.file(split)) for split in ("train", "test")}
    text = (
        f"include: {json.dumps(str(original))}\n"
        f"task: {TASK}\n"
        "dataset_path: json\n"
        "dataset_name: null\n"
        f"dataset_kwargs: {json.dumps({'data_files': files})}\n"
    )
    write_atomic(folder / f"{TASK}.yaml", text)
    return folder
