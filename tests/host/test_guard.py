import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.errors import HarnessError, Interrupted
from harness.host import proc
from harness.host.guard import LOG_NAME, REPLACED_AT_MOST, Guard
from harness.host.guardian import Charges
from harness.host.ports import still_bound
from harness.host.shm import snapshot
from tests.host.conftest import CHILD, Start, alive, free_port, run_processes, wait_for

pytestmark = pytest.mark.process

HARNESS = f"""
import os, pathlib, sys, time
from harness.host.guard import Guard
from harness.host.process import ManagedProcess
folder, run_id, port = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]

def start(name, *arguments):
    server = ManagedProcess.start([sys.executable, {str(CHILD)!r}, *arguments], env=dict(os.environ),
        cwd=folder, log=folder / (name + ".log"), marker=run_id + ":" + name, name=name)
    guard.watch(server)
    while b"ready" not in server.log.read_bytes():
        time.sleep(0.01)

with Guard(folder) as guard:
    start("tree", "tree")
    start("orphan", "orphan", port, "deaf")
    print("up", guard.pid, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT])
def test_kill_9_of_the_harness_leaves_nothing(tmp_path: Path, run_id: str, number: int) -> None:
    port = free_port()
    bystander = subprocess.Popen([sys.executable, str(CHILD), "plain"], stdout=subprocess.DEVNULL)
    harness = subprocess.Popen(
        [sys.executable, "-c", HARNESS, str(tmp_path), run_id, str(port)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert harness.stdout is not None
        guardian = int(harness.stdout.readline().split()[1])
        wait_for(lambda: len(run_processes(run_id)) == 4, "three of the tree and the orphan")
        os.kill(guardian, signal.SIGINT)  # Ctrl-C, or an over-eager kill, must not disarm it
        os.kill(guardian, signal.SIGTERM)
        harness.send_signal(number)
        harness.wait()
        wait_for(lambda: not run_processes(run_id), "the servers are gone")
        wait_for(lambda: not alive(guardian), "the guardian is gone")
        assert still_bound([port]) == []
        assert bystander.poll() is None
    finally:
        harness.kill()
        harness.communicate()
        bystander.kill()
        bystander.wait()
    text = (tmp_path / LOG_NAME).read_text()
    assert text.count("\n") == 1
    assert f"harness (pid {harness.pid}) ended without goodbye" in text
    assert "by SIGKILL" in text  # the deaf ones
    assert "STILL ALIVE" not in text


# A harness whose server uses shared memory, up to where the guardian knows of it.
SHM_SERVER = f"""
import os, pathlib, sys, time
from harness.host.guard import Guard
from harness.host.process import ManagedProcess
folder, run_id, held, closed, stranger = pathlib.Path(sys.argv[1]), *sys.argv[2:]

with Guard(folder) as guard:
    server = ManagedProcess.start([sys.executable, {str(CHILD)!r}, "shared_memory", held, closed, stranger],
        env=dict(os.environ), cwd=folder, log=folder / "server.log", marker=run_id + ":shm", name="shm")
    guard.watch(server)
    while b"ready" not in server.log.read_bytes():
        time.sleep(0.01)
    guard.watch_shm([closed])
"""
SHM_HARNESS = f"""{SHM_SERVER}    print("up", guard.pid, flush=True)
    time.sleep(60)
"""


def test_kill_9_of_the_harness_leaves_no_shared_memory(tmp_path: Path, run_id: str) -> None:
    """One segment that the server holds when the harness dies, and one that it was seen to use before. What
    was there before the run stays, and so does what nobody was seen to use."""
    folder = Path("/dev/shm")
    held, closed, stranger, older = (
        folder / f"{run_id}-{n}" for n in ("held", "closed", "stranger", "older")
    )
    older.write_bytes(b"x")
    names = [str(path) for path in (held, closed, stranger)]
    harness = subprocess.Popen(
        [sys.executable, "-c", SHM_HARNESS, str(tmp_path), run_id, *names], stdout=subprocess.PIPE, text=True
    )
    try:
        assert harness.stdout is not None
        guardian = int(harness.stdout.readline().split()[1])
        assert set(names) <= snapshot()
        harness.kill()
        harness.wait()
        wait_for(lambda: not alive(guardian), "the guardian is gone")
        assert not held.exists()
        assert not closed.exists()
        assert stranger.exists()
        assert older.exists()
    finally:
        harness.kill()
        harness.communicate()
        for path in (held, closed, stranger, older):
            path.unlink(missing_ok=True)
    text = (tmp_path / LOG_NAME).read_text()
    assert f"removed shared memory: {closed}, {held}" in text


def test_an_orderly_end_is_silent(tmp_path: Path, start: Start) -> None:
    server = start("plain")
    with Guard(tmp_path) as guard:
        guard.watch(server)
        guardian = guard.pid
        assert guardian is not None
        assert os.getsid(guardian) == guardian
        assert "HARNESS_RUN_MARK" not in Path(f"/proc/{guardian}/environ").read_text()
        assert Path(f"/proc/{guardian}/cwd").resolve() == Path("/")
        began = time.monotonic()
    assert time.monotonic() - began < 10
    assert not alive(guardian)
    assert server.poll() is None, "an orderly harness stops its servers itself"
    assert not (tmp_path / LOG_NAME).exists()


def test_leaving_by_an_exception_stops_what_was_forgotten(tmp_path: Path, start: Start, run_id: str) -> None:
    """An interrupt right after a server's start, before anybody noted it: its mark was told earlier."""

    def interrupted() -> None:
        with Guard(tmp_path) as guard:
            guard.watch(f"{run_id}:lane")
            start("plain")
            raise Interrupted("Ctrl-C")

    with pytest.raises(Interrupted):
        interrupted()
    assert run_processes(run_id) == []
    assert "by SIGTERM" in (tmp_path / LOG_NAME).read_text()


def test_leaving_by_an_exception_with_nothing_left_writes_nothing(tmp_path: Path) -> None:
    def fails() -> None:
        with Guard(tmp_path) as guard:
            guard.watch("nobody:lane")
            raise HarnessError("the disk is full")

    began = time.monotonic()
    with pytest.raises(HarnessError, match="disk"):
        fails()
    assert time.monotonic() - began < 10
    assert not (tmp_path / LOG_NAME).exists()


def test_a_run_directory_that_is_gone_does_not_save_the_servers(tmp_path: Path, start: Start) -> None:
    server = start("plain")

    def fails() -> None:
        with Guard(tmp_path / "deleted") as guard:
            guard.watch(server)
            raise HarnessError("whatever")

    with pytest.raises(HarnessError):
        fails()
    assert server.poll() == -signal.SIGTERM


FORGETFUL = f"""{SHM_SERVER}    guard.watch_names([run_id + "-named*"])
    print(guard.pid, flush=True)
    while not guard.losses:
        time.sleep(0.01)
    print(guard.pid, flush=True)
    time.sleep(60)
"""


def test_the_successor_of_a_killed_guardian_knows_all(tmp_path: Path, run_id: str) -> None:
    """First the guardian, then the harness is killed, while nobody tells it anything: the server goes, and
    what it left; what was there before it stays, although the successor never saw that time."""
    folder = Path("/dev/shm")
    held, closed, stranger, named = (folder / f"{run_id}-{n}" for n in ("held", "closed", "other", "named"))
    odd = folder / f"{run_id}-named-old\n\t\\é"
    socket = Path("/tmp") / f"{run_id}-named-socket"
    everything = (held, closed, stranger, named, odd, socket)
    for path in (odd, named, socket):
        path.write_bytes(b"x")
    named.unlink()
    names = [str(path) for path in (held, closed, stranger)]
    harness = subprocess.Popen(
        [sys.executable, "-c", FORGETFUL, str(tmp_path), run_id, *names], stdout=subprocess.PIPE, text=True
    )
    try:
        assert harness.stdout is not None
        first = int(harness.stdout.readline())
        named.write_bytes(b"x")
        os.kill(first, signal.SIGKILL)
        second = int(harness.stdout.readline())
        assert alive(second)
        assert second != first
        harness.kill()
        harness.wait()
        wait_for(lambda: not run_processes(run_id), "the server is gone")
        wait_for(lambda: not alive(second), "the guardian is gone")
        assert [path for path in everything if path.exists()] == [stranger, odd]
    finally:
        harness.kill()
        harness.communicate()
        for path in everything:
            path.unlink(missing_ok=True)
    text = (tmp_path / LOG_NAME).read_text()
    assert f"removed shared memory: {closed}, {held}, {named}; removed files: {socket}\n" in text


def test_a_guardian_that_was_killed_is_told_of(tmp_path: Path) -> None:
    with Guard(tmp_path) as guard:
        first = guard.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        guard.watch("some:mark")  # whoever is quicker
        wait_for(lambda: bool(guard.losses), "the loss is noticed")
        assert guard.pid != first
    (loss,) = guard.losses
    assert loss.startswith(f"the guardian process (pid {first}) ended with code -9; another one")
    assert not (tmp_path / LOG_NAME).exists()


def test_a_guardian_that_cannot_be_replaced_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Guard(tmp_path) as guard:
        assert guard.pid is not None
        monkeypatch.setattr(sys, "executable", "/bin/false")
        os.kill(guard.pid, signal.SIGKILL)
        wait_for(lambda: bool(guard.losses), "the loss is noticed")
        for _ in range(2):  # the same order again too
            with pytest.raises(HarnessError, match="at once with code 1"):
                guard.watch("some:mark")


def test_who_kills_every_guardian_is_not_fought_for_ever(tmp_path: Path) -> None:
    with Guard(tmp_path) as guard:
        for count in range(REPLACED_AT_MOST + 1):
            assert guard.pid is not None
            os.kill(guard.pid, signal.SIGKILL)
            wait_for(lambda count=count: len(guard.losses) > count, "the loss is noticed")  # type: ignore[misc]
        with pytest.raises(HarnessError, match="the last of 6"):
            guard.watch("some:mark")


def test_no_pattern_of_few_letters_is_believed(tmp_path: Path) -> None:
    stranger = Path("/tmp") / f"{tmp_path.parent.name}-{os.getpid()}-stranger"
    stranger.write_bytes(b"x")
    charges = Charges()
    try:
        for pattern in ("", "*", "*-stranger*", "*" * 40):
            assert not charges.obey(f"pattern\t{pattern}\n")
        assert charges.remove_files() == []
        charges.obey(f"pattern\t{stranger.name}\n")
        assert charges.remove_files() == [str(stranger)]
    finally:
        stranger.unlink(missing_ok=True)


def test_a_guardian_that_cannot_start_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(HarnessError, match="at once with code 1"), Guard(tmp_path):
        pass
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(HarnessError, match="cannot be started"), Guard(tmp_path):
        pass


def test_marks_that_would_break_the_protocol_are_refused(tmp_path: Path) -> None:
    with Guard(tmp_path) as guard:
        for mark in ("a\tb", "a\nb", "a\0b"):
            with pytest.raises(ValueError, match="tabs"):
                guard.watch(mark)
        guard.watch("odd \udcff bytes")
    with pytest.raises(RuntimeError):
        guard.watch("too late")


def test_half_a_line_and_a_pid_in_use_again_hit_nobody(start: Start) -> None:
    stranger = start("plain")
    process = proc.stat(stranger.pid)
    assert process is not None
    charges = Charges()
    for half in (
        "session\t",
        f"session\t{stranger.pid}\t",
        f"session\t{stranger.pid}\t{process.started}",
        "done",
    ):
        assert not charges.obey(half)
    assert not charges.obey(f"session\t{stranger.pid}\t{process.started - 1}\n")
    assert charges.living() == []
    assert not charges.obey(f"session\t{stranger.pid}\t{process.started}\n")
    assert [each.pid for each in charges.living()] == [stranger.pid]
    assert charges.obey("done\n")


def test_the_guardian_needs_nothing_but_the_standard_library() -> None:
    code = """
import sys
import harness.host.guardian
print(*sorted({name.split(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)))
"""
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(CHILD.parents[2])},
    )
    assert done.stdout.split() == ["__main__", "harness"], done.stderr
