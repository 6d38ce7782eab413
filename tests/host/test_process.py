import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from harness.errors import ConfigError, HarnessError, Interrupted, Problem
from harness.findings import Code
from harness.host import proc, process
from harness.host.ports import still_bound
from harness.host.process import ManagedProcess
from harness.host.spawn import become_subreaper
from harness.host.spawn import spawn as real_spawn
from tests.host.conftest import CHILD, Start, alive, free_port, run_processes, wait_for

pytestmark = pytest.mark.process


@pytest.fixture
def port() -> int:
    return free_port()


def pids_of(server: ManagedProcess) -> set[int]:
    return {member.pid for member in server.members()}


def word(server: ManagedProcess, index: int) -> int:
    """The number after `ready` in the log."""
    line = next(line for line in server.log.read_text().splitlines() if line.startswith("ready"))
    return int(line.split()[index])


def test_start_session_mark_input_and_log(start: Start, run_id: str) -> None:
    server = start("environment")
    log = server.log.read_text()
    assert "session True input b''" in log
    assert f"mark {run_id}:lane 1" in log
    wait_for(lambda: server.poll() is not None, "the end")
    assert server.poll() == 0
    assert server.exit_description() == "exit code 0"


def test_stop_by_sigterm(start: Start) -> None:
    server = start("polite")
    assert server.exit_description() == "still running"
    outcome = server.stop(60)
    assert (outcome.how, outcome.exit_code, outcome.leaked, outcome.forced) == ("terminated", 0, (), ())
    assert 0.2 <= outcome.seconds < 30
    assert "leaving" in server.log.read_text()
    assert server.stop(60) is outcome
    assert server.members() == []


def test_dying_at_once_of_sigterm_is_orderly(start: Start) -> None:
    server = start("plain")
    outcome = server.stop(10)
    assert (outcome.how, outcome.exit_code) == ("terminated", -signal.SIGTERM)
    assert server.exit_description() == "killed by SIGTERM (15), sent by the harness"


def test_ignoring_sigterm_ends_in_sigkill_after_the_grace(start: Start) -> None:
    server = start("ignore_sigterm")
    outcome = server.stop(0.5)
    assert (outcome.how, outcome.exit_code, outcome.forced) == ("killed", -signal.SIGKILL, (server.pid,))
    assert 0.5 <= outcome.seconds < 30
    assert server.exit_description() == "killed by SIGKILL (9), sent by the harness"


def test_already_dead(start: Start) -> None:
    server = start("fails", 3, ready=False)
    wait_for(lambda: server.poll() is not None, "the end")
    assert server.exit_description() == "exit code 3"
    assert not server.owns_port(1)
    outcome = server.stop(60)
    assert (outcome.how, outcome.exit_code, outcome.leaked) == ("exited", 3, ())
    assert outcome.seconds < 30, "there was nothing to wait for"


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGKILL, "killed by SIGKILL (9), often the kernel's out-of-memory killer"),
        (signal.SIGSEGV, "killed by SIGSEGV (11), it crashed"),
        (signal.SIGTERM, "killed by SIGTERM (15)"),
        (40, "killed by signal 40 (40)"),
    ],
)
def test_death_by_somebody_elses_signal_is_described(start: Start, number: int, words: str) -> None:
    server = start("plain")
    os.kill(server.pid, number)
    wait_for(lambda: server.poll() is not None, "the end")
    assert server.poll() == -number
    assert server.exit_description() == words
    assert server.stop(1).how == "exited"
    assert server.exit_description() == words


@pytest.mark.parametrize(
    ("code", "words"), [(137, "exit code 137 (128 + SIGKILL: a child was killed)"), (255, "exit code 255")]
)
def test_exit_codes_above_128(start: Start, code: int, words: str) -> None:
    server = start("fails", code, ready=False)
    wait_for(lambda: server.poll() is not None, "the end")
    assert server.exit_description() == words
    server.stop(1)
    assert server.exit_description() == words


def test_a_grandchild_that_ignores_sigterm_is_found_and_killed(start: Start) -> None:
    server = start("tree")
    child, grandchild = word(server, 1), word(server, 2)
    assert pids_of(server) == {server.pid, child, grandchild}
    outcome = server.stop(5)
    assert (outcome.how, outcome.exit_code, outcome.forced) == ("killed", -signal.SIGTERM, (grandchild,))
    assert not alive(child)
    assert not alive(grandchild)
    assert server.seen_pids == {server.pid, child, grandchild}


@pytest.mark.parametrize("traits", [(), ("deaf",)])
def test_an_orphan_in_its_own_session_that_holds_the_port(
    start: Start, port: int, traits: tuple[str, ...]
) -> None:
    server = start("orphan", port, *traits)
    orphan = word(server, 1)
    wait_for(lambda: server.poll() is not None, "the parent ends")
    assert pids_of(server) == {orphan}
    assert still_bound([port]) == [port]
    assert server.owns_port(port)
    outcome = server.stop(1)
    assert (outcome.exit_code, outcome.leaked) == (0, ())
    assert (outcome.how, outcome.forced) == (("killed", (orphan,)) if traits else ("exited", ()))
    assert not alive(orphan)
    assert still_bound([port]) == []


def test_an_orphan_that_wiped_its_environment_is_known_by_its_former_parent(start: Start, port: int) -> None:
    server = start("orphan", port, "bare")
    orphan = word(server, 1)
    assert proc.mark_of(orphan) is None
    assert proc.stat(orphan) is not None
    assert server.owns_port(port), "seen here, while its parent lives"
    os.kill(server.pid, signal.SIGKILL)
    wait_for(lambda: server.poll() is not None, "the parent ends")
    assert pids_of(server) == {orphan}
    assert server.stop(1).leaked == ()
    assert not alive(orphan)
    assert still_bound([port]) == []


def test_an_orphan_that_wiped_its_environment_is_known_by_its_session(start: Start) -> None:
    server = start("bare_orphan")
    wait_for(lambda: server.poll() is not None, "the parent ends")
    members = server.members()
    assert len(members) == 1
    assert proc.mark_of(members[0].pid) is None
    assert server.stop(1).leaked == ()
    assert not alive(members[0].pid)


def test_the_pid_stays_taken_until_the_stop(start: Start) -> None:
    """Its number is the session's: in use again, it would make a stranger's processes ours."""
    server = start("fails", 0, ready=False)
    wait_for(lambda: server.poll() is not None, "the end")
    process = proc.stat(server.pid)
    assert process is not None
    assert process.state == "Z"
    server.stop(1)
    assert proc.stat(server.pid) is None


def test_a_subreaper_leaves_no_zombies(tmp_path: Path) -> None:
    """In a process of its own, since the role cannot be laid down again."""
    program = f"""
import os, sys, time, pathlib
from harness.host.process import ManagedProcess, become_subreaper
become_subreaper()
log = pathlib.Path({str(tmp_path / "log")!r})
port = sys.argv[1]
server = ManagedProcess.start([sys.executable, {str(CHILD)!r}, "orphan", port], env=dict(os.environ),
    cwd=log.parent, log=log, marker="sub:lane", name="lane")
while server.poll() is None or b"ready" not in log.read_bytes():
    time.sleep(0.01)
orphan = int(log.read_text().split()[1])
assert [member.pid for member in server.members()] == [orphan]
assert server.members()[0].ppid() == os.getpid(), "not adopted"
outcome = server.stop(5)
assert outcome.leaked == () and not os.path.exists(f"/proc/{{orphan}}"), "a zombie was left"
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("no children left")
"""
    port = free_port()
    done = subprocess.run(
        [sys.executable, "-c", program, str(port)], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("no children left\n", "")


def test_become_subreaper_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refuses:
        def __init__(self, name: None, use_errno: bool) -> None: ...
        def prctl(self, *arguments: int) -> int:
            return -1

    monkeypatch.setattr("harness.host.spawn.ctypes.CDLL", Refuses)
    with pytest.raises(HarnessError, match="subreaper"):
        become_subreaper()


def test_bystanders_survive(start: Start, run_id: str, tmp_path: Path) -> None:
    """The same command line without a mark, with another run's, and with a mark that begins like ours."""
    server = start("tree", name="lane")
    namesake = start("tree", name="lane2")
    unmarked = subprocess.Popen([sys.executable, str(CHILD), "plain"], stdout=subprocess.DEVNULL)
    other = subprocess.Popen(
        [sys.executable, str(CHILD), "plain"],
        env={**os.environ, "HARNESS_RUN_MARK": "another:lane", "X": f"HARNESS_RUN_MARK={server.marker}"},
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        assert unmarked.pid not in pids_of(server) | pids_of(namesake)
        assert len(server.members()) == len(namesake.members()) == 3
        assert {each.pid for each in run_processes(run_id)} == pids_of(server) | pids_of(namesake)
        assert server.stop(1).leaked == ()
        assert unmarked.poll() is None
        assert other.poll() is None
        assert len(namesake.members()) == 3
    finally:
        for bystander in (unmarked, other):
            bystander.kill()
            bystander.wait()


def test_children_that_die_while_being_listed(start: Start) -> None:
    server = start("churn")
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
        assert server.pid in pids_of(server)
    assert server.stop(5).leaked == ()


def test_a_chatty_child_is_never_blocked(start: Start) -> None:
    server = start("chatty", 64)
    assert server.log.stat().st_size == 64 * 1024 * 1024 + len("ready\n")
    assert server.stop(5).how == "terminated"


def test_the_log_is_appended_to(start: Start, tmp_path: Path) -> None:
    (tmp_path / "lane.log").write_text("# command\n")
    assert start("plain").log.read_text() == "# command\nready\n"


def test_owning_a_port(start: Start, port: int) -> None:
    server, stranger = start("serve", port, name="one"), start("plain", name="two")
    assert server.owns_port(port)
    assert not stranger.owns_port(port)
    assert not server.owns_port(port + 1)
    server.stop(5)
    assert not server.owns_port(port)


def test_a_stopped_process_can_still_be_ended(start: Start) -> None:
    server = start("plain")
    os.kill(server.pid, signal.SIGSTOP)
    wait_for(lambda: (now := proc.stat(server.pid)) and now.state == "T", "it is stopped")
    outcome = server.stop(0.3)
    assert (outcome.how, outcome.leaked) == ("killed", ())


def test_an_interrupt_during_the_stop_does_not_leave_the_server(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start("tree")
    child, grandchild = word(server, 1), word(server, 2)

    def interrupted(self: ManagedProcess, grace_s: float) -> None:
        raise Interrupted("Ctrl-C")

    with monkeypatch.context() as patch:
        patch.setattr(ManagedProcess, "_terminate_main", interrupted)
        with pytest.raises(Interrupted):
            server.stop(0.5)
    assert [pid for pid in (server.pid, child, grandchild) if alive(pid)] == []
    assert server.stop(5).how == "killed"


def test_an_interrupt_during_the_start_leaves_nothing(
    start: Start, run_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawned: list[subprocess.Popen[bytes]] = []

    def spawn(*arguments: object, **named: object) -> None:
        spawned.append(real_spawn(*arguments, **named))  # type: ignore[arg-type]
        raise Interrupted("Ctrl-C")

    monkeypatch.setattr(process, "spawn", spawn)
    with pytest.raises(Interrupted):
        start("ignore_sigterm")
    assert spawned[0].wait(5) == -signal.SIGKILL
    assert run_processes(run_id) == []


def test_a_pid_in_use_again_is_not_ours(start: Start) -> None:
    """Every process that was ever seen is remembered by pid and start time, not by pid alone."""
    server = start("plain", name="one")
    stranger = start("plain", name="two")
    server._known[stranger.pid] = 12345
    assert pids_of(server) == {server.pid}
    server.stop(5)
    assert stranger.poll() is None


def test_a_status_collected_by_somebody_else(start: Start) -> None:
    server = start("plain")
    os.kill(server.pid, signal.SIGKILL)
    os.waitpid(server.pid, 0)
    assert server.exit_description() == "exit code unknown, somebody else collected it"
    assert server.stop(1).how == "exited"


def refuse(folder: Path, argv: list[str], cwd: Path | None = None, log: Path | None = None) -> Problem:
    env = {"PATH": "/nowhere"}
    log = log or folder / "log"
    with pytest.raises(Problem) as caught:
        ManagedProcess.start(argv, env=env, cwd=cwd or folder, log=log, marker="r:l", name="lane/normal")
    return caught.value


def test_what_cannot_be_started_is_explained(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/python\n")
    script.chmod(0o755)
    text = tmp_path / "text"
    text.write_text("nothing")
    for argv, why in [
        (["llama-server-nowhere"], "there is no such program"),
        ([str(script)], "interpreter named in its first line"),
        ([str(text)], "Permission denied"),
        ([sys.executable, "a\0b"], "null byte"),
        ([], "empty command"),
        ([sys.executable, "x" * 3_000_000], "too long"),
    ]:
        error = refuse(tmp_path, argv)
        assert isinstance(error, ConfigError)
        assert why in str(error)
        assert "lane/normal" in str(error)
        assert len(str(error)) < 1000
    assert "no such directory" in str(refuse(tmp_path, ["true"], cwd=tmp_path / "gone"))
    assert "cannot be opened" in str(refuse(tmp_path, ["true"], log=tmp_path / "gone" / "log"))
    assert refuse(tmp_path, ["true"], log=Path("/dev/full/log")).code is not Code.DISK_FULL


def test_cores_outside_the_mask_are_refused(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="bound to the cores"):
        ManagedProcess.start(
            [sys.executable], env={}, cwd=tmp_path, log=tmp_path / "log", marker="r:l", cpus=(4000,), name="x"
        )


def test_members_are_handles_of_the_living(start: Start) -> None:
    server = start("tree")
    members = server.members()
    assert all(isinstance(member, psutil.Process) and member.is_running() for member in members)
    os.kill(server.pid, signal.SIGKILL)
    wait_for(lambda: server.poll() is not None, "the end")
    assert server.pid not in pids_of(server), "a zombie is no member"
