"""Which program a llama.cpp lane runs, and whether it and its model are there."""

import os
import shutil
from pathlib import Path

from harness.engines.base import Launch
from harness.engines.python_engine import PythonEngine
from harness.host.paths import expanded, is_folder

PROGRAM = Path(__file__).with_name("llama_server.py")
VARIABLE = "HARNESS_LLAMACPP_BINARY"
PACKAGE = PythonEngine(
    name="llamacpp",
    distributions=("xllamacpp",),
    remedy="pip install xllamacpp",
    owned=(),
    refused={},
    fakes=(),
)


def program_of(launch: Launch) -> str | None:
    """The user's llama-server: a path, or a name on the PATH; None for the embedded one."""
    named = launch.binary or os.environ.get(VARIABLE)
    if not named:
        return None
    path = expanded(named)
    return str(path.absolute()) if len(path.parts) > 1 else named


def model_problems(path: str) -> list[str]:
    file = Path(path)
    if is_folder(file):
        return [f"{path} is a directory; llama.cpp serves one GGUF file"]
    try:
        with file.open("rb") as handle:
            magic = handle.read(4)
    except OSError as error:
        return [f"the model file {path} cannot be read: {error.strerror}"]
    except ValueError as error:  # a zero byte in the name
        return [f"the model file {path} cannot be read: {error}"]
    return [] if magic == b"GGUF" else [f"{path} is no GGUF file (a pointer, or half a download?)"]


def program_problems(launch: Launch) -> list[str]:
    program = program_of(launch)
    if program is not None:
        if shutil.which(program) is None:
            return [f"there is no program {program}; mend `binary:` or {VARIABLE}"]
        return []
    python = PACKAGE.interpreter(launch)
    if shutil.which(python) is None:
        return [f"there is no interpreter {python}; mend `python:` or {PACKAGE.variable}"]
    found = PACKAGE.installed(launch)
    other = f"name a llama-server with `binary:` or {VARIABLE}"
    if found.mute:
        return [f"{python} does not say whether it has xllamacpp: {found.mute}; mend `python:`, or {other}"]
    if not found.version:
        return [f"{python} has no xllamacpp; {PACKAGE.remedy}, or {other}"]
    return []
