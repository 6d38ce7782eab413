import ctypes
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.host import shm
from harness.host.shm import Leftovers, leftovers, remove, snapshot, used_by

pytestmark = pytest.mark.process
_IPC_PRIVATE, _IPC_CREAT, _IPC_RMID = 0, 0o1000, 0
LIBC = ctypes.CDLL(None, use_errno=True)

MAKE_SEGMENT = "import ctypes; print(ctypes.CDLL(None).shmget(0, 4096, 0o1600), flush=True)"
MAP_FILE = """
import mmap, os, sys
with open(sys.argv[1], "r+b") as file:
    held = mmap.mmap(file.fileno(), 0)
print("mapped", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def file() -> Iterator[Path]:
    path = Path("/dev/shm") / f"harness-test-{uuid.uuid4().hex}"
    yield path
    path.unlink(missing_ok=True)


def segment_of_a_dead_process() -> tuple[int, int]:
    """Identifier and creator of a new System V segment; the caller removes it."""
    with subprocess.Popen([sys.executable, "-c", MAKE_SEGMENT], stdout=subprocess.PIPE) as maker:
        assert maker.stdout is not None
        return int(maker.stdout.read()), maker.pid


def test_a_file_that_ours_used_is_reported_and_not_deleted(file: Path) -> None:
    before = snapshot()
    file.write_bytes(b"x" * 4096)
    assert str(file) in snapshot()
    assert str(file) in leftovers(before, {999_999}, {str(file)}).ours
    assert leftovers(snapshot(), {999_999}, {str(file)}).ours == ()
    assert file.exists()


def test_what_is_ours_can_be_removed_and_nothing_else(file: Path) -> None:
    other = file.with_name(f"{file.name}-other")
    file.write_bytes(b"x")
    other.write_bytes(b"x")
    shmid, creator = segment_of_a_dead_process()
    try:
        segment = leftovers(frozenset(), {creator}, set()).ours[0]
        remove({str(file), segment})
        assert not file.exists()
        assert other.exists()
        assert f"segment {shmid} " not in str(snapshot())
    finally:
        other.unlink()
        LIBC.shmctl(shmid, _IPC_RMID, None)


def test_a_file_that_appears_meanwhile_is_not_blamed_on_us(file: Path) -> None:
    before = snapshot()
    file.write_bytes(b"x")
    found = leftovers(before, {999_999}, set())
    assert str(file) not in found.ours
    assert str(file) in found.unattributed


def test_use_is_seen_while_the_process_lives(file: Path) -> None:
    before = snapshot()
    file.write_bytes(b"x" * 4096)
    user = subprocess.Popen(
        [sys.executable, "-c", MAP_FILE, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert user.stdout is not None
        user.stdout.readline()
        used = used_by({user.pid})
        assert str(file) in used, "mapped only, the descriptor is closed"
        assert str(file) not in str(leftovers(before, set(), set())), "a living stranger uses it"
    finally:
        user.communicate(b"\n")
    assert str(file) in leftovers(before, {user.pid}, used).ours


def test_a_file_of_another_user_is_not_ours(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = snapshot()
    file.write_bytes(b"x")
    monkeypatch.setattr(os, "getuid", lambda: 123_456)
    assert str(file) not in str(leftovers(before, {1}, set()))


def test_an_odd_name_can_be_printed() -> None:
    path = os.fsencode(f"/dev/shm/harness-test-{uuid.uuid4().hex}-") + b"\xff\n"
    before = snapshot()
    try:
        with open(path, "wb"):  # noqa: PTH123 - a name in bytes
            pass
        found = [name for name in leftovers(before, {1}, set()).unattributed if "\\xff" in name]
        assert len(found) == 1
        found[0].encode()
    finally:
        os.unlink(path)  # noqa: PTH108


def test_a_segment_of_an_ended_process() -> None:
    before = snapshot()
    shmid, creator = segment_of_a_dead_process()
    try:
        found = [name for name in leftovers(before, {creator}, set()).ours if f"segment {shmid} " in name]
        assert len(found) == 1
        assert f"by pid {creator}" in found[0]
        assert found[0] in leftovers(before, {1}, set()).unattributed, "its creator was never seen"
        assert leftovers(snapshot(), {creator}, set()).ours == ()
    finally:
        assert LIBC.shmctl(shmid, _IPC_RMID, None) == 0


def test_a_segment_of_a_living_stranger_is_not_ours() -> None:
    before = snapshot()
    shmid = LIBC.shmget(_IPC_PRIVATE, 4096, _IPC_CREAT | 0o600)
    assert shmid >= 0
    try:
        assert f"segment {shmid} " in str(snapshot())
        assert f"segment {shmid} " not in str(leftovers(before, {999_999}, set()))
    finally:
        LIBC.shmctl(shmid, _IPC_RMID, None)


def test_a_machine_without_shared_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shm, "FOLDER", tmp_path / "none")
    monkeypatch.setattr(shm, "_SYSV", tmp_path / "none")
    assert snapshot() == frozenset()
    assert leftovers(frozenset(), {1}, set()) == Leftovers((), ())
