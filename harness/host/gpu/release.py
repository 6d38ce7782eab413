"""Are GPUs as they were before a lane? The driver gives memory back late, after a kill by many seconds."""

import time
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from harness.findings import Code, Finding
from harness.host.gpu.inventory import Gpu, GpuProcess, GpuSource, Usage

POLL_S = 0.25
# The driver's own share moves by some MiB once a GPU was used; a CUDA context is 300 MiB and more.
TOLERANCE_MIB = 256


class Unreleased(NamedTuple):
    """What is still there: a sentence, and the code it is a finding of."""

    text: str
    code: Code = Code.RELEASE_GPU


def wait(
    source: GpuSource,
    gpus: Sequence[Gpu],
    pids: Collection[int],
    before: Mapping[str, int],
    patience_s: float,
) -> dict[Gpu, Unreleased]:
    """Look until every GPU is as `before` (MiB by UUID) or the patience is over; what is not, and why."""
    deadline = time.monotonic() + patience_s
    waiting = list(gpus)
    while True:
        found = {gpu: _still(source.usage(gpu), pids, before.get(gpu.uuid, 0)) for gpu in waiting}
        remaining = {gpu: why for gpu, why in found.items() if why is not None}
        if not remaining or time.monotonic() >= deadline:
            return remaining
        waiting = list(remaining)
        time.sleep(min(POLL_S, max(0.0, deadline - time.monotonic())))


def findings(gpu: Gpu, why: Unreleased, patience_s: float) -> list[Finding]:
    """The fault, and that it costs this run a GPU."""
    return [
        Finding(code=why.code, message=f"{gpu} {why.text} {patience_s:g} s after the stop", where=gpu.uuid),
        Finding(
            code=Code.GPU_QUARANTINED,
            message=f"{gpu} is not used again in this run; look at it with nvidia-smi before the next one",
            where=gpu.uuid,
        ),
    ]


def _still(usage: Usage, pids: Collection[int], before_mib: int) -> Unreleased | None:
    """Any computing process counts: one that slipped through all nets looks like a stranger's."""
    if usage.unreadable:
        return Unreleased(f"cannot be read ({usage.unreadable})", Code.GPU_UNREADABLE)
    there = [process for process in usage.processes if process.pid in pids or not process.graphics]
    if not there and usage.used_mib <= before_mib + TOLERANCE_MIB:
        return None
    who = ", ".join(_named(process, pids) for process in there) or "no process that can be seen"
    return Unreleased(
        f"still holds {usage.used_mib:,} MiB ({before_mib:,} MiB before the lane), used by {who},"
    )


def _named(process: GpuProcess, pids: Collection[int]) -> str:
    return f"{process}, {'of this lane' if process.pid in pids else 'not seen in this lane'}"
