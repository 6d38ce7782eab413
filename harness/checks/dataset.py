"""Where GSM8K-shaped data comes from, and exactly which documents it holds.

A data set is a folder with `train.jsonl` (few-shot examples) and `test.jsonl` (questions), one JSON object
per line with `question` and `answer`; or a set shipped with the harness; or the Hugging Face cache.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from harness import datasets
from harness.errors import ConfigError, HarnessError
from harness.evidence.digests import file_sha256, text_sha256
from harness.findings import Code
from harness.host.hub import hub_cache

GSM8K_TEST_DOCS = 1319
FOLDER_VARIABLE = "HARNESS_GSM8K_DIR"
SPLITS = ("train", "test")


@dataclass(frozen=True, slots=True)
class DataSource:
    """`folder` holds train.jsonl and test.jsonl; None: the evaluator reads GSM8K from the hub's cache."""

    name: str
    folder: Path | None
    shipped: bool = False

    def file(self, split: str) -> Path:
        if self.folder is None:
            raise ValueError("a data set in the hub's cache has no files of its own")
        return self.folder / f"{split}.jsonl"


class Manifest(BaseModel):
    """`dataset.json` of a check: which documents were asked, provable without the data set.

    `sha256` maps a file to its digest; `questions` are sha256 digests of each test question, in order
    (empty where only the number of documents is known: the hub's parquet files, without pyarrow here).
    """

    model_config = ConfigDict(frozen=True)

    name: str
    docs: int
    sha256: dict[str, str]
    questions: list[str] = []


def resolve(wanted: str | None, environ: Mapping[str, str] | None = None) -> DataSource:
    """The data set a scenario means. Raises ConfigError with what to do when it is not there.

    `wanted` is a folder or the name of a shipped set; None: HARNESS_GSM8K_DIR, else the hub's cache.
    """
    environ = os.environ if environ is None else environ
    if wanted and wanted in datasets.names():
        return DataSource(wanted, datasets.path(wanted), shipped=True)
    place = wanted or environ.get(FOLDER_VARIABLE)
    if place:
        folder = _checked_folder(_path(place))
        return DataSource(folder.name if wanted else "gsm8k", folder)
    if hub_snapshot(environ) is not None:
        return DataSource("gsm8k", None)
    what = "GSM8K is not on this machine: neither HARNESS_GSM8K_DIR is set, nor is it in the hub's cache"
    fix = "set HARNESS_GSM8K_DIR to a folder with train.jsonl and test.jsonl, or name one as `dataset:`"
    raise ConfigError(what, fix=fix)


def manifest(source: DataSource, environ: Mapping[str, str] | None = None) -> Manifest:
    """Digests of what will be asked. Raises HarnessError when a file cannot be read or is malformed."""
    if source.folder is None:
        return _hub_manifest(source.name, os.environ if environ is None else environ)
    digests = {f"{split}.jsonl": _digest(source.file(split)) for split in SPLITS}
    questions = {split: _questions(source.file(split)) for split in SPLITS}
    return Manifest(
        name=source.name, docs=len(questions["test"]), sha256=digests, questions=questions["test"]
    )


def documents(file: Path) -> Iterator[dict[str, str]]:
    """Documents of a JSONL file; blank lines are passed over. Raises HarnessError."""
    number = 0
    try:
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                document = _parsed(line)
                if document is None:
                    what = f"{file}:{number} is not a JSON object with the texts `question` and `answer`"
                    raise _unreadable(what)
                yield document
    except OSError as error:
        raise _unreadable(f"cannot read {file}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise _unreadable(f"{file} is not UTF-8 text, after line {number}: {error.reason}") from error


def _questions(file: Path) -> list[str]:
    questions = [text_sha256(document["question"]) for document in documents(file)]
    if not questions:
        raise _unreadable(f"{file} holds no document")
    first = {digest: number for number, digest in reversed(list(enumerate(questions)))}
    for number, digest in enumerate(questions):
        if first[digest] != number:  # two equal prompts could not be told from a retried one
            raise _unreadable(f"{file}: documents {first[digest]} and {number} ask the same question")
    return questions


def _hub_manifest(name: str, environ: Mapping[str, str]) -> Manifest:
    """GSM8K as the hub's cache holds it: one file for each split of the configuration `main`."""
    snapshot = hub_snapshot(environ)
    files = {split: sorted(snapshot.glob(f"main/{split}-*.parquet")) if snapshot else [] for split in SPLITS}
    if not all(files.values()):
        what = f"the hub's cache of GSM8K ({snapshot}) lacks main/train-*.parquet or main/test-*.parquet"
        raise _unreadable(what, f"download openai/gsm8k again, or set {FOLDER_VARIABLE} to a folder of JSONL")
    digests = {f"main/{file.name}": _digest(file) for split in SPLITS for file in files[split]}
    questions = _parquet_questions(files["test"])
    docs = len(questions) if questions else GSM8K_TEST_DOCS
    return Manifest(name=name, docs=docs, sha256=digests, questions=questions)


def _parquet_questions(files: Iterable[Path]) -> list[str]:
    """Empty where pyarrow is not installed here: lm-eval may live in another environment."""
    try:
        from pyarrow import lib, parquet  # type: ignore[import-untyped]  # heavy
    except ImportError:
        return []
    questions: list[Any] = []
    for file in files:
        try:
            questions += parquet.read_table(file, columns=["question"])["question"].to_pylist()
        except (OSError, KeyError, lib.ArrowException) as error:
            raise _unreadable(f"cannot read {file}: {str(error).splitlines()[0]}") from error
    if not all(isinstance(question, str) for question in questions):
        raise _unreadable(f"some `question` in {', '.join(map(str, files))} is not text")
    return [text_sha256(question) for question in questions]


def _unreadable(what: str, fix: str = "mend the file") -> HarnessError:
    return HarnessError(what, fix=fix, code=Code.EVIDENCE_MISSING)


def _parsed(line: str) -> dict[str, str] | None:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return None
    sound = isinstance(document, dict) and all(
        isinstance(document.get(key), str) for key in ("question", "answer")
    )
    return document if sound else None


def hub_snapshot(environ: Mapping[str, str]) -> Path | None:
    """The snapshot of openai/gsm8k in the hub's cache that its branch `main` stands for (the newest where
    that is not known), None when there is none that can be read."""
    hub = hub_cache(environ)
    for name in ("datasets--openai--gsm8k", "datasets--gsm8k"):
        try:
            snapshots = sorted((hub / name / "snapshots").iterdir(), key=lambda path: path.stat().st_mtime)
            reference = hub / name / "refs" / "main"
            revision = reference.read_text(encoding="utf-8").strip() if reference.is_file() else ""
        except (OSError, UnicodeDecodeError):
            continue
        if snapshots:
            return next((found for found in snapshots if found.name == revision), snapshots[-1])
    return None


def _path(text: str) -> Path:
    """With `~` expanded where that can be done."""
    return Path(os.path.expanduser(text))  # noqa: PTH111 - Path's own raises on an unknown user


def _checked_folder(folder: Path) -> Path:
    files = [folder / f"{split}.jsonl" for split in SPLITS]
    missing = [file.name for file in files if not os.path.isfile(file)]  # noqa: PTH113 - Path's own can raise
    if missing:
        what = f"data set folder {folder} lacks {' and '.join(missing)}"
        fix = "one JSON object per line, with `question` and `answer` (which ends in `#### N`)"
        raise ConfigError(what, fix=fix)
    return folder.resolve()


def _digest(file: Path) -> str:
    try:
        return file_sha256(file)
    except OSError as error:
        raise _unreadable(f"cannot read {file}: {error.strerror or error}") from error
