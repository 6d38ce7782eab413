"""What the harness reads through NVML, by way of pynvml and the real C interface."""

import shutil
import subprocess
import sys
from pathlib import Path

import pynvml
import pytest

from harness.host.gpu import nvml
from tests.nvml.machine import LOST, Card, Machine, answer_of, nvswitch

pytestmark = pytest.mark.process

INVENTORY = """
found = source.inventory()
answer = dict(
    gpus=[asdict(gpu) | {"family": gpu.family} for gpu in found.gpus],
    source=found.source, reason=found.reason, notes=found.notes, measurable=found.measurable,
    links=sorted([*sorted(pair), link.name] for pair, link in found.links.items()),
)
"""
USAGE = """
gpus = source.inventory().gpus
answer = [asdict(source.usage(gpu)) | {"busy": busy_reason(gpu, source.usage(gpu))} for gpu in gpus]
"""


def test_everything_that_is_told_about_a_machine(machine: Machine) -> None:
    machine.gpus = [
        Card("GPU-a", bus="00000000:1B:00.0", numa=0),
        Card("GPU-b", bus="00000000:43:00.0", numa=0),
        Card("GPU-c", "NVIDIA L4", 23034, sm=89, bus="00000000:52:00.0", numa=70),
        Card("GPU-d", "NVIDIA B200", 183359, sm=100, bus="00000000:9D:00.0", numa=-1),
        Card("GPU-e", "NVIDIA B200", 183359, sm=100, bus="00000000:AD:00.0", numa=-2),
    ]
    machine.links = {(0, 1): (50, 1), (0, 2): (30, 0), (1, 2): (20, 0), (0, 3): (50, 0), (1, 3): (77, 0)}
    found = machine.ask(INVENTORY)
    assert found["gpus"][0] == {
        "index": 0,
        "uuid": "GPU-a",
        "name": "NVIDIA H200",
        "sm": 90,
        "memory_mib": 143771,
        "ordinal": 0,
        "numa": 0,
        "bus_id": "00000000:1B:00.0",
        "mig": False,
        "parent": "",
        "family": "hopper",
    }
    assert [gpu["family"] for gpu in found["gpus"]] == ["hopper", "hopper", "ada"] + ["blackwell"] * 2
    assert [gpu["numa"] for gpu in found["gpus"]] == [0, 0, 70, None, None]
    assert [gpu["ordinal"] for gpu in found["gpus"]] == [0, 1, 2, 3, 4]
    assert found["source"] == "NVML 13.580.82.07, driver 580.82.07"
    assert found["measurable"] is True
    assert [link for link in found["links"] if "GPU-e" not in link] == [
        ["GPU-a", "GPU-b", "NVLINK"],
        ["GPU-a", "GPU-c", "BRIDGE"],
        ["GPU-a", "GPU-d", "SYSTEM"],
        ["GPU-b", "GPU-c", "SWITCHES"],
        ["GPU-b", "GPU-d", "UNKNOWN"],  # a level that is not known here
        ["GPU-c", "GPU-d", "BOARD"],  # level 0
    ]


def test_without_a_driver_there_is_a_reason_and_no_exception(machine: Machine) -> None:
    absent = "import pynvml\ndef none(_): raise OSError('no such file')\npynvml.CDLL = none\n"
    found = machine.ask(absent + INVENTORY)
    assert found["gpus"] == []
    assert "libnvidia-ml.so.1 was not found" in found["reason"]
    not_loaded = machine.ask(INVENTORY, FAKE_NVML_STATE="/nonexistent")
    assert "not loaded" in not_loaded["reason"]
    machine.failures["nvmlInitWithFlags"] = 18
    assert "reboot" in machine.ask(INVENTORY)["reason"]
    machine.failures = {"nvmlDeviceGetCount_v2": 999}
    assert machine.ask(INVENTORY)["reason"] == "NVML says: Unknown Error"
    assert machine.ask("answer = book.peek(1)") == []


def test_a_library_of_that_name_that_is_something_else(machine: Machine, tmp_path: Path) -> None:
    compiler = shutil.which("gcc") or "cc"
    (tmp_path / "other.c").write_text("int other;\n")
    (tmp_path / "other").mkdir()
    out = str(tmp_path / "other/libnvidia-ml.so.1")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", out, str(tmp_path / "other.c")], check=True)
    found = machine.ask(INVENTORY, LD_LIBRARY_PATH=str(tmp_path / "other"))
    assert found["reason"] == "NVML says: Function Not Found"


def test_a_driver_that_comes_up_later_is_seen(machine: Machine) -> None:
    nvswitch(machine, 2).write()
    hidden = machine.state.with_suffix(".hidden")
    code = f"""
import shutil
os.environ["FAKE_NVML_STATE"] = {str(hidden)!r}
before = source.inventory().reason
shutil.copy({str(machine.state)!r}, {str(hidden)!r})
answer = [before, len(source.inventory().gpus)]
"""
    before, count = machine.ask(code, FAKE_NVML_STATE=str(hidden))
    assert "not loaded" in before
    assert count == 2


def test_a_lost_gpu_is_told_and_shifts_no_numbers(machine: Machine) -> None:
    nvswitch(machine, 4).gpus[1].error = LOST
    found = machine.ask(INVENTORY)
    assert [gpu["uuid"] for gpu in found["gpus"]] == ["GPU-0", "GPU-2", "GPU-3"]
    assert [gpu["ordinal"] for gpu in found["gpus"]] == [0, None, None]
    assert found["notes"] == ["GPU 1 cannot be read: NVML says: GPU is lost"]
    assert machine.ask(
        "answer = [visible(book.inventory.gpus[:2], 'index'), visible(book.inventory.gpus[:1], 'index')]"
    ) == [
        "GPU-0,GPU-2",
        "0",
    ]


def test_a_gpu_of_another_container_is_left_out(machine: Machine) -> None:
    """CUDA does not count what it may not open, so the numbers after it move up."""
    nvswitch(machine, 3).gpus[1].error = 4
    found = machine.ask(INVENTORY)
    assert [(gpu["index"], gpu["ordinal"]) for gpu in found["gpus"]] == [(0, 0), (2, 1)]
    assert found["notes"] == ["GPU 1 is not given to this process"]


def test_numbers_are_uncertain_when_nvml_does_not_count_by_bus(machine: Machine) -> None:
    machine.gpus = [Card("GPU-a", bus="00000000:43:00.0"), Card("GPU-b", bus="00000000:1B:00.0")]
    assert [gpu["ordinal"] for gpu in machine.ask(INVENTORY)["gpus"]] == [None, None]


def test_a_gpu_lost_while_running_is_never_free(machine: Machine) -> None:
    nvswitch(machine, 2).write()
    code = """
gpus = source.inventory().gpus
print("ready", flush=True)
sys.stdin.readline()
answer = [busy_reason(gpu, source.usage(gpu)) for gpu in gpus]
"""
    with machine.start(code) as program:
        assert program.stdout is not None
        assert program.stdin is not None
        program.stdout.readline()
        machine.gpus[1].error = LOST
        machine.write()
        program.stdin.write("go\n")
        program.stdin.flush()
        assert answer_of(program) == ["", "cannot be read: NVML says: GPU is lost"]


def test_mig_slices_stand_for_their_gpu(machine: Machine) -> None:
    nvswitch(machine, 3).gpus[1].mig = 1
    machine.gpus[2].mig = -1  # a GPU that has no such mode
    machine.slices = {
        (1, 0): Card("MIG-x", "NVIDIA H200 MIG 3g.71gb", 71000, compute=[(1, 20000)], used=20000),
        (1, 4): Card("MIG-y", "NVIDIA H200 MIG 3g.71gb", 71000),
    }
    found = machine.ask(INVENTORY)
    assert [gpu["uuid"] for gpu in found["gpus"]] == ["GPU-0", "MIG-x", "MIG-y", "GPU-2"]
    assert found["gpus"][1] | {"bus_id": ""} == {
        "index": 1,
        "uuid": "MIG-x",
        "name": "NVIDIA H200 MIG 3g.71gb",
        "sm": 90,
        "memory_mib": 71000,
        "ordinal": None,
        "numa": 0,
        "bus_id": "",
        "mig": True,
        "parent": "GPU-1",
        "family": "hopper",
    }
    assert found["gpus"][3]["ordinal"] is None
    assert found["links"] == [["GPU-0", "GPU-2", "NVLINK"]]
    busy = [usage["busy"] for usage in machine.ask(USAGE)]
    assert [bool(why) for why in busy] == [False, True, False, False]
    lease = "lease = book.lease(1, deadline_s=1, suitable=lambda gpu: gpu.mig)\n"
    assert machine.ask(lease + "answer = visible(lease.gpus, 'index')") == "MIG-y"


def test_mig_mode_without_instances_is_no_gpu(machine: Machine) -> None:
    nvswitch(machine, 1).gpus[0].mig = 1
    found = machine.ask(INVENTORY)
    assert found["gpus"] == []
    assert found["reason"] == "GPU 0 is in MIG mode and has no instance that can be used"


def test_processes_of_all_kinds_are_seen_with_their_commands(machine: Machine) -> None:
    nvswitch(machine, 5)
    secret = [sys.executable, "-c", "import time; time.sleep(60)", "--hf-token", "hf_hidden"]
    with subprocess.Popen(secret) as server:
        try:
            machine.gpus[0].compute = [(server.pid, 90000), (4_000_000, -1)]
            machine.gpus[0].graphics = [(server.pid, 7)]  # computes and draws
            machine.gpus[1].compute = [(pid, 10) for pid in range(4_000_001, 4_000_041)]
            machine.gpus[2].mps = [(server.pid, 5)]
            machine.gpus[3].graphics = [(server.pid, 5)]
            machine.gpus[4].graphics = [(server.pid, 5000)]
            machine.gpus[4].used = 5000
            usages = machine.ask(USAGE)
        finally:
            server.kill()
    first = usages[0]["processes"]
    assert [(process["pid"], process["used_mib"]) for process in first] == [
        (server.pid, 90000),
        (4_000_000, None),
    ]
    assert first[0]["graphics"] is False
    assert "time.sleep" in first[0]["command"]
    assert "hf_hidden" not in first[0]["command"]
    assert first[1]["command"] == ""
    assert "pid 4000000 (its command cannot be seen from here)" in usages[0]["busy"]
    assert len(usages[1]["processes"]) == 40
    assert f"pid {server.pid}" in usages[2]["busy"]
    assert usages[3]["busy"] == ""  # a desktop only draws
    assert usages[4]["busy"].startswith("5,000 MiB used by pid")


def test_a_list_that_grows_while_it_is_read_is_read_again() -> None:
    answers: list[list[str]] = [["pid 1"]]

    def call(_: object) -> list[str]:
        if len(answers) < 4:
            answers.append([])
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
        return answers[0]

    assert nvml._listed(call, None) == ["pid 1"]


def test_memory_of_nobody_makes_a_gpu_busy(machine: Machine) -> None:
    nvswitch(machine, 2).gpus[1].used = 12345
    idle, busy = machine.ask(USAGE)
    assert idle["busy"] == ""
    assert idle["used_mib"] == 4
    assert busy["busy"].startswith("12,345 MiB used by nobody visible")


def test_what_a_driver_lacks(machine: Machine) -> None:
    nvswitch(machine, 1)
    for function in ("MemoryInfo_v2", "GraphicsRunningProcesses_v3", "MPSComputeRunningProcesses_v3"):
        machine.failures[f"nvmlDeviceGet{function}"] = 3
    for function in ("MemoryAffinity", "PciInfo_v3", "MigMode", "Name"):
        machine.failures[f"nvmlDeviceGet{function}"] = 3
    found = machine.ask(INVENTORY)["gpus"][0]
    assert (found["numa"], found["bus_id"], found["name"]) == (None, "", "a GPU without a name")
    usage = machine.ask(USAGE)[0]
    assert usage["used_mib"] == 604  # the older call counts the driver's reserve as used
    assert usage["busy"] == ""
    machine.failures["nvmlDeviceGetComputeRunningProcesses_v3"] = 3
    assert machine.ask(USAGE)[0]["busy"] == "cannot be read: NVML says: Not Supported"


@pytest.mark.parametrize(
    ("function", "code"),
    [
        ("nvmlDeviceGetGraphicsRunningProcesses_v3", 999),
        ("nvmlDeviceGetMemoryInfo_v2", 4),
        ("nvmlDeviceGetComputeRunningProcesses_v3", 7),
        ("nvmlDeviceGetHandleByUUID", 17),
    ],
)
def test_what_cannot_be_read_is_not_free(machine: Machine, function: str, code: int) -> None:
    nvswitch(machine, 1).failures[function] = code
    answer = machine.ask(
        "inventory = source.inventory()\n"
        "answer = [busy_reason(gpu, source.usage(gpu)) for gpu in inventory.gpus] or [inventory.reason]"
    )
    assert "NVML says" in answer[0]


def test_only_the_gpus_given_to_this_program(machine: Machine) -> None:
    nvswitch(machine, 8)
    code = (
        "found = book.inventory\n"
        "answer = [[gpu.index for gpu in found.gpus], visible(book.peek(2), 'index'), found.reason]"
    )
    assert machine.ask(code, CUDA_VISIBLE_DEVICES="6,4,5")[:2] == [[4, 5, 6], "4,5"]
    assert machine.ask(code, CUDA_VISIBLE_DEVICES="GPU-7")[0] == [7]
    nothing = machine.ask(code, CUDA_VISIBLE_DEVICES="")
    assert nothing[0] == []
    assert "none of the machine's 8" in nothing[2]


STRICT = """
import ctypes, pynvml
from pynvml import *
def code(call, *args):
    try:
        return [0, call(*args)]
    except NVMLError as error:
        return error.value
library = ctypes.CDLL("libnvidia-ml.so.1")
answer = {"before": code(nvmlDeviceGetCount)}
nvmlInit()
handle = nvmlDeviceGetHandleByIndex(0)
answer["index"] = code(nvmlDeviceGetHandleByIndex, 2)
answer["uuid"] = code(nvmlDeviceGetHandleByUUID, "GPU-none")
answer["handle"] = code(nvmlDeviceGetName, pynvml.c_nvmlDevice_t())
answer["small"] = library.nvmlDeviceGetName(handle, ctypes.create_string_buffer(4), 4)
answer["mig"] = code(nvmlDeviceGetMigDeviceHandleByIndex, handle, 0)
answer["version"] = code(nvmlDeviceGetMemoryInfo, handle, 7)
count = ctypes.c_uint(2)
infos = (c_nvmlProcessInfo_v3_t * 2)()
short = library.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), infos)
answer["list"] = [short, count.value]
nvmlShutdown()
answer["after"] = code(nvmlDeviceGetCount)
"""


def test_the_stand_in_rejects_what_the_real_library_rejects(machine: Machine) -> None:
    nvswitch(machine, 2).gpus[0].compute = [(1, 1), (2, 2), (3, 3)]
    assert machine.ask(STRICT) == {
        "before": 1,
        "index": 2,
        "uuid": 6,
        "handle": 2,
        "small": 7,
        "mig": 3,
        "version": 25,
        "list": [7, 3],
        "after": 1,
    }
