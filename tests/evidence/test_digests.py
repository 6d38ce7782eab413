"""What happened to a lane's evidence after it was written is seen."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.errors import HarnessError
from harness.evidence.digests import FILE_NAME, check_digests, write_digests


@pytest.fixture
def lane(tmp_path: Path) -> Path:
    folder = tmp_path / "lane"
    (folder / "gsm8k" / "lm_eval" / "model").mkdir(parents=True)
    (folder / "server.log").write_bytes(b"ready\n")
    (folder / "gsm8k" / "requests.jsonl").write_bytes(b"{}\n" * 1000)
    (folder / "gsm8k" / "lm_eval" / "model" / "results_x.json").write_bytes(b"")
    return folder


def test_every_file_is_listed_with_its_digest(lane: Path) -> None:
    write_digests(lane)
    assert json.loads((lane / FILE_NAME).read_text(encoding="utf-8")) == {
        "gsm8k/lm_eval/model/results_x.json": hashlib.sha256().hexdigest(),
        "gsm8k/requests.jsonl": hashlib.sha256(b"{}\n" * 1000).hexdigest(),
        "server.log": hashlib.sha256(b"ready\n").hexdigest(),
    }
    assert check_digests(lane) == []


def test_what_judging_writes_is_no_evidence(lane: Path) -> None:
    (lane / "gsm8k" / "findings.jsonl").write_text("before")
    (lane / "summary.txt").write_text("before")
    write_digests(lane)
    (lane / "gsm8k" / "findings.jsonl").write_text("after")
    (lane / "summary.txt").write_text("after")
    (lane / "new.txt").write_text("came later")
    assert check_digests(lane) == []
    write_digests(lane)  # again: it does not list itself
    assert FILE_NAME not in json.loads((lane / FILE_NAME).read_text(encoding="utf-8"))


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def _fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def _link(file: Path) -> None:
    file.rename(file.with_suffix(".real"))
    file.symlink_to(file.with_suffix(".real"))


def _folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (Path.unlink, "is gone"),
        (_cut, "has changed since it was written"),
        (lambda file: file.write_bytes(b"{} \n" + b"{}\n" * 999), "has changed since it was written"),
        (_fifo, "cannot be read: it is not a regular file"),
        (_folder, "cannot be read: Is a directory"),
        (_link, "has become a link"),
    ],
)
def test_every_damage_is_told(lane: Path, damage: Callable[[Path], object], said: str) -> None:
    write_digests(lane)
    damage(lane / "gsm8k" / "requests.jsonl")
    assert check_digests(lane) == [f"gsm8k/requests.jsonl {said}"]


@pytest.mark.parametrize("text", ["", "{}", "[]", "3", "[" * 5000, '{"a": ', "\0"])
def test_a_broken_list_proves_nothing(lane: Path, text: str) -> None:
    (lane / FILE_NAME).write_text(text, encoding="utf-8")
    assert len(check_digests(lane)) == 1


def test_no_list_at_all(lane: Path) -> None:
    assert check_digests(lane) == [f"{FILE_NAME} cannot be read: No such file or directory"]
    assert check_digests(lane / "none") != []


@pytest.mark.parametrize("name", ["../other", "/etc/passwd", "", "a/../../x", "a\0b", "x" * 5000, "\ud800"])
def test_a_hostile_list_leads_nowhere(lane: Path, name: str) -> None:
    write_digests(lane)
    (lane / FILE_NAME).write_text(json.dumps({name: "0", "server.log": 3}), encoding="utf-8")
    found = check_digests(lane)
    assert len(found) == 2
    assert all(text.isprintable() for text in found)
    assert found[1] == "server.log has changed since it was written"


def test_names_of_any_bytes(lane: Path) -> None:
    for name in (b"caf\xe9.log", "试验.log".encode(), b"two\nlines"):
        Path(os.fsdecode(os.fsencode(lane) + b"/" + name)).write_bytes(name)
    write_digests(lane)
    assert check_digests(lane) == []
    Path(os.fsdecode(os.fsencode(lane) + b"/caf\xe9.log")).unlink()
    assert check_digests(lane) == ["caf\\udce9.log is gone"]


def test_links_and_devices_are_left_out(lane: Path) -> None:
    (lane / "zero").symlink_to("/dev/zero")
    (lane / "passwd").symlink_to("/etc/passwd")
    (lane / "up").symlink_to(lane.parent, target_is_directory=True)
    os.mkfifo(lane / "fifo")
    write_digests(lane)
    assert len(json.loads((lane / FILE_NAME).read_text(encoding="utf-8"))) == 3


def test_evidence_that_cannot_be_read_is_told(lane: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("harness.evidence.digests.file_sha256", refuse)
    with pytest.raises(HarnessError, match=r"cannot read the evidence .*requests\.jsonl|results_x"):
        write_digests(lane)


def test_a_folder_without_evidence_gets_no_list(tmp_path: Path) -> None:
    """A lane that never got its GPUs: an empty list would say that everything is gone."""
    (tmp_path / "summary.txt").write_text("made by judging")
    write_digests(tmp_path)
    assert not (tmp_path / FILE_NAME).exists()
