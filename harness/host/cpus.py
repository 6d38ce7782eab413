"""CPU cores for servers: whole ones, so that two servers never fight and spoil each other's times."""

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import HarnessError
from harness.host import locks

POLL_S = 0.1
_GATE_PATIENCE_S = 5.0
_CPU = Path("/sys/devices/system/cpu")


@dataclass(slots=True)
class CpuLease(locks.Holding):
    """Logical CPU numbers, ours until released; a context manager. `note` is for people, mostly empty."""

    cpus: tuple[int, ...]
    note: str = ""
    _locks: list[locks.Lock] = field(default_factory=list, repr=False)


def cores() -> dict[int, tuple[int, ...]]:
    """The physical cores this process may run on: the core's number to its usable logical CPUs.

    A core is numbered by its first hardware thread, whoever may use that one, so that processes with
    different affinity masks lock the same slot for the same core.
    """
    found: dict[int, list[int]] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        found.setdefault(_first_sibling(cpu), []).append(cpu)
    return {core: tuple(threads) for core, threads in sorted(found.items())}


def lease_cpus(
    count: int | None,
    wait_s: float,
    purpose: str = "",
    pulse: Callable[[], None] = lambda: None,
    waiting: Callable[[str], None] = lambda _: None,
) -> CpuLease:
    """`count` whole cores that no other server of any harness process on this machine has.

    None leases nothing: the server runs where the kernel puts it. More than exist means all that exist, and
    the lease's note says so. Waits up to `wait_s` seconds, calling `pulse` meanwhile, which may raise, and
    `waiting` once with what is awaited; raises HarnessError naming the holders.
    """
    if count is None:
        return CpuLease(())
    if count < 1:
        raise ValueError(f"cannot lease {count} cores")
    existing = cores()
    wanted = min(count, len(existing))
    note = ""
    if wanted < count:
        note = f"{count} CPU cores asked for, {wanted} exist for this process: all of them are leased"
    deadline = time.monotonic() + wait_s
    told = False
    while (held := _take(existing, wanted, purpose)) is None:
        if time.monotonic() >= deadline:
            raise _busy(existing, wanted, wait_s)
        pulse()
        if not told and (holders := _holders(existing)):
            waiting(f"waiting for {wanted} CPU core(s): {_named(holders)}")
            told = True
        time.sleep(min(POLL_S, max(0.0, deadline - time.monotonic())))
    cpus = tuple(sorted(cpu for lock in held for cpu in existing[_core_of(lock)]))
    return CpuLease(cpus, note, held)


def _take(existing: dict[int, tuple[int, ...]], wanted: int, purpose: str) -> list[locks.Lock] | None:
    """All or nothing, one process at a time: two that each took half would wait for each other for ever."""
    gate = locks.wait_lock("cpu-gate", time.monotonic() + _GATE_PATIENCE_S, purpose)
    if gate is None:
        return None
    held: list[locks.Lock] = []
    with gate:
        try:
            for core in existing:
                lock = locks.try_lock(_lock_name(core), purpose)
                if lock is not None:
                    held.append(lock)
                if len(held) == wanted:
                    return held
        except BaseException:
            _release(held)
            raise
        _release(held)
    return None


def _release(held: list[locks.Lock]) -> None:
    for lock in held:
        lock.release()


def _busy(existing: dict[int, tuple[int, ...]], wanted: int, wait_s: float) -> HarnessError:
    holders = _holders(existing)
    free = len(existing) - len(holders)
    return HarnessError(
        f"{wanted} free CPU cores were not to be had within {wait_s:g} s: {free} of {len(existing)} are free",
        cause=_named(holders),
        fix="wait for that run to end, or ask for fewer cores (`cpus` of the server in the scenario)",
    )


def _holders(existing: Iterable[int]) -> dict[int, str]:
    return {core: locks.holder(_lock_name(core)) for core in existing if locks.is_held(_lock_name(core))}


def _named(holders: Mapping[int, str]) -> str:
    return "; ".join(f"core {core} is held by {who}" for core, who in holders.items())


def _lock_name(core: int) -> str:
    return f"cpu-{core}"


def _core_of(lock: locks.Lock) -> int:
    return int(lock.name.removeprefix("cpu-"))


def _first_sibling(cpu: int) -> int:
    """The kernel writes `0,64` or `0-1`; a kernel without topology makes each CPU a core of its own."""
    try:
        text = (_CPU / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text()
    except OSError:
        return cpu
    return int(text.replace("-", ",").split(",")[0])
