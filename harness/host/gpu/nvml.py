"""This machine's GPUs, as the NVIDIA driver tells them through NVML. The only module that knows pynvml.

Any call may be refused: by a driver without the feature, a lost GPU, a container without the device. What
cannot be read is told as such, and never as free.
"""

import os
import shlex
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any

import pynvml

from harness.host import proc
from harness.host.gpu.inventory import Gpu, GpuProcess, Inventory, Link, Usage
from harness.host.gpu.visible import restricted
from harness.host.redact import redact_argv

MIB = 1 << 20
_COMMAND_LIMIT = 120
_NUMA_WORDS = 16  # of 64 nodes each
_LINKS = {
    pynvml.NVML_TOPOLOGY_INTERNAL: Link.BOARD,
    pynvml.NVML_TOPOLOGY_SINGLE: Link.SWITCH,
    pynvml.NVML_TOPOLOGY_MULTIPLE: Link.SWITCHES,
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: Link.BRIDGE,
    pynvml.NVML_TOPOLOGY_NODE: Link.NODE,
    pynvml.NVML_TOPOLOGY_SYSTEM: Link.SYSTEM,
}
_REASONS = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "there is no NVIDIA driver here (libnvidia-ml.so.1 was not found); "
    "a container must be started with GPU access",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA driver is installed but not loaded",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the NVIDIA driver was updated while in use (its library and "
    "its kernel module differ): reboot, or load the module again",
}
# Answers that mean "no such feature here", not "this GPU is in trouble".
_LACKING = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)


class NvmlSource:
    """A `GpuSource`: the GPUs that this program may use, by the CUDA_VISIBLE_DEVICES of `environ`."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = environ
        self._mutex = threading.Lock()
        self._started = False

    def inventory(self) -> Inventory:
        """Without a driver, an empty one that says why."""
        try:
            self._start()
            return restricted(_inventory(), self._environ)
        except pynvml.NVMLError as error:
            return Inventory((), "NVML", reason=_text(error))

    def usage(self, gpu: Gpu) -> Usage:
        try:
            self._start()
            handle = pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
            return Usage(_used_mib(handle), tuple(_processes(handle)))
        except pynvml.NVMLError as error:
            return Usage(unreadable=_text(error))

    def _start(self) -> None:
        """Once for the life of this program: where no daemon keeps the GPUs awake, it takes seconds."""
        with self._mutex:
            if not self._started:
                pynvml.nvmlInit()
                self._started = True


def _inventory() -> Inventory:
    gpus: list[Gpu] = []
    notes: list[str] = []
    ordinal: int | None = 0  # known until the first GPU of which it is uncertain how CUDA counts it
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handle = _permitted(index)
            found = [] if handle is None else _devices(index, handle, ordinal)
        except pynvml.NVMLError as error:
            notes.append(f"GPU {index} cannot be read: {_text(error)}")
            ordinal = None
            continue
        if handle is None:  # CUDA does not count it either
            notes.append(f"GPU {index} is not given to this process")
            continue
        if not found:
            notes.append(f"GPU {index} is in MIG mode and has no instance that can be used")
        gpus += found
        whole = len(found) == 1 and not found[0].mig
        ordinal = ordinal + 1 if whole and ordinal is not None else None
    if [gpu.bus_id for gpu in gpus] != sorted(gpu.bus_id for gpu in gpus):
        gpus = [replace(gpu, ordinal=None) for gpu in gpus]
    versions = f"NVML {_try(pynvml.nvmlSystemGetNVMLVersion, default='of unknown version')}"
    driver = f"driver {_try(pynvml.nvmlSystemGetDriverVersion, default='of unknown version')}"
    reason = "" if gpus else "; ".join(notes) or "the driver knows no GPU"
    return Inventory(tuple(gpus), f"{versions}, {driver}", _links(gpus), reason, tuple(notes))


def _permitted(index: int) -> Any:
    """The GPU's handle; None when a container or a batch system keeps the GPU from this process."""
    try:
        return pynvml.nvmlDeviceGetHandleByIndex(index)
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_NO_PERMISSION:
            return None
        raise


def _devices(index: int, handle: Any, ordinal: int | None) -> list[Gpu]:
    """The GPU, or its slices when it is in MIG mode: nothing can run on the whole of it then."""
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    gpu = Gpu(
        index=index,
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        name=_name(handle),
        sm=major * 10 + minor,
        memory_mib=_memory(handle).total // MIB,
        ordinal=ordinal,
        numa=_numa(handle),
        bus_id=_try(lambda: str(pynvml.nvmlDeviceGetPciInfo(handle).busId), default=""),
    )
    mode, _ = _try(pynvml.nvmlDeviceGetMigMode, handle, default=(0, 0))
    return list(_slices(gpu, handle)) if mode == pynvml.NVML_DEVICE_MIG_ENABLE else [gpu]


def _slices(gpu: Gpu, handle: Any) -> Iterator[Gpu]:
    for number in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        part = _try(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number, default=None)
        if part is None:  # numbers of instances that do not exist
            continue
        yield Gpu(
            index=gpu.index,
            uuid=pynvml.nvmlDeviceGetUUID(part),
            name=_name(part),
            sm=gpu.sm,
            memory_mib=_memory(part).total // MIB,
            numa=gpu.numa,
            bus_id=gpu.bus_id,
            mig=True,
            parent=gpu.uuid,
        )


def _links(gpus: list[Gpu]) -> dict[frozenset[str], Link]:
    """Of all pairs of whole GPUs; slices are not joined to anything."""
    handles = {
        gpu.uuid: handle
        for gpu in gpus
        if not gpu.mig and (handle := _try(pynvml.nvmlDeviceGetHandleByUUID, gpu.uuid, default=None))
    }
    return {
        frozenset((one, other)): _link(handles[one], handles[other])
        for one, other in combinations(handles, 2)
    }


def _link(one: Any, other: Any) -> Link:
    nvlink = _try(pynvml.nvmlDeviceGetP2PStatus, one, other, pynvml.NVML_P2P_CAPS_INDEX_NVLINK, default=None)
    if nvlink == pynvml.NVML_P2P_STATUS_OK:
        return Link.NVLINK
    level = _try(pynvml.nvmlDeviceGetTopologyCommonAncestor, one, other, default=None)
    return _LINKS.get(level, Link.UNKNOWN)


def _numa(handle: Any) -> int | None:
    """The memory node next to the GPU; None where it has none or several."""
    words = _try(
        pynvml.nvmlDeviceGetMemoryAffinity, handle, _NUMA_WORDS, pynvml.NVML_AFFINITY_SCOPE_NODE, default=()
    )
    nodes = [64 * number + bit for number, word in enumerate(words) for bit in range(64) if word >> bit & 1]
    return nodes[0] if len(nodes) == 1 else None


def _name(handle: Any) -> str:
    return str(_try(pynvml.nvmlDeviceGetName, handle, default="a GPU without a name"))


def _memory(handle: Any) -> Any:
    """The newer call counts what the driver reserves for itself apart; older drivers have only the other."""
    try:
        return pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except pynvml.NVMLError as error:
        if error.value in (*_LACKING, pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH):
            return pynvml.nvmlDeviceGetMemoryInfo(handle)
        raise


def _used_mib(handle: Any) -> int:
    return -(-int(_memory(handle).used) // MIB)


def _processes(handle: Any) -> Iterator[GpuProcess]:
    """One entry per pid. A driver may lack the graphics and MPS lists, but not the first one."""
    found: dict[int, tuple[int | None, bool]] = {}
    listed = [(entry, False) for entry in _listed(pynvml.nvmlDeviceGetComputeRunningProcesses_v3, handle)]
    for call, graphics in (
        (pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3, False),
        (pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3, True),
    ):
        try:
            listed += [(entry, graphics) for entry in _listed(call, handle)]
        except pynvml.NVMLError as error:
            if error.value not in _LACKING:
                raise
    for entry, graphics in listed:
        used = None if entry.usedGpuMemory is None else -(-int(entry.usedGpuMemory) // MIB)
        found.setdefault(entry.pid, (used, graphics))
    for pid, (used, graphics) in sorted(found.items()):
        yield GpuProcess(pid, _command(pid), used, graphics)


def _listed(call: Callable[[Any], list[Any]], handle: Any) -> list[Any]:
    """Again when the list grew between the question for its length and the list itself."""
    for _ in range(3):
        try:
            return call(handle)
        except pynvml.NVMLError as error:
            if error.value != pynvml.NVML_ERROR_INSUFFICIENT_SIZE:
                raise
    return call(handle)


def _command(pid: int) -> str:
    argv = proc.argv(pid)
    if not argv:
        return proc.title(pid) if proc.stat(pid) else ""
    text = " ".join(shlex.join(redact_argv(argv)).split())
    return text if len(text) <= _COMMAND_LIMIT else f"{text[:_COMMAND_LIMIT]}..."


def _try(call: Callable[..., Any], *args: Any, default: Any) -> Any:
    """For what is good to know: `default` where the machine does not tell."""
    try:
        return call(*args)
    except (pynvml.NVMLError, UnicodeDecodeError):
        return default


def _text(error: Any) -> str:
    return _REASONS.get(error.value) or f"NVML says: {error}"
