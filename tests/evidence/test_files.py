"""Evidence is whole or absent, and readable by whoever may read this user's files."""

import os
from pathlib import Path

import pytest

from harness.errors import HarnessError, Interrupted
from harness.evidence.files import write_atomic, write_json
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
