"""GPUs for lanes: leased in close groups, only while idle, and verified when they come back."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from harness.errors import ConfigError, HarnessError
from harness.findings import Code, Finding
from harness.host import locks
from harness.host.gpu import release
from harness.host.gpu.inventory import (
    Gpu,
    GpuSource,
    Inventory,
    Link,
    Usage,
    busy_reason,
    count_by_model,
)
from harness.host.gpu.lease import GpuLease
from harness.host.gpu.topology import choose

POLL_S = 0.5
PATIENCE_S = 60.0  # the driver may take long to give back the memory of a killed process
_GATE = "gpu-gate"
_GATE_PATIENCE_S = 5.0


def _any(_: Gpu) -> bool:
    return True


def _go_on() -> None:
    pass


@dataclass(frozen=True, slots=True)
class _Wish:
    count: int
    suitable: Callable[[Gpu], bool]
    link: Link


class GpuBook:
    """The GPUs of one run, for any number of threads. `purpose` is what other harness processes read of it.

    `suitable` says which GPUs may be leased, `link` how close the members of a group must be. Where the
    machine has enough suitable GPUs of one model, a group never mixes models.
    """

    def __init__(self, source: GpuSource, purpose: str = "") -> None:
        self._source = source
        self._purpose = purpose
        self._mutex = threading.Lock()
        self._quarantined: dict[str, str] = {}
        self._inventory: Inventory | None = None

    @property
    def inventory(self) -> Inventory:
        """Read once per run."""
        with self._mutex:
            if self._inventory is None:
                self._inventory = self._source.inventory()
            return self._inventory

    def lease(
        self,
        count: int,
        *,
        deadline_s: float,
        stop: Callable[[], None] = _go_on,
        suitable: Callable[[Gpu], bool] = _any,
        link: Link = Link.UNKNOWN,
    ) -> GpuLease:
        """`count` idle GPUs that no other harness process has; waits for them, `deadline_s` seconds at most.

        All or nothing: while it waits it holds none. `stop` is called at every look and ends the wait by
        raising. Raises ConfigError when the machine has no such group at all, and HarnessError (GPU_BUSY)
        that names each GPU and what is in the way, at the deadline or as soon as quarantines leave too few.
        """
        wish = _Wish(count, suitable, link)
        self._require_group(wish)
        deadline = time.monotonic() + deadline_s
        while True:
            stop()
            lease = self.try_lease(count, suitable=suitable, link=link)
            if lease is not None:
                return lease
            left = deadline - time.monotonic()
            hopeless = not self._group(self._candidates(wish), wish)
            if left <= 0 or hopeless:
                raise self._busy(wish, deadline_s, hopeless=hopeless)
            time.sleep(min(POLL_S, left))

    def try_lease(
        self, count: int, *, suitable: Callable[[Gpu], bool] = _any, link: Link = Link.UNKNOWN
    ) -> GpuLease | None:
        """The same without waiting: None when no group can be had now. `count` 0 is a lease of nothing."""
        if count == 0:
            return GpuLease((), measurable=self.inventory.measurable)
        # One process at a time: two that each took half of what they need would wait for each other for ever.
        gate = locks.wait_lock(_GATE, time.monotonic() + _GATE_PATIENCE_S, self._purpose)
        if gate is None:
            return None
        with gate:
            return self._take(_Wish(count, suitable, link))

    def peek(
        self,
        count: int,
        *,
        suitable: Callable[[Gpu], bool] = _any,
        link: Link = Link.UNKNOWN,
    ) -> tuple[Gpu, ...]:
        """For plans: what `lease` would give now, else what it would give on an idle machine; empty when
        there is no such group. Nothing is locked."""
        wish = _Wish(count, suitable, link)
        candidates = self._candidates(wish)
        idle = [gpu for gpu in candidates if not self.in_the_way(gpu)]
        return self._group(idle, wish) or self._group(candidates, wish)

    def in_the_way(self, gpu: Gpu) -> str:
        """Why the GPU could not be leased at this moment; empty when it could."""
        if why := self._quarantined.get(gpu.uuid, ""):
            return f"quarantined: {why}"
        name = _lock_name(gpu)
        if locks.is_held(name):
            return f"locked by {locks.holder(name)}"
        return busy_reason(gpu, self._source.usage(gpu))

    def quarantine(self, gpu: Gpu, why: str) -> None:
        """Lease the GPU no more in this run."""
        with self._mutex:
            self._quarantined.setdefault(gpu.uuid, why)

    def verify_released(
        self,
        lease: GpuLease,
        pids: frozenset[int],
        before: Mapping[str, int] | None = None,
        *,
        patience_s: float = PATIENCE_S,
    ) -> list[Finding]:
        """After the stop of the lane's servers, before the lease is released: is each GPU as it was?

        `pids` are all processes the lane ever had; `before` is the lease's own unless given. Released means
        no computing process, and memory within 256 MiB of before. Looks again until so, `patience_s` seconds
        at most for all GPUs together. A GPU that is not released is a finding (RELEASE_GPU; GPU_UNREADABLE
        when it cannot be read) and is quarantined for the rest of the run (GPU_QUARANTINED). A described
        machine cannot be verified: no finding.
        """
        if not lease.measurable:
            return []
        memory = lease.before if before is None else before
        remaining = release.wait(self._source, lease.gpus, pids, memory, patience_s)
        findings: list[Finding] = []
        for gpu, why in remaining.items():
            self.quarantine(gpu, why.text)
            findings += release.findings(gpu, why, patience_s)
        return findings

    def _take(self, wish: _Wish) -> GpuLease | None:
        """Idle now, and locked at once: between the two nobody else leases, since the gate is held."""
        usage: dict[str, Usage] = {}
        free = []
        for gpu in self._candidates(wish):
            if not locks.is_held(_lock_name(gpu)):
                usage[gpu.uuid] = self._source.usage(gpu)
                free += [] if busy_reason(gpu, usage[gpu.uuid]) else [gpu]
        gpus = self._group(free, wish)
        if not gpus:
            return None
        before = {gpu.uuid: usage[gpu.uuid].used_mib for gpu in gpus}
        lease = GpuLease(gpus, before, self.inventory.measurable)
        try:
            for gpu in gpus:
                lock = locks.try_lock(_lock_name(gpu), self._purpose)
                if lock is None:  # somebody asks at this very moment whether it is held
                    lease.release()
                    return None
                lease.keep(lock)
        except BaseException:
            lease.release()
            raise
        return lease

    def _candidates(self, wish: _Wish) -> list[Gpu]:
        with self._mutex:
            quarantined = set(self._quarantined)
        return [gpu for gpu in self.inventory.gpus if gpu.uuid not in quarantined and wish.suitable(gpu)]

    def _group(self, gpus: Sequence[Gpu], wish: _Wish) -> tuple[Gpu, ...]:
        machine = Counter(gpu.name for gpu in self.inventory.gpus if wish.suitable(gpu))
        models = [name for name, number in machine.items() if number >= wish.count]
        pools = [[gpu for gpu in gpus if gpu.name == model] for model in models] or [list(gpus)]
        groups = (choose(self.inventory, pool, wish.count, wish.link) for pool in pools)
        return next((group for group in groups if group), ())

    def _require_group(self, wish: _Wish) -> None:
        fitting = [gpu for gpu in self.inventory.gpus if wish.suitable(gpu)]
        if wish.count and not self._group(fitting, wish):
            raise ConfigError(
                f"{wish.count} GPUs are asked for; {_instead(self.inventory, fitting, wish)}",
                problems=self.inventory.notes,
                fix="run on another machine, ask for fewer GPUs, or relax the lane's `requires`",
            )

    def _busy(self, wish: _Wish, waited_s: float, *, hopeless: bool) -> HarnessError:
        states = [(gpu, self.in_the_way(gpu)) for gpu in self.inventory.gpus if wish.suitable(gpu)]
        joined = f" joined by {wish.link.name}" if wish.link > Link.UNKNOWN else ""
        when = "will not be free in this run" if hopeless else f"were not to be had within {waited_s:g} s"
        return HarnessError(
            f"{wish.count} idle GPUs{joined} {when}: "
            f"{sum(not why for _, why in states)} of {len(states)} are idle",
            cause="; ".join(f"{gpu}: {why or 'idle'}" for gpu, why in states),
            fix="end what uses them, wait for that run, or ask for fewer GPUs (`gpus` in the scenario)",
            code=Code.GPU_BUSY,
        )


def _instead(inventory: Inventory, fitting: Sequence[Gpu], wish: _Wish) -> str:
    if len(fitting) >= wish.count:
        return f"no {wish.count} of {count_by_model(fitting)} are joined by {wish.link.name}"
    some = (
        f", of which {len(fitting)} meet the lane's conditions" if len(fitting) < len(inventory.gpus) else ""
    )
    return f"this machine has {inventory.summary()}{some} ({inventory.source})"


def _lock_name(gpu: Gpu) -> str:
    return f"gpu-{gpu.uuid.replace('/', '_')}"
