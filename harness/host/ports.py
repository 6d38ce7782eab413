"""Ports for servers: leased in blocks that no other harness process on this machine will touch."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import HarnessError
from harness.findings import Code
from harness.host import locks
from harness.host.sockets import Listener, bindable, listener, still_bound

__all__ = ["Listener", "PortBook", "PortLease", "listener", "still_bound"]

PORTS = range(20000, 30000)
BLOCK = 16
# LightLLM's prefill/decode processes take ports here by themselves, a hundred per GPU.
TAKEN_BY_LIGHTLLM = range(30000, 32768)
_IPV4 = Path("/proc/sys/net/ipv4")


@dataclass(slots=True)
class PortLease(locks.Holding):
    """Ports by name, ours until released; a context manager."""

    ports: dict[str, int]
    _locks: list[locks.Lock] = field(default_factory=list, repr=False)


class PortBook:
    """The ports of one run: never the same one twice, so that nobody talks to an earlier server.

    `purpose` is what other harness processes read about a block that this run holds.
    """

    def __init__(self, purpose: str = "", ports: range = PORTS) -> None:
        self._purpose = purpose
        self._range = ports
        self._used: set[int] = set()
        self._mutex = threading.Lock()

    def lease(self, names: Sequence[str]) -> PortLease:
        """One port per name, in order, bindable at this moment. Blocks are locked across processes, so two
        harness runs never get the same port.

        Raises HarnessError (PORT_TAKEN) when the range is exhausted.
        """
        _require_distinct(names)
        lease = PortLease({})
        with self._mutex:
            try:
                for block, usable in self._blocks():
                    if len(lease.ports) == len(names):
                        break
                    lock = locks.try_lock(block, self._purpose)
                    if lock is None:
                        continue
                    if _fill(lease.ports, names, usable):
                        lease.keep(lock)
                    else:
                        lock.release()
                self._require_all(lease.ports, names)
            except BaseException:
                lease.release()
                raise
            self._used.update(lease.ports.values())
        return lease

    def peek(self, names: Sequence[str]) -> dict[str, int]:
        """What `lease` would give now; nothing is locked or used up."""
        _require_distinct(names)
        ports: dict[str, int] = {}
        with self._mutex:
            for block, usable in self._blocks():
                if len(ports) == len(names):
                    break
                if not locks.is_held(block):
                    _fill(ports, names, usable)
            self._require_all(ports, names)
        return ports

    def _blocks(self) -> Iterator[tuple[str, list[int]]]:
        """The lock's name of each block, and those of its ports that may be leased at all."""
        kernel, reserved = _ephemeral(), _reserved()
        for first in range(self._range.start, self._range.stop, BLOCK):
            usable = [
                port
                for port in range(first, min(first + BLOCK, self._range.stop))
                if port not in self._used
                and port not in TAKEN_BY_LIGHTLLM
                and (port not in kernel or any(port in part for part in reserved))
            ]
            if usable:
                yield f"ports-{first}", usable

    def _require_all(self, ports: dict[str, int], names: Sequence[str]) -> None:
        if len(ports) == len(names):
            return
        held = [block for block, _ in self._blocks() if locks.is_held(block)]
        owners = sorted({locks.holder(block) for block in held})
        raise HarnessError(
            f"no {len(names)} free ports between {self._range.start} and {self._range.stop - 1}: "
            f"{len(ports)} found, {len(held)} blocks of {BLOCK} held by other harness processes",
            cause="; ".join(owners[:5])
            or "the ports are in use, used up by this run, or inside the range "
            "that the kernel gives to outgoing connections (net.ipv4.ip_local_port_range)",
            fix="end what holds them, or keep the kernel away: "
            f"sysctl net.ipv4.ip_local_reserved_ports={self._range.start}-{self._range.stop - 1}",
            code=Code.PORT_TAKEN,
        )


def _require_distinct(names: Sequence[str]) -> None:
    if len(set(names)) != len(names):
        raise ValueError(f"port names are not distinct: {', '.join(names)}")


def _fill(ports: dict[str, int], names: Sequence[str], usable: Sequence[int]) -> bool:
    """Give the names that still lack a port one of the usable ones, as far as they go; False: not one."""
    free = (port for port in usable if bindable(port, reuse=False))
    given = dict(zip(names[len(ports) :], free, strict=False))
    ports.update(given)
    return bool(given)


def _ephemeral() -> range:
    """What the kernel may give to any outgoing connection at any moment."""
    low, high = map(int, (_IPV4 / "ip_local_port_range").read_text().split())
    return range(low, high + 1)


def _reserved() -> list[range]:
    """Ports that an administrator took out of the ephemeral range: `20000-29999,31000`."""
    try:
        text = (_IPV4 / "ip_local_reserved_ports").read_text().strip()
    except OSError:
        return []
    parts = [part.partition("-") for part in text.split(",") if part]
    return [range(int(first), int(last or first) + 1) for first, _, last in parts]
