"""Which documents are asked, and what is said when they are not there."""

import hashlib
import json
from pathlib import Path

import pytest

from harness.checks import dataset
from harness.errors import ConfigError, HarnessError


def _folder(root: Path, *questions: str) -> Path:
    for split in dataset.SPLITS:
        lines = [json.dumps({"question": question, "answer": "#### 1"}) for question in questions]
        (root / f"{split}.jsonl").write_text("\n".join(lines) + "\n\n", encoding="utf-8")
    return root


def test_folder_is_digested_document_by_document(tmp_path: Path) -> None:
    source = dataset.resolve(str(_folder(tmp_path, "一", "two")), {})
    made = dataset.manifest(source)
    assert made.docs == 2
    assert made.questions[0] == hashlib.sha256("一".encode()).hexdigest()
    assert set(made.sha256) == {"train.jsonl", "test.jsonl"}


def test_environment_names_the_real_one(tmp_path: Path) -> None:
    source = dataset.resolve(None, {"HARNESS_GSM8K_DIR": str(_folder(tmp_path, "q"))})
    assert source == dataset.DataSource("gsm8k", tmp_path.resolve())


def test_hub_cache_is_found(tmp_path: Path) -> None:
    snapshot = tmp_path / "hub" / "datasets--openai--gsm8k" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    source = dataset.resolve(None, {"HF_HOME": str(tmp_path)})
    assert source.folder is None


def test_nothing_there_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="HARNESS_GSM8K_DIR"):
        dataset.resolve(None, {"HF_HOME": str(tmp_path)})


def test_folder_without_files_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train.jsonl and test.jsonl"):
        dataset.resolve(str(tmp_path), {})


@pytest.mark.parametrize("line", ["{", "[]", '{"question": "q"}', '{"question": 1, "answer": "a"}', "null"])
def test_malformed_document_is_named_by_line(tmp_path: Path, line: str) -> None:
    source = dataset.resolve(str(_folder(tmp_path, "q")), {})
    (tmp_path / "test.jsonl").write_text('{"question": "q", "answer": "a"}\n' + line + "\n", encoding="utf-8")
    with pytest.raises(HarnessError, match=r"test.jsonl:2"):
        dataset.manifest(source)


def test_shipped_set_is_sound() -> None:
    made = dataset.manifest(dataset.resolve("arithmetic", {}))
    assert made.docs >= 40
    assert len(set(made.questions)) == made.docs
