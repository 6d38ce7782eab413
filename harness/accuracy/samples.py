"""Reads what lm-eval wrote: `samples_<task>_<time>.jsonl` and the `results_<time>.json` that belongs to it.

Nothing in here judges an answer, and nothing in a file can make it raise: what cannot be read becomes a
finding with file and line.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from harness.evidence.files import files_below, open_regular, read_bytes
from harness.findings import Code, Finding

DEFAULT_TASK: Final = "gsm8k"
METRIC: Final = "exact_match"
MAX_ENTRIES: Final = 20_000  # files and folders below one output folder

_TIME = r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d(?:\.\d+)?"
_SAMPLES_NAME = re.compile(rf"samples_(?P<task>.+)_(?P<time>{_TIME})\.jsonl")
_RESULTS_NAME = re.compile(rf".+_(?P<time>{_TIME})\.json")


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One line of a samples file: one document under one filter.

    `response` is the raw answer and `filtered` what the evaluator extracted; None where it recorded null.
    `score` is the evaluator's own, and may be anything a float can be. Hashes are as recorded, unchecked.
    """

    doc_id: int
    filter: str
    doc: Mapping[str, Any]
    prompt: str
    target: str
    response: str | None
    filtered: str | None
    score: float
    doc_hash: str
    prompt_hash: str
    target_hash: str
    line: int

    @property
    def where(self) -> str:
        return f"doc_id={self.doc_id} filter={self.filter}"


@dataclass(frozen=True, kw_only=True)
class SampleSet:
    """One evaluation of one task: its samples in file order, its results file, and what was odd in reading.

    `samples_file` and `results_file` are relative to `folder`, or empty where there is none. `results` is
    the whole results file as parsed.
    """

    folder: Path
    task: str = ""
    samples: tuple[Sample, ...] = ()
    samples_file: str = ""
    results: Mapping[str, Any] = field(default_factory=dict)
    results_file: str = ""
    findings: tuple[Finding, ...] = ()


class _NotASample(Exception):
    """A line that is JSON and yet no sample; the text says why."""


@dataclass(frozen=True, slots=True)
class _Run:
    """The files of one evaluation: those that share a directory and a time."""

    parent: Path
    time: str
    results: Path | None
    samples: Mapping[str, Path]  # by task


def load_samples(folder: Path, *, task: str | None = None) -> SampleSet:
    """The one evaluation in a directory tree.

    Where there are several, the newest results file with its own samples is read, and a finding says so:
    choosing among repeats is not ours to do. `task` is needed only where several tasks were evaluated and
    none is gsm8k.
    """
    files = files_below(folder, MAX_ENTRIES)
    if files is None:
        message = f"more than {MAX_ENTRIES} files and folders are here: name the folder that lm-eval wrote"
        return SampleSet(folder=folder, findings=(_unreadable(message, str(folder)),))
    runs = _find_runs(files)
    if not runs:
        message = (
            "no lm-eval output here (samples_<task>_<time>.jsonl beside results_<time>.json): "
            "was lm-eval run with --log_samples and --output_path, and did it end well?"
        )
        return SampleSet(folder=folder, findings=(_unreadable(message, str(folder)),))
    newest = max(runs, key=lambda run: (run.results is not None, run.time, str(run.parent)))
    findings = _odd_runs(folder, runs, newest)
    chosen = _choose_task(newest, task)
    if chosen is None:
        findings.append(_no_task(folder, newest, task))
    results, results_findings = _read_results(folder, newest.results)
    samples, samples_findings = _read_samples(folder, newest.samples[chosen]) if chosen else ((), [])
    return SampleSet(
        folder=folder,
        task=chosen or task or "",
        samples=samples,
        samples_file=_relative(folder, newest.samples[chosen]) if chosen else "",
        results=results,
        results_file=_relative(folder, newest.results) if newest.results else "",
        findings=(*findings, *results_findings, *samples_findings),
    )


def _find_runs(files: list[Path]) -> list[_Run]:
    results: dict[tuple[Path, str], Path] = {}
    samples: dict[tuple[Path, str], dict[str, Path]] = {}
    for path in files:
        if match := _SAMPLES_NAME.fullmatch(path.name):
            samples.setdefault((path.parent, match["time"]), {})[match["task"]] = path
        elif match := _RESULTS_NAME.fullmatch(path.name):
            results[path.parent, match["time"]] = path
    return [_Run(*key, results.get(key), samples.get(key, {})) for key in {**results, **samples}]


def _odd_runs(folder: Path, runs: list[_Run], chosen: _Run) -> list[Finding]:
    findings = []
    if chosen.results is None:
        message = "there is no results file of the same time beside the samples: the evaluation did not end"
        findings.append(_unreadable(message, _name(folder, chosen)))
    others = [_name(folder, run) for run in runs if run is not chosen]
    if others:
        message = (
            f"{len(runs)} evaluations lie in one directory and a result is never chosen among repeats: only "
            f"{_name(folder, chosen)} was read, not {', '.join(sorted(others)[:5])}; keep one per directory"
        )
        findings.append(_unreadable(message, _name(folder, chosen)))
    return findings


def _no_task(folder: Path, run: _Run, wanted: str | None) -> Finding:
    if not run.samples:
        message = "no samples file carries the same time as the results file: was --log_samples given?"
    else:
        tasks = ", ".join(sorted(run.samples))
        message = f"samples of {wanted or 'one task'} are wanted, and there are those of {tasks}"
    return _unreadable(message, _name(folder, run))


def _choose_task(run: _Run, wanted: str | None) -> str | None:
    if wanted is not None:
        return wanted if wanted in run.samples else None
    if DEFAULT_TASK in run.samples:
        return DEFAULT_TASK
    return next(iter(run.samples)) if len(run.samples) == 1 else None


def _read_results(folder: Path, path: Path | None) -> tuple[Mapping[str, Any], list[Finding]]:
    if path is None:
        return {}, []
    where = _relative(folder, path)
    try:
        results = json.loads(read_bytes(path).decode())
    except OSError as error:
        return {}, [_unreadable(f"cannot read the results file: {error.strerror}", where)]
    except (ValueError, RecursionError) as error:
        return {}, [_unreadable(f"the results file is not JSON: {_reason(error)}", where)]
    if not isinstance(results, dict) or not results:
        return {}, [_unreadable("the results file is not a JSON object that says anything", where)]
    return results, []


def _read_samples(folder: Path, path: Path) -> tuple[tuple[Sample, ...], list[Finding]]:
    samples = []
    findings = []
    name = _relative(folder, path)
    try:
        # Bytes end lines at \n alone; text would end them at U+2028 as well.
        with open_regular(path) as lines:
            for number, line in enumerate(lines, start=1):
                if line.isspace():
                    continue
                try:
                    samples.append(_sample(json.loads(line.decode()), number))
                except (_NotASample, ValueError, OverflowError, RecursionError) as error:
                    cut = "" if line.endswith(b"\n") else " (the file is cut here)"
                    message = f"this line is not a sample: {_reason(error)}{cut}"
                    findings.append(_unreadable(message, f"{name}:{number}"))
    except OSError as error:
        findings.append(_unreadable(f"cannot read the samples file: {error.strerror}", name))
    if not samples and not findings:
        findings.append(_unreadable("the samples file is empty", name))
    return tuple(samples), findings


def _sample(raw: Any, line: int) -> Sample:
    """Raises _NotASample with what is wrong in words."""
    if not isinstance(raw, dict):
        raise _NotASample("not a JSON object")
    doc_id = _value(raw, "doc_id")
    doc = _value(raw, "doc")
    points = _value(raw, METRIC)
    if type(doc_id) is not int:
        raise _NotASample(f"doc_id is {doc_id!r}, not a number")
    if not isinstance(doc, dict):
        raise _NotASample("doc is not an object")
    if not isinstance(points, int | float):
        raise _NotASample(f"{METRIC} is {points!r}, not a number")
    return Sample(
        doc_id=doc_id,
        filter=_text(raw, "filter"),
        doc=doc,
        prompt=_prompt(_value(raw, "arguments")),
        target=_text(raw, "target"),
        response=_first_text(raw, "resps"),
        filtered=_first_text(raw, "filtered_resps"),
        score=float(points) if math.isfinite(points) else math.nan,
        doc_hash=_text(raw, "doc_hash"),
        prompt_hash=_text(raw, "prompt_hash"),
        target_hash=_text(raw, "target_hash"),
        line=line,
    )


def _value(raw: Mapping[str, Any], key: str) -> Any:
    if key not in raw:
        raise _NotASample(f"`{key}` is missing")
    return raw[key]


def _text(raw: Mapping[str, Any], key: str) -> str:
    value = _value(raw, key)
    if not isinstance(value, str):
        raise _NotASample(f"{key} is {value!r:.60}, not text")
    return value


def _first_text(raw: Mapping[str, Any], key: str) -> str | None:
    """The first answer to the first request: `[["text"]]`, `["text"]`, or null at any depth."""
    value = _value(raw, key)
    while isinstance(value, list):
        value = value[0] if value else None
    if value is not None and not isinstance(value, str):
        raise _NotASample(f"{key} holds {value!r:.60}, not text")
    return value


def _prompt(arguments: Any) -> str:
    """`{"gen_args_0": {"arg_0": prompt, ...}}`, or `[[prompt, ...]]` from older evaluators."""
    value = arguments
    if isinstance(value, dict):
        value = value.get("gen_args_0")
    if isinstance(value, dict):
        value = value.get("arg_0")
    while isinstance(value, list) and value:
        value = value[0]
    if not isinstance(value, str):
        raise _NotASample("no prompt in arguments.gen_args_0.arg_0")
    return value


def _unreadable(message: str, where: str) -> Finding:
    return Finding(code=Code.SAMPLES_UNREADABLE, message=message, where=where)


def _reason(error: Exception) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]


def _relative(folder: Path, path: Path) -> str:
    return str(path.relative_to(folder))


def _name(folder: Path, run: _Run) -> str:
    return _relative(folder, run.results or next(iter(run.samples.values())))
