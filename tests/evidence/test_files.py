"""Evidence is whole or absent, and readable by whoever may read this user's files."""

import os
from pathlib import Path

import pytest

from harness.errors import HarnessError, Interrupted
from harness.evidence.files import files_below, read_bytes, write_atomic, write_json
from harness.findings import Code


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_the_umask_decides_who_may_read(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        write_json(tmp_path / "deep" / "x.json", {"a": "é"})
        write_json(tmp_path / "deep" / "x.json", {"a": "ü"})
    finally:
        os.umask(before)
    assert (tmp_path / "deep" / "x.json").stat().st_mode & 0o777 == mode
    assert (tmp_path / "deep" / "x.json").read_text(encoding="utf-8") == '{\n  "a": "ü"\n}\n'


@pytest.mark.parametrize("error", [Interrupted("Ctrl-C"), KeyboardInterrupt(), OSError(28, "full")])
def test_no_temporary_file_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    (tmp_path / "x").write_text("old")

    def fails(descriptor: int) -> None:
        raise error

    monkeypatch.setattr("harness.evidence.files.os.fsync", fails)
    with pytest.raises((type(error), HarnessError)) as caught:
        write_atomic(tmp_path / "x", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x").read_text() == "old"
    if isinstance(error, OSError):
        assert isinstance(caught.value, HarnessError)
        assert caught.value.code is Code.DISK_FULL


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x\r\n")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "zero").symlink_to("/dev/zero")
    assert read_bytes(tmp_path / "file") == read_bytes(tmp_path / "link") == b"x\r\n"
    for name in ("fifo", "zero", "", "none"):
        with pytest.raises(OSError, match=r"not a regular file|No such file|Is a directory"):
            read_bytes(tmp_path / name)


def test_a_tree_is_walked_as_far_as_it_is_small(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "x").touch()
    (tmp_path / "a" / "y").touch()
    (tmp_path / "a" / "again").symlink_to(tmp_path, target_is_directory=True)
    os.mkfifo(tmp_path / "a" / "fifo")
    assert files_below(tmp_path, 6) == [tmp_path / "a" / "b" / "x", tmp_path / "a" / "y"]
    assert files_below(tmp_path, 5) is None
    assert files_below(tmp_path / "none", 5) == []
