"""GPUs that are held, and how they are let go."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.host import locks
from harness.host.gpu.inventory import Gpu


@dataclass(slots=True)
class GpuLease(locks.Holding):
    """GPUs by index, ours until released; a context manager.

    `before` is the memory in MiB that each UUID showed when it was leased. `measurable` is False on a
    machine that is only described.
    """

    gpus: tuple[Gpu, ...]
    before: Mapping[str, int] = field(default_factory=dict)
    measurable: bool = True
    _locks: list[locks.Lock] = field(default_factory=list, repr=False)
