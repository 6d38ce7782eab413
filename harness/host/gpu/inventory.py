"""What GPUs there are, what uses them, and how close they are to one another.

Two sources tell it: NVML (`nvml.py`), and a YAML file that describes a machine (`described.py`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

# A GPU that nobody uses still shows some memory: the driver's own.
IDLE_SHARE = 0.01
IDLE_MIB = 1024


class Link(IntEnum):
    """How two GPUs reach each other; a greater number is closer. Names in YAML are these in lower case."""

    UNKNOWN = 0
    SYSTEM = 1  # across the sockets of the machine
    NODE = 2  # one NUMA node, different PCIe host bridges
    BRIDGE = 3  # one PCIe host bridge
    SWITCHES = 4  # several PCIe switches
    SWITCH = 5  # one PCIe switch
    BOARD = 6  # one board
    NVLINK = 7  # NVLink, directly or through NVSwitch


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, or one MIG slice of a GPU, that a process can be given.

    `index` is for people, as in nvidia-smi. `ordinal` is CUDA's number under CUDA_DEVICE_ORDER=PCI_BUS_ID,
    None where only the UUID is certain: for MIG slices, and behind a GPU that cannot be read. `sm` is the
    compute capability as one number (90, 100, 120), 0 when unknown. `parent` is the UUID of the GPU that a
    slice is part of.
    """

    index: int
    uuid: str
    name: str
    sm: int
    memory_mib: int
    ordinal: int | None = None
    numa: int | None = None
    bus_id: str = ""
    mig: bool = False
    parent: str = ""

    @property
    def family(self) -> str:
        """`hopper`, `blackwell`, `ada`, `ampere`, `turing`, `volta`, or empty when unknown."""
        return family(self.sm)

    def __str__(self) -> str:
        slice_of = f", slice {self.uuid}" if self.mig else ""
        return f"GPU {self.index} ({self.name}{slice_of})"


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """`used_mib` is None where the driver does not tell. `graphics`: it only draws, and computes nothing."""

    pid: int
    command: str = ""
    used_mib: int | None = None
    graphics: bool = False

    def __str__(self) -> str:
        memory = "" if self.used_mib is None else f", {self.used_mib:,} MiB"
        return f"pid {self.pid} ({self.command or 'its command cannot be seen from here'}{memory})"


@dataclass(frozen=True, slots=True)
class Usage:
    """One reading of one GPU. A non-empty `unreadable` says why there is none; then nothing else counts."""

    used_mib: int = 0
    processes: tuple[GpuProcess, ...] = ()
    unreadable: str = ""


@dataclass(frozen=True, slots=True)
class Inventory:
    """`gpus` by index. `source` in words. `reason` says why there are no GPUs, `notes` which were left out.

    `measurable`: whether memory and processes can be read; a described machine's cannot.
    """

    gpus: tuple[Gpu, ...]
    source: str
    links: Mapping[frozenset[str], Link] = field(default_factory=dict)
    reason: str = ""
    notes: tuple[str, ...] = ()
    measurable: bool = True

    def link(self, one: Gpu, other: Gpu) -> Link:
        return self.links.get(frozenset((one.uuid, other.uuid)), Link.UNKNOWN)

    def summary(self) -> str:
        """`8 NVIDIA H200 (sm 90, 140 GiB)`, or `no GPU: <reason>`."""
        if not self.gpus:
            return f"no GPU: {self.reason or 'none was found'}"
        return count_by_model(self.gpus)


class GpuSource(Protocol):
    """Who tells about GPUs. Neither method raises for what the machine lacks or refuses to tell."""

    def inventory(self) -> Inventory: ...

    def usage(self, gpu: Gpu) -> Usage: ...


def family(sm: int) -> str:
    """NVIDIA's architecture name by compute capability."""
    names = {7: "volta", 8: "ampere", 9: "hopper", 10: "blackwell", 11: "blackwell", 12: "blackwell"}
    return {75: "turing", 89: "ada"}.get(sm, names.get(sm // 10, ""))


def count_by_model(gpus: Iterable[Gpu]) -> str:
    """`4 NVIDIA H200 (sm 90, 140 GiB) and 1 NVIDIA L4 (sm 89, 22 GiB)`."""
    counts: dict[str, int] = {}
    for gpu in gpus:
        model = f"{gpu.name} (sm {gpu.sm or 'unknown'}, {gpu.memory_mib // 1024} GiB)"
        counts[model] = counts.get(model, 0) + 1
    return " and ".join(f"{count} {model}" for model, count in counts.items())


def idle_limit_mib(gpu: Gpu) -> int:
    """Used memory below this is the driver's own: 1 % of all, at least 1024 MiB."""
    return max(IDLE_MIB, int(gpu.memory_mib * IDLE_SHARE))


def busy_reason(gpu: Gpu, usage: Usage) -> str:
    """Why the GPU must not be used now; empty when it is idle.

    Memory counts beside processes, since processes of other containers are invisible. A program that only
    draws (a desktop) counts by its memory alone.
    """
    if usage.unreadable:
        return f"cannot be read: {usage.unreadable}"
    computing = [process for process in usage.processes if not process.graphics]
    if computing:
        return f"used by {', '.join(map(str, computing))}"
    if usage.used_mib >= idle_limit_mib(gpu):
        who = ", ".join(map(str, usage.processes)) or "nobody visible (another container or user?)"
        return f"{usage.used_mib:,} MiB used by {who}"
    return ""
