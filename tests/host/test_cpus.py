import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from harness.errors import HarnessError
from harness.host import cpus
from harness.host.cpus import cores, lease_cpus
from tests.host.conftest import Start

HOLD = """
import sys, time
from harness.host.cpus import lease_cpus
lease = lease_cpus(int(sys.argv[1]), 30, "run other")
print(*lease.cpus, flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Four cores with two hardware threads each (0 with 4, 1 with 5, ...); thread 4 is not for us."""
    for cpu in range(8):
        topology = tmp_path / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    monkeypatch.setattr(cpus, "_CPU", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3, 5, 6, 7})


@pytest.mark.usefixtures("machine")
def test_whole_cores_within_the_affinity_mask() -> None:
    assert cores() == {0: (0,), 1: (1, 5), 2: (2, 6), 3: (3, 7)}
    with lease_cpus(2, 0) as first, lease_cpus(2, 0) as second:
        assert first.cpus == (0, 1, 5)
        assert second.cpus == (2, 3, 6, 7)
        assert first.note == second.note == ""


@pytest.mark.usefixtures("machine")
def test_the_slot_is_the_core_whatever_thread_of_it_a_process_may_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lease = lease_cpus(1, 0)
    assert lease.cpus == (0,)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {4})  # the other thread of the same core
    with pytest.raises(HarnessError):
        lease_cpus(1, 0)
    lease.release()
    assert lease_cpus(1, 0).cpus == (4,)


@pytest.mark.usefixtures("machine")
def test_more_than_exist_is_all_with_a_note() -> None:
    with lease_cpus(99, 0) as lease:
        assert lease.cpus == (0, 1, 2, 3, 5, 6, 7)
        assert "99" in lease.note
        assert "4 exist" in lease.note


def test_none_leases_nothing_and_zero_is_a_mistake() -> None:
    with lease_cpus(99, 0), lease_cpus(None, 0) as nothing:
        assert nothing.cpus == ()
    with pytest.raises(ValueError, match="0"):
        lease_cpus(0, 0)


@pytest.mark.usefixtures("machine")
def test_waiting_ends_with_the_names_of_the_holders() -> None:
    with lease_cpus(3, 0, "run alpha"):
        began = time.monotonic()
        with pytest.raises(HarnessError, match="1 of 4 are free") as caught:
            lease_cpus(2, 0.3)
        assert 0.3 <= time.monotonic() - began < 30
        assert "core 0 is held by pid" in caught.value.cause
        assert "run alpha" in caught.value.cause
        with lease_cpus(1, 0) as last:  # the failed attempt kept nothing
            assert last.cpus == (3, 7)


def test_what_is_awaited_is_told_once() -> None:
    said: list[str] = []
    with lease_cpus(len(cores()), 1, "run slow"), pytest.raises(HarnessError):
        lease_cpus(1, 0.4, "test", waiting=said.append)
    (text,) = said
    assert text.startswith("waiting for 1 CPU core(s): core ")
    assert "run slow" in text


@pytest.mark.usefixtures("machine")
def test_a_waiter_gets_what_is_released() -> None:
    lease = lease_cpus(4, 0)
    threading.Timer(0.2, lease.release).start()
    with lease_cpus(4, 20) as mine:
        assert len(mine.cpus) == 7


@pytest.mark.process
def test_contending_processes_take_turns_and_death_frees() -> None:
    """Everybody wants every core: never two at once, and nobody waits for ever for a half."""
    total = len(cores())
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", HOLD, str(total)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    try:
        waiting = list(racers)
        while waiting:
            # Whoever has the cores is killed for it; the others must still be empty-handed.
            ready = [racer for racer in waiting if _has_line(racer)]
            assert len(ready) <= 1
            for racer in ready:
                assert racer.stdout is not None
                assert racer.stdout.readline().split() == [
                    str(cpu) for cpu in sorted(os.sched_getaffinity(0))
                ]
                with pytest.raises(HarnessError, match="0 of") as caught:
                    lease_cpus(1, 0)
                assert f"pid {racer.pid}, run other" in caught.value.cause
                racer.kill()
                racer.wait()
                waiting.remove(racer)
    finally:
        for racer in racers:
            racer.kill()
            racer.communicate()
    assert lease_cpus(total, 5).cpus


def _has_line(racer: subprocess.Popen[str]) -> bool:
    assert racer.poll() is None, "it gave up"
    assert racer.stdout is not None
    return bool(select.select([racer.stdout], [], [], 0.05)[0])


@pytest.mark.process
def test_a_server_is_bound_from_its_first_instruction(start: Start) -> None:
    before = os.sched_getaffinity(0)
    cpu = max(before)
    process = start("environment", cpus=(cpu,), name="bound")
    assert f"mask [{cpu}]" in process.log.read_text()
    assert os.sched_getaffinity(0) == before, "the harness itself must not stay bound"
