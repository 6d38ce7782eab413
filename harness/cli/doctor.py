"""`harness doctor`: what this machine has, what is missing, and how to get it."""

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness import __version__, models
from harness.checks import dataset, lm_eval
from harness.engines import ENGINES
from harness.engines.base import Launch
from harness.errors import ConfigError, HarnessError
from harness.host.gpu.nvml import NvmlSource
from harness.host.ports import PortBook
from harness.report.text import safe, table

LOW_DISK_GB = 5.0


@dataclass(frozen=True, slots=True)
class Line:
    """One row: `state` is ok, missing (optional) or broken (nothing can run without it)."""

    what: str
    state: str
    detail: str


def render_doctor() -> tuple[str, bool]:
    """The report and whether a run is possible at all."""
    lines = list(_lines())
    rows = [["what", "state", "detail"], *([line.what, line.state, safe(line.detail, 200)] for line in lines)]
    sound = not any(line.state == "broken" for line in lines)
    return "\n".join(table(rows, indent="")) + "\n", sound


def _lines() -> Iterator[Line]:
    yield Line("harness", "ok", f"{__version__}, Python {sys.version.split()[0]}, {os.cpu_count()} cores")
    yield _evaluator()
    yield from _engines()
    for name in models.MODELS:
        place = models.locate(name)
        yield Line(f"model {name}", "ok" if place else "missing", str(place or f"harness models pull {name}"))
    yield _gsm8k()
    yield _gpus()
    yield _ports()
    yield _disk()


def _evaluator() -> Line:
    reason = lm_eval.missing()
    return Line(
        "lm-eval", "broken" if reason else "ok", reason or f"{lm_eval.version()} by {lm_eval.python()}"
    )


def _engines() -> Iterator[Line]:
    for name, engine in ENGINES.items():
        launch = Launch(
            lane="doctor",
            role="normal",
            model_path=os.devnull,
            served_name="model",
            flags={},
            env={},
            ports=dict.fromkeys(engine.ports("normal", {}), 0),
            folder=Path(),
        )
        version = engine.version(launch)
        if version != "unknown":
            yield Line(f"engine {name}", "ok", f"{version} by {engine.argv(launch)[0]}")
        else:
            problems = engine.problems(launch)
            yield Line(f"engine {name}", "missing", problems[0] if problems else "not found")


def _gsm8k() -> Line:
    try:
        source = dataset.resolve(None)
        found = dataset.manifest(source)
    except (ConfigError, HarnessError) as error:
        return Line("GSM8K", "missing", f"{error.what}; {error.fix}")
    return Line("GSM8K", "ok", f"{found.docs} documents, {source.folder or 'in the hub cache'}")


def _gpus() -> Line:
    inventory = NvmlSource().inventory()
    state = "ok" if inventory.gpus else "missing"
    return Line("GPUs", state, f"{inventory.summary()} ({inventory.source})")


def _ports() -> Line:
    try:
        block = PortBook().peek(["http"])
    except HarnessError as error:
        return Line("ports", "broken", error.what)
    return Line("ports", "ok", f"next free block starts at {block['http']}")


def _disk() -> Line:
    free_gb = shutil.disk_usage(Path.cwd()).free / 1e9
    state = "ok" if free_gb > LOW_DISK_GB else "broken"
    return Line("disk", state, f"{free_gb:.0f} GB free here")
