"""GPU leases between real processes, on a machine that changes under them."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.nvml.machine import LOST, Machine, answer_of, nvswitch

pytestmark = pytest.mark.process

HOLD = """
lease = book.lease(int(os.environ["COUNT"]), deadline_s=30)
print("leased", flush=True)
time.sleep(60)
"""
RACE = """
import random
used = []
for turn in range(12):
    count = random.choice([1, 2, 4, 8])
    with book.lease(count, deadline_s=60) as lease:
        for gpu in lease.gpus:
            os.close(os.open(f"{os.environ['MARKS']}/{gpu.uuid}", os.O_CREAT | os.O_EXCL))
        time.sleep(random.random() / 100)
        for gpu in lease.gpus:
            os.unlink(f"{os.environ['MARKS']}/{gpu.uuid}")
    used.append(len(lease.gpus) == count)
answer = [len(used), all(used)]
"""
THIRD = """
answer = []
for turn in range(20):
    with book.lease(4, deadline_s=10) as lease:
        answer.append(lease.gpus[0].index)
"""
BUSY = """
try:
    book.lease(1, deadline_s=0.1)
except Exception as error:
    answer = [error.code, str(error)]
"""
# A lane: leases, is told that its server is up and gone again, verifies, and leases once more.
LANE = """
lease = book.lease(2, deadline_s=5)
print(json.dumps([gpu.index for gpu in lease.gpus]), flush=True)
server = int(sys.stdin.readline())
findings = book.verify_released(lease, frozenset({server}), patience_s=float(os.environ["PATIENCE"]))
lease.release()
try:
    after = [gpu.index for gpu in book.lease(2, deadline_s=0).gpus]
except Exception as error:
    after = str(error)
answer = [[[finding.code, finding.message, finding.where] for finding in findings], after]
"""


def test_programs_that_race_for_the_same_gpus(machine: Machine, tmp_path: Path) -> None:
    """Each takes 1, 2, 4 or 8 of 8. A GPU that two have at once shows as a file that is there already."""
    nvswitch(machine, 8).write()
    marks = tmp_path / "marks"
    marks.mkdir()
    programs = [machine.start(RACE, MARKS=str(marks)) for _ in range(3)]
    assert [answer_of(program) for program in programs] == [[12, True]] * 3


def test_kill_9_of_a_holder_frees_its_gpus(machine: Machine) -> None:
    nvswitch(machine, 2).write()
    with machine.start(HOLD, COUNT="2") as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "leased\n"
            code, text = machine.ask(BUSY)
            assert code == "GPU_BUSY"
            assert f"GPU 0 (NVIDIA H200): locked by pid {holder.pid}, run test" in text
            waiting = machine.start("with book.lease(2, deadline_s=30) as lease: answer = len(lease.gpus)")
        finally:
            holder.send_signal(signal.SIGKILL)
        assert answer_of(waiting) == 2


def test_half_a_group_is_never_kept(machine: Machine) -> None:
    """One waits for all 8 while another has 4: the other 4 stay free for a third."""
    nvswitch(machine, 8).write()
    with machine.start(HOLD, COUNT="4") as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with machine.start(HOLD, COUNT="8") as waiting:
            assert machine.ask(THIRD) == [4] * 20
            holder.kill()
            assert waiting.stdout is not None
            assert waiting.stdout.readline() == "leased\n"
            waiting.kill()


def test_memory_that_comes_back_late_is_waited_for(machine: Machine) -> None:
    with _lane(machine, patience_s=20) as lane:
        machine.gpus[0].compute = []
        machine.write()  # the process is gone, its memory is not
        lane.stdin_line("4242")
        time.sleep(0.3)
        assert lane.program.poll() is None
        machine.gpus[0].used = machine.gpus[1].used = 40
        machine.write()
        assert lane.answer() == [[], [0, 1]]


def test_memory_that_never_comes_back_costs_the_gpu(machine: Machine) -> None:
    with _lane(machine, patience_s=0.3) as lane:
        lane.stdin_line("4242")
        findings, after = lane.answer()
    assert [(code, where) for code, _, where in findings] == [
        ("RELEASE_GPU", "GPU-0"),
        ("GPU_QUARANTINED", "GPU-0"),
        ("RELEASE_GPU", "GPU-1"),
        ("GPU_QUARANTINED", "GPU-1"),
    ]
    assert "pid 4242" in findings[0][1]
    assert "of this lane" in findings[0][1]
    assert "90,000 MiB" in findings[2][1]
    assert "no process that can be seen" in findings[2][1]
    assert after == [2, 3]


def test_a_gpu_lost_at_the_end_cannot_be_verified(machine: Machine) -> None:
    with _lane(machine, patience_s=0.1) as lane:
        machine.gpus[0].compute = []
        machine.gpus[0].used = machine.gpus[1].used = 4
        machine.gpus[1].error = LOST
        machine.write()
        lane.stdin_line("4242")
        findings, after = lane.answer()
    assert [code for code, _, _ in findings] == ["GPU_UNREADABLE", "GPU_QUARANTINED"]
    assert "GPU is lost" in findings[0][1]
    assert after == [2, 3]


def test_a_stranger_on_the_gpu_is_named(machine: Machine) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "stranger"]) as stranger:
        try:
            with _lane(machine, patience_s=0.1) as lane:
                machine.gpus[0].compute = [(stranger.pid, 3)]
                machine.gpus[0].used = machine.gpus[1].used = 4
                machine.write()
                lane.stdin_line("4242")
                findings, _ = lane.answer()
        finally:
            stranger.kill()
    assert f"pid {stranger.pid} (" in findings[0][1]
    assert "stranger" in findings[0][1]
    assert "not seen in this lane" in findings[0][1]


def test_whoever_waits_gets_gpus_when_a_stranger_leaves(machine: Machine) -> None:
    nvswitch(machine, 2).gpus[1].used = 70000
    machine.write()
    with machine.start("answer = len(book.lease(2, deadline_s=30).gpus)") as waiting:
        time.sleep(0.5)
        assert waiting.poll() is None
        machine.gpus[1].used = 4
        machine.write()
        assert answer_of(waiting) == 2


class _Lane:
    def __init__(self, program: subprocess.Popen[str]) -> None:
        self.program = program

    def stdin_line(self, text: str) -> None:
        assert self.program.stdin is not None
        self.program.stdin.write(text + "\n")
        self.program.stdin.flush()

    def answer(self) -> Any:
        return answer_of(self.program)

    def __enter__(self) -> "_Lane":
        return self

    def __exit__(self, *_: object) -> None:
        self.program.kill()
        self.program.wait()


def _lane(machine: Machine, patience_s: float) -> _Lane:
    """A lane that leased GPUs 0 and 1 of 4; its server, pid 4242, can be seen on one of them."""
    nvswitch(machine, 4).write()
    program = machine.start(LANE, PATIENCE=str(patience_s))
    assert program.stdout is not None
    assert json.loads(program.stdout.readline()) == [0, 1]
    machine.gpus[0].compute = [(4242, 90000)]
    machine.gpus[0].used = machine.gpus[1].used = 90000
    machine.write()
    return _Lane(program)
