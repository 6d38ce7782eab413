"""Where GSM8K-shaped data comes from, and exactly which documents it holds.

A data set is a folder with `train.jsonl` (few-shot examples) and `test.jsonl` (questions), one JSON object
per line with `question` and `answer`; or a set shipped with the harness; or the Hugging Face cache.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from harness import datasets
from harness.errors import ConfigError, HarnessError
from harness.findings import Code

GSM8K_TEST_DOCS = 1319
FOLDER_VARIABLE = "HARNESS_GSM8K_DIR"
SPLITS = ("train", "test")


@dataclass(frozen=True, slots=True)
class DataSource:
    """`folder` holds train.jsonl and test.jsonl; None: the evaluator reads GSM8K from the hub's cache."""

    name: str
    folder: Path | None

    def file(self, split: str) -> Path:
        if self.folder is None:
            raise ValueError("a data set in the hub's cache has no files of its own")
        return self.folder / f"{split}.jsonl"


class Manifest(BaseModel):
    """`dataset.json` of a check: which documents were asked, provable without the data set.

    `sha256` maps a file to its digest; `questions` are sha256 digests of each test question, in order
    (empty where only the number of documents is known).
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
        return DataSource(wanted, datasets.path(wanted))
    place = wanted or environ.get(FOLDER_VARIABLE)
    if place:
        return DataSource("gsm8k" if not wanted else Path(place).name, _checked_folder(Path(place)))
    if hub_cache(environ) is not None:
        return DataSource("gsm8k", None)
    what = "GSM8K is not on this machine: neither HARNESS_GSM8K_DIR is set, nor is it in the hub's cache"
    fix = "set HARNESS_GSM8K_DIR to a folder with train.jsonl and test.jsonl, or name one as `dataset:`"
    raise ConfigError(what, fix=fix)


def manifest(source: DataSource) -> Manifest:
    """Digests of what will be asked. Raises HarnessError when a file cannot be read or is malformed."""
    if source.folder is None:
        cache = hub_cache(os.environ)
        files = sorted(cache.rglob("*.parquet")) if cache else []
        return Manifest(
            name=source.name, docs=GSM8K_TEST_DOCS, sha256={file.name: _digest(file) for file in files}
        )
    questions = [
        hashlib.sha256(doc["question"].encode()).hexdigest() for doc in documents(source.file("test"))
    ]
    digests = {f"{split}.jsonl": _digest(source.file(split)) for split in SPLITS}
    return Manifest(name=source.name, docs=len(questions), sha256=digests, questions=questions)


def documents(file: Path) -> Iterator[dict[str, str]]:
    """Documents of a JSONL file; blank lines are passed over."""
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            document = _parsed(line)
            if document is None:
                what = f"{file}:{number} is not a JSON object with the texts `question` and `answer`"
                raise HarnessError(what, fix="mend the file", code=Code.EVIDENCE_MISSING)
            yield document


def _parsed(line: str) -> dict[str, str] | None:
    try:
        document = json.loads(line)
    except ValueError:
        return None
    sound = isinstance(document, dict) and all(
        isinstance(document.get(key), str) for key in ("question", "answer")
    )
    return document if sound else None


def hub_cache(environ: Mapping[str, str]) -> Path | None:
    """The snapshot of openai/gsm8k in the hub's cache, None when it is not there."""
    home = Path(environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    hub = Path(environ.get("HF_HUB_CACHE") or home / "hub")
    for name in ("datasets--openai--gsm8k", "datasets--gsm8k"):
        snapshots = hub / name / "snapshots"
        if snapshots.is_dir() and any(snapshots.iterdir()):
            return snapshots
    return None


def _checked_folder(folder: Path) -> Path:
    missing = [f"{split}.jsonl" for split in SPLITS if not (folder / f"{split}.jsonl").is_file()]
    if missing:
        what = f"data set folder {folder} lacks {' and '.join(missing)}"
        fix = "one JSON object per line, with `question` and `answer` (which ends in `#### N`)"
        raise ConfigError(what, fix=fix)
    return folder.resolve()


def _digest(file: Path) -> str:
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
