"""GPUs that are held, and how they are let go."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from harness.host import locks
from harness.host.gpu.inventory import Gpu


@dataclass(slots=True)
class GpuLease:
    """GPUs by index, ours until released; a context manager.

    `before` is the memory in MiB that each UUID showed when it was leased. `measurable` is False on a
    machine that is only described. `verified` becomes True when `GpuBook.verify_released` found everything
    given back.
    """

    gpus: tuple[Gpu, ...]
    before: Mapping[str, int] = field(default_factory=dict)
    measurable: bool = True
    verified: bool = False
    _locks: list[locks.Lock] = field(default_factory=list, repr=False)

    def keep(self, lock: locks.Lock) -> None:
        """Hold this lock for as long as the lease lasts."""
        self._locks.append(lock)

    def release(self) -> None:
        while self._locks:
            self._locks.pop().release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
