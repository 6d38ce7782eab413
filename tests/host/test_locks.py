import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.errors import HarnessError
from harness.host import locks
from tests.host.conftest import wait_for

HOLD = """
import time
from harness.host import locks
lock = locks.try_lock("slot", "run other")
print(bool(lock), flush=True)
time.sleep(60)
"""
SHOW_DESCRIPTORS = """
import os
for name in os.listdir("/proc/self/fd"):
    if os.path.lexists(f"/proc/self/fd/{name}"):
        print(os.readlink(f"/proc/self/fd/{name}"))
"""


def test_a_lock_excludes_until_it_is_released(lock_dir: Path) -> None:
    lock = locks.try_lock("slot", "run mine")
    assert lock is not None
    assert locks.try_lock("slot") is None
    assert locks.is_held("slot")
    assert locks.holder("slot") == f"pid {os.getpid()}, run mine"
    lock.release()
    lock.release()
    assert not locks.is_held("slot")
    with locks.try_lock("slot") or pytest.fail("free, but not given"):
        assert locks.is_held("slot")
    assert not locks.is_held("slot")


def test_without_a_purpose_the_command_line_names_the_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["harness", "run", "fp8", "--set", "API_KEY=hidden"])
    lock = locks.try_lock("slot")
    assert lock is not None
    assert "harness run fp8" in locks.holder("slot")
    assert "hidden" not in locks.holder("slot")
    lock.release()


@pytest.mark.process
def test_a_lock_vanishes_with_kill_9_of_its_holder() -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        try:
            assert other.stdout.readline() == b"True\n"
            assert locks.try_lock("slot") is None
            assert locks.holder("slot") == f"pid {other.pid}, run other"
            assert locks.wait_lock("slot", time.monotonic() + 0.05) is None
        finally:
            other.send_signal(signal.SIGKILL)
        other.wait()
        wait_for(lambda: not locks.is_held("slot"), "the lock is free")
        assert locks.try_lock("slot") is not None


@pytest.mark.process
def test_a_child_inherits_no_lock(tmp_path: Path) -> None:
    """Not even one that is given every descriptor, nor a forked one after an orderly release."""
    lock = locks.try_lock("slot")
    assert lock is not None
    seen = subprocess.run(
        [sys.executable, "-c", SHOW_DESCRIPTORS], close_fds=False, capture_output=True, text=True, check=True
    )
    assert "locks/slot" not in seen.stdout
    if (pid := os.fork()) == 0:
        time.sleep(60)
        os._exit(0)
    try:
        lock.release()
        assert not locks.is_held("slot")
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_deleted_file_does_not_give_a_slot_away_twice(
    lock_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between open and flock the file is replaced: the first, nameless one would exclude nobody."""
    lock_dir.mkdir(mode=0o700)
    real = fcntl.flock
    path = lock_dir / "slot"

    def flock(descriptor: int, operation: int) -> None:
        real(descriptor, operation)
        monkeypatch.setattr(fcntl, "flock", real)
        path.unlink()

    monkeypatch.setattr(fcntl, "flock", flock)
    lock = locks.try_lock("slot")
    assert lock is not None
    assert path.exists()
    assert locks.try_lock("slot") is None
    lock.release()


def test_an_unsafe_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = tmp_path / "real"
    real.mkdir(mode=0o700)
    link = tmp_path / "link"
    link.symlink_to(real)
    file = tmp_path / "file"
    file.touch()
    wide = tmp_path / "wide"
    wide.mkdir()
    wide.chmod(0o777)
    foreign = tmp_path / "foreign"
    foreign.mkdir(mode=0o700)
    for path, why in [
        (link, "symbolic link"),
        (file, "exists"),
        (wide, "other users may write"),
        (Path("/proc/1/x"), "cannot"),
    ]:
        monkeypatch.setenv("HARNESS_LOCK_DIR", str(path))
        with pytest.raises(HarnessError, match=why):
            locks.lock_directory()
    monkeypatch.setenv("HARNESS_LOCK_DIR", str(foreign))
    assert locks.lock_directory() == foreign
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(HarnessError, match="belongs to uid"):
        locks.lock_directory()


def test_a_lock_file_that_is_a_link_is_refused(lock_dir: Path, tmp_path: Path) -> None:
    lock_dir.mkdir(mode=0o700)
    target = tmp_path / "precious"
    target.write_text("data")
    (lock_dir / "slot").symlink_to(target)
    with pytest.raises(HarnessError, match="cannot be opened"):
        locks.try_lock("slot")
    assert target.read_text() == "data"


def test_odd_bytes_in_the_text_are_harmless(lock_dir: Path) -> None:
    lock_dir.mkdir(mode=0o700)
    (lock_dir / "slot").write_bytes(b"\xff\x00\n\n junk " + b"y" * 100_000)
    assert locks.holder("slot").startswith("\ufffd")
    assert len(locks.holder("slot")) <= 300
    assert locks.holder("nothing") == "a process that left no name"
    lock = locks.try_lock("slot", "odd \udcff name")
    assert lock is not None
    assert "odd" in locks.holder("slot")
    lock.release()
