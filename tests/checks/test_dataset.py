"""Which documents are asked, and what is said when they are not there."""

import hashlib
import json
from pathlib import Path

import pytest

from harness.checks import dataset
from harness.checks.gsm8k import Gsm8k, Gsm8kParams
from harness.cli.doctor import render_doctor
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


def _snapshot(home: Path, revision: str, *questions: object) -> Path:
    from pyarrow import parquet, table  # type: ignore[import-untyped]

    folder = home / "hub" / "datasets--openai--gsm8k" / "snapshots" / revision / "main"
    folder.mkdir(parents=True)
    rows = table({"question": list(questions), "answer": ["#### 1"] * len(questions)})
    for split in dataset.SPLITS:
        parquet.write_table(rows, folder / f"{split}-00000-of-00001.parquet")
    return folder


def test_hub_cache_is_digested_document_by_document(tmp_path: Path) -> None:
    _snapshot(tmp_path, "abc", "一", "two")
    other = _snapshot(tmp_path, "def", "another revision")
    (other.parents[2] / "refs").mkdir()
    (other.parents[2] / "refs" / "main").write_text("abc", encoding="utf-8")
    environ = {"HF_HOME": str(tmp_path)}
    source = dataset.resolve(None, environ)
    assert source.folder is None
    made = dataset.manifest(source, environ)
    assert made.docs == 2
    assert made.questions == [hashlib.sha256(text.encode()).hexdigest() for text in ("一", "two")]
    assert set(made.sha256) == {f"main/{split}-00000-of-00001.parquet" for split in dataset.SPLITS}


def test_hub_cache_without_the_files_proves_nothing(tmp_path: Path) -> None:
    folder = _snapshot(tmp_path, "abc", "q")
    environ = {"HF_HOME": str(tmp_path)}
    source = dataset.resolve(None, environ)
    (folder / "test-00000-of-00001.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(HarnessError, match="cannot read"):
        dataset.manifest(source, environ)
    (folder / "test-00000-of-00001.parquet").unlink()
    with pytest.raises(HarnessError, match="lacks"):
        dataset.manifest(source, environ)


@pytest.mark.parametrize("column", [[None], [3]])
def test_hub_cache_with_odd_questions(tmp_path: Path, column: list[object]) -> None:
    _snapshot(tmp_path, "abc", *column)
    environ = {"HF_HOME": str(tmp_path)}
    with pytest.raises(HarnessError, match="not text"):
        dataset.manifest(dataset.resolve(None, environ), environ)


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "sets").mkdir()
    _folder(tmp_path / "sets", "q")
    for source in (
        dataset.resolve("~/sets", {}),
        dataset.resolve(None, {"HARNESS_GSM8K_DIR": "~/sets"}),
    ):
        assert source.folder == (tmp_path / "sets").resolve()
    with pytest.raises(ConfigError, match="lacks"):
        dataset.resolve("~no-such-user/x", {})


def _spoil(folder: Path, fault: str) -> None:
    file = folder / "test.jsonl"
    if fault == "latin-1":
        file.write_bytes('{"question": "Zoë", "answer": "1"}\n'.encode("latin-1"))
    elif fault == "empty":
        file.write_text("\n", encoding="utf-8")
    elif fault == "deep":
        file.write_text("[" * 100_000, encoding="utf-8")
    else:  # as on a disk that fails while it is read
        file.unlink()
        file.symlink_to("/proc/self/mem")


@pytest.mark.parametrize("fault", ["latin-1", "empty", "deep", "unreadable"])
def test_data_set_that_cannot_be_read_is_found_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    _folder(tmp_path, "q")
    _spoil(tmp_path, fault)
    source = dataset.DataSource("x", tmp_path)
    with pytest.raises(HarnessError, match=r"test.jsonl"):
        dataset.manifest(source)
    problems = Gsm8k().problems(Gsm8kParams(dataset=str(tmp_path)))
    assert any("test.jsonl" in problem for problem in problems)
    monkeypatch.setenv("HARNESS_GSM8K_DIR", str(tmp_path))
    assert "test.jsonl" in render_doctor()[0].replace("\n", "")


def test_few_shot_examples_are_read_too(tmp_path: Path) -> None:
    _folder(tmp_path, "q")
    (tmp_path / "train.jsonl").write_text("{", encoding="utf-8")
    with pytest.raises(HarnessError, match=r"train.jsonl:1"):
        dataset.manifest(dataset.DataSource("x", tmp_path))


def test_lone_surrogate_in_a_question_has_a_digest(tmp_path: Path) -> None:
    assert dataset.manifest(dataset.DataSource("x", _folder(tmp_path, "\ud800"))).docs == 1


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
