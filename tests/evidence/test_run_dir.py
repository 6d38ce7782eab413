"""A run that is going on is told apart from one that was killed, and nobody else writes into it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.evidence.run_dir import LOCK_NAME, RunDir

HOLDER = """
import sys, time
from pathlib import Path
from harness.evidence.run_dir import RunDir
with RunDir(Path(sys.argv[1])).hold():
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir.create(tmp_path, "mine")


@pytest.fixture
def holder(run: RunDir) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the run."""
    argv = [sys.executable, "-c", HOLDER, str(run.path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def test_a_run_is_alive_while_it_is_held_and_not_after(run: RunDir) -> None:
    assert not run.alive()
    with run.hold():
        assert run.alive()
        assert run.pid() == str(os.getpid())
    assert not run.alive()
    with run.hold():  # again
        assert run.alive()


@pytest.mark.process
def test_a_second_process_is_refused_by_name(run: RunDir, holder: subprocess.Popen[str]) -> None:
    assert run.alive()
    with pytest.raises(ConfigError, match=f"still running, pid {holder.pid}") as caught, run.hold():
        pytest.fail("both hold it")
    assert f"kill -INT {holder.pid}" in str(caught.value)
    assert run.alive()


@pytest.mark.process
def test_a_killed_run_is_not_alive(run: RunDir, holder: subprocess.Popen[str]) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert not run.alive()
    with run.hold():
        assert run.alive()


@pytest.mark.process
def test_a_program_that_the_run_started_does_not_keep_it_alive(run: RunDir) -> None:
    with run.hold():
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], close_fds=False)
    try:
        assert not run.alive()
    finally:
        child.kill()
        child.wait()


def test_who_asks_all_the_time_does_not_keep_the_run_from_being_held(run: RunDir) -> None:
    with run.hold():  # makes the lock file
        assert run.alive()
    end = time.monotonic() + 0.5
    asking = threading.Thread(
        target=lambda: [run.alive() for _ in iter(lambda: time.monotonic() < end, False)]
    )
    asking.start()
    for _ in range(20):
        with run.hold():
            assert run.alive()
    asking.join()
    assert not run.alive()


@pytest.mark.parametrize("kind", ["fifo", "link", "folder"])
def test_a_strange_lock_file_neither_hangs_nor_stops_anything(run: RunDir, kind: str) -> None:
    file = run.path / LOCK_NAME
    if kind == "fifo":
        os.mkfifo(file)
    elif kind == "link":
        file.symlink_to("/dev/zero")
    else:
        file.mkdir()
    assert not run.alive()
    assert run.pid() == "unknown"
    with run.hold():
        pass


SOUND = {
    "run_id": "r",
    "scenario": "s",
    "harness_version": "0",
    "command": [],
    "started_at": "now",
    "findings": [{"code": "HOST_FAULT", "message": "m"}],
}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"schema_version": 2}, "has schema version 2; this harness knows 1"),
        ({"schema_version": 2, "scenario": {"name": "s"}}, "has schema version 2; this harness knows 1"),
        (
            {"findings": [{"code": "NEWER_FAULT", "message": "m"}]},
            "cannot be read as a run record: findings.0.code: 'NEWER_FAULT' is not known",
        ),
        ({"status": "paused"}, "cannot be read as a run record: status: 'paused' is not known"),
        ({"lanes": []}, "cannot be read as a run record: lanes: Input should be "),
    ],
)
def test_a_record_of_a_newer_harness_says_what_to_do(
    run: RunDir, changed: dict[str, object], said: str
) -> None:
    (run.path / "run.json").write_text(json.dumps(SOUND), encoding="utf-8")
    assert run.read().findings[0].message == "m"
    (run.path / "run.json").write_text(json.dumps(SOUND | changed), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        run.read()
    assert said in caught.value.what
    assert len(caught.value.what) < 400
    assert caught.value.fix == "use the harness version that wrote it, or a newer one"
