"""Who listens on a TCP port of this machine, and whether the port can be bound.

Read from /proc/net: one small file, where asking every process for its connections costs far more.
"""

import errno
import ipaddress
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from harness.host import proc
from harness.host.redact import redact_argv

LOOPBACK = "127.0.0.1"
_WILDCARDS = ("0.0.0.0", "::")  # noqa: S104 - compared with, never bound for service
_LISTEN = "0A"


class Listening(NamedTuple):
    """A listening socket. `inode` is what /proc/<pid>/fd shows for it."""

    address: str
    port: int
    uid: int
    inode: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Listener:
    """Who listens on a port. `pid` is None, and `command` says so in words, where that may not be seen:
    another user's process, or one in another container."""

    port: int
    pid: int | None
    command: str
    uid: int
    address: str

    def __str__(self) -> str:
        who = self.command if self.pid is None else f"pid {self.pid} ({self.command})"
        return f"{who} on {self.address}:{self.port}"


def listening(port: int, host: str = LOOPBACK) -> list[Listening]:
    """The sockets that a client of `host` could reach at the port, wildcard ones included."""
    found = (entry for name in ("tcp", "tcp6") for entry in _table(name, port))
    return [entry for entry in found if entry.address in (host, *_WILDCARDS)]


def listener(port: int) -> Listener | None:
    """Who answers on 127.0.0.1 at this port; None when nobody listens."""
    entries = listening(port)
    if not entries:
        return None
    entry = min(entries, key=lambda each: each.address in _WILDCARDS)  # the exact address wins a connection
    pid = next((pid for pid in proc.pids() if entry.inode in proc.socket_inodes(pid)), None)
    if pid is None:
        command = f"a process of uid {entry.uid} that may not be looked at from here"
    else:
        command = " ".join(redact_argv(proc.argv(pid))) or proc.title(pid)
    return Listener(port=port, pid=pid, command=command, uid=entry.uid, address=entry.address)


def bindable(port: int, *, reuse: bool) -> bool:
    """Whether a server could listen on the port, on all addresses and on loopback alone.

    Without `reuse` (SO_REUSEADDR) connections in TIME_WAIT count as taken, as they do for a server that
    tests its ports that way.
    """
    places = [(socket.AF_INET, "0.0.0.0"), (socket.AF_INET, LOOPBACK)]  # noqa: S104 - a test, closed at once
    if socket.has_ipv6:
        places.append((socket.AF_INET6, "::"))
    return all(_binds(family, host, port, reuse=reuse) for family, host in places)


def still_bound(ports: Iterable[int]) -> list[int]:
    """Those of the ports that a new server could not listen on. TIME_WAIT alone does not count."""
    return [port for port in ports if not bindable(port, reuse=True)]


def _binds(family: socket.AddressFamily, host: str, port: int, *, reuse: bool) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if reuse:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            return False
        if family == socket.AF_INET6 and error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
            return True  # a machine without IPv6 has nobody listening there
        raise
    return True


def _table(name: str, port: int) -> Iterable[Listening]:
    try:
        lines = Path(f"/proc/net/{name}").read_text().splitlines()
    except OSError:  # no IPv6 on this machine
        return
    ending = f":{port:04X}"
    for line in lines:
        if ending not in line:  # thousands of connections, asked many times a second
            continue
        fields = line.split()
        host, _, number = fields[1].partition(":")
        if fields[3] == _LISTEN and int(number, 16) == port:
            yield Listening(_address(host), port, int(fields[7]), int(fields[9]))


def _address(text: str) -> str:
    """The kernel prints an address as 32-bit words in the machine's own byte order."""
    words = [int(text[start : start + 8], 16) for start in range(0, len(text), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    address = ipaddress.ip_address(packed)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return str(address)
