"""The lab's own evaluator command. lm-eval is run as a program, never imported."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from harness.checks.dataset import DataSource
from harness.engines.environment import SEALED
from harness.errors import HarnessError
from harness.evidence.files import write_atomic
from harness.findings import Code

TASK = "gsm8k"
PYTHON_VARIABLE = "HARNESS_LM_EVAL_PYTHON"

ASK_TIMEOUT_S = 60.0

# The lab's variables.
ENVIRONMENT: Mapping[str, str] = {**SEALED, "HF_ALLOW_CODE_EVAL": "1", "HF_DATASETS_OFFLINE": "1"}

# Finds the package without importing it, which takes seconds.
ASK = """
import json
from importlib import metadata, util
spec = util.find_spec("lm_eval")
try:
    version = metadata.version("lm_eval")
except metadata.PackageNotFoundError:
    version = "unknown"
print(json.dumps({"version": version, "places": list(spec.submodule_search_locations or []) if spec else []}))
"""


@dataclass(frozen=True, slots=True)
class Installed:
    """What an interpreter says of its lm-eval; `places` is empty where it has none."""

    version: str
    places: tuple[Path, ...]


def python() -> str:
    """The interpreter that has lm-eval: HARNESS_LM_EVAL_PYTHON, else our own."""
    return os.environ.get(PYTHON_VARIABLE) or sys.executable


def missing() -> str | None:
    """Why the evaluator cannot be run, None when it can."""
    program, chosen = python(), bool(os.environ.get(PYTHON_VARIABLE))
    if shutil.which(program) is None:
        return f"{PYTHON_VARIABLE}={program} is not a program"
    installed = ask(program)
    if installed is None:
        return f"{PYTHON_VARIABLE}={program} does not behave like a Python interpreter"
    if not installed.places:
        where = f"in {PYTHON_VARIABLE}={program}" if chosen else "here"
        other = "another interpreter" if chosen else PYTHON_VARIABLE
        return f'lm-eval is not installed {where}: pip install "lm-eval[api]", or set {other}'
    return None


def version() -> str:
    """Version of the evaluator that will run, `unknown` where it has none."""
    installed = ask(python())
    return installed.version if installed else "unknown"


@cache
def ask(program: str) -> Installed | None:
    """What this interpreter knows of lm-eval; None when it is no Python interpreter."""
    try:
        done = subprocess.run(
            [program, "-c", ASK], capture_output=True, text=True, timeout=ASK_TIMEOUT_S, cwd="/"
        )
        found = json.loads(done.stdout)
        return Installed(str(found["version"]), tuple(Path(place) for place in found["places"]))
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError):
        return None


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

    A shipped set also fixes which few-shot examples are shown. Raises HarnessError when lm-eval's task cannot
    be found.
    """
    installed = ask(python())
    places = installed.places if installed else ()
    candidates = (place / "tasks" / "gsm8k" / "gsm8k.yaml" for place in places)
    original = next((file for file in candidates if file.is_file()), None)
    if original is None:
        what = f"lm-eval's own gsm8k task file was not found where {python()} has that package"
        raise HarnessError(what, fix='reinstall it: pip install "lm-eval[api]"', code=Code.EVALUATOR_FAILED)
    files = {split: str(source.file(split)) for split in ("train", "test")}
    text = (
        f"include: {json.dumps(str(original))}\n"
        f"task: {TASK}\n"
        "dataset_path: json\n"
        "dataset_name: null\n"
        f"dataset_kwargs: {json.dumps({'data_files': files})}\n"
    )
    if source.shipped:
        # The first examples for every question, not a draw for each: prompts then share their beginning, and
        # a small machine need not compute it sixty times. The real GSM8K keeps the lab's draw.
        text += 'fewshot_config: {"sampler": "first_n"}\n'
    write_atomic(folder / f"{TASK}.yaml", text)
    return folder
