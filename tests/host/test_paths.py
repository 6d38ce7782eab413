"""Paths that people wrote: what cannot be looked at is not there, and nothing is raised."""

from pathlib import Path

import pytest

from harness.host.paths import expanded, is_file, is_folder, is_there

TOO_LONG = Path("/tmp/" + "x" * 5000)  # `Path` raises, as it does for a folder of somebody else


def test_what_cannot_be_looked_at_is_not_there() -> None:
    with pytest.raises(OSError, match="too long"):
        TOO_LONG.exists()
    assert not is_there(TOO_LONG)
    assert not is_file(TOO_LONG)
    assert not is_folder(TOO_LONG)
    assert not is_there(Path("a\0b"))


def test_what_is_there(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    assert is_there(file)
    assert is_file(file)
    assert not is_folder(file)
    assert is_folder(tmp_path)
    assert not is_file(tmp_path)


def test_homes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert expanded("~/models") == Path("/home/me/models")
    assert expanded("/a/~") == Path("/a/~")
    with pytest.raises(RuntimeError):
        Path("~nobody-such/models").expanduser()
    assert expanded("~nobody-such/models") == Path("~nobody-such/models")
