"""A secret that a server has printed does not stay in the evidence, and nothing else is touched."""

import json
import os
from pathlib import Path

import pytest

from harness.errors import HarnessError
from harness.host import scrub as module
from harness.host.scrub import scrub

SECRET = "hf_sesame0000"


def test_secrets_are_masked_in_every_text_file_below(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(f"args: --hf-token {SECRET} --port 1\n你好 {SECRET}{SECRET}\n", encoding="utf-8")
    deep = tmp_path / "gsm8k" / "lm_eval" / "results.json"
    deep.parent.mkdir(parents=True)
    deep.write_text(json.dumps({"token": SECRET}))
    assert scrub(tmp_path, {SECRET}) == [deep, log]
    assert log.read_text(encoding="utf-8") == "args: --hf-token *** --port 1\n你好 ******\n"
    assert json.loads(deep.read_text()) == {"token": "***"}


@pytest.mark.parametrize("secret", ['pass"word\\1', "geheim-ü-wort", "line\ttab-x", "it's-so"])
def test_a_secret_is_known_in_json_and_in_python_too(tmp_path: Path, secret: str) -> None:
    file = tmp_path / "x"
    forms = [secret, json.dumps(secret), json.dumps(secret, ensure_ascii=False), repr(secret)]
    file.write_text("\n".join(forms), encoding="utf-8")
    scrub(tmp_path, [secret])
    assert [line.strip("'\"") for line in file.read_text(encoding="utf-8").splitlines()] == ["***"] * 4


@pytest.mark.parametrize("shift", range(12))
def test_a_secret_across_two_blocks_is_found(
    tmp_path: Path, shift: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK", 16)
    file = tmp_path / "x"
    file.write_bytes(b"." * shift + SECRET.encode() + b"!" * 9 + SECRET.encode())
    scrub(tmp_path, [SECRET, "sesame", SECRET + "-longer-than-a-block"])
    assert file.read_bytes() == b"." * shift + b"***" + b"!" * 9 + b"***"


def test_files_without_it_keep_their_inode_and_the_others_their_mode_and_time(tmp_path: Path) -> None:
    clean, dirty = tmp_path / "clean", tmp_path / "dirty"
    clean.write_text("nothing")
    dirty.write_text(SECRET)
    dirty.chmod(0o640)
    os.utime(dirty, (1000, 1000))
    inode = clean.stat().st_ino
    assert scrub(tmp_path, [SECRET]) == [dirty]
    assert clean.stat().st_ino == inode
    assert (dirty.stat().st_mode & 0o777, dirty.stat().st_mtime) == (0o640, 1000)
    assert scrub(tmp_path, [SECRET]) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clean", "dirty"]


def test_short_secrets_binaries_and_links_are_left_alone(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text(SECRET)
    folder = tmp_path / "lane"
    folder.mkdir()
    (folder / "link").symlink_to(outside)
    (folder / "core").write_bytes(b"\x7fELF\0" + SECRET.encode())
    (folder / "log").write_text("12345 abc")
    assert scrub(folder, [SECRET, "12345", "abc", ""]) == []
    assert outside.read_text() == SECRET


def test_a_file_that_cannot_be_rewritten_is_told_and_the_rest_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(SECRET)
    real = module._rewrite

    def full(file: Path, *rest: object) -> None:
        if file.name == "a":
            raise OSError(28, "No space left on device")
        real(file, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_rewrite", full)
    with pytest.raises(HarnessError, match="No space"):
        scrub(tmp_path, [SECRET])
    assert (tmp_path / "b").read_text() == "***"
