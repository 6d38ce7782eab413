"""After the stop: is everything really free again? What is not is a finding of its own."""

import time
from collections.abc import Callable, Collection, Sequence

from harness.deploy.server import RunningServer
from harness.engines.base import Traces
from harness.findings import Code, Finding
from harness.host import strays
from harness.host.ports import listener, still_bound
from harness.host.shm import Leftovers, ShmSnapshot, leftovers, remove, snapshot, sysv_creator, sysv_id

SETTLE_S = 5.0
POLL_S = 0.1
UNATTRIBUTED_S = 1.0


def verify_released(
    servers: Sequence[RunningServer],
    before: ShmSnapshot,
    used: Collection[str],
    foreign: Callable[[Collection[str]], Collection[str]] = lambda _: (),
) -> list[Finding]:
    """Processes gone, ports bindable, shared memory as `before`; `used` names what the servers had mapped,
    `foreign` picks those that are known to be others'.

    Waits a few seconds for the kernel to settle. Shared memory, files and sockets that are surely the lane's
    own are removed; what may be somebody else's is only told.
    """
    findings: list[Finding] = []
    for server in servers:
        ports = list(server.launch.ports.values())
        deadline = time.monotonic() + SETTLE_S
        while time.monotonic() < deadline and (server.process.members() or still_bound(ports)):
            time.sleep(POLL_S)
        for process in server.process.members():
            message = f"process {process.pid} of {server.role} is still alive after SIGKILL"
            findings.append(Finding(code=Code.RELEASE_PROCESS, message=message, where=f"pid {process.pid}"))
        for port in still_bound(ports):
            holder = listener(port)
            who = f"pid {holder.pid} ({holder.command})" if holder else "nobody that can be seen"
            message = f"port {port} of {server.role} cannot be bound again; it is held by {who}"
            findings.append(Finding(code=Code.RELEASE_PORT, message=message, where=f"port {port}"))
    pids = _pids(servers)
    traces = [server.engine.traces(server.log) for server in servers]
    owns = _owner_of(pids, traces, used)
    left = _claimed(leftovers(before, pids, used), owns)
    if left.unattributed:  # other programs' names live for moments: only what stays is worth a note
        time.sleep(UNATTRIBUTED_S)
        left = _claimed(leftovers(before, pids, used), owns)
        others = foreign(left.unattributed)
        left = Leftovers(left.ours, tuple(name for name in left.unattributed if name not in others))
    return [*findings, *_shared_memory(left), *_strays(traces)]


def owner_of(servers: Sequence[RunningServer], used: Collection[str]) -> Callable[[str], bool]:
    """Tells whether a name of shared memory is one of these servers', who may still live; `used` names what
    they had mapped."""
    return _owner_of(_pids(servers), [server.engine.traces(server.log) for server in servers], used)


def _pids(servers: Sequence[RunningServer]) -> set[int]:
    return {pid for server in servers for pid in server.process.seen_pids}


def _owner_of(
    pids: Collection[int], traces: Sequence[Traces], used: Collection[str]
) -> Callable[[str], bool]:
    segments = {number for trace in traces for number in trace.sysv_ids}

    def owns(name: str) -> bool:
        seen = name in used or sysv_id(name) in segments or sysv_creator(name) in pids
        return seen or any(trace.owns(name) for trace in traces)

    return owns


def _claimed(left: Leftovers, owns: Callable[[str], bool]) -> Leftovers:
    """Names that were never seen in use, but carry a server's own id."""
    mine = [name for name in left.unattributed if owns(name)]
    return Leftovers((*left.ours, *mine), tuple(name for name in left.unattributed if name not in mine))


def _strays(traces: Sequence[Traces]) -> list[Finding]:
    def owned(path: str) -> bool:
        return any(trace.owns(path) for trace in traces)

    found = strays.strays(owned)
    strays.remove(found)
    left = strays.strays(owned)
    return [
        Finding(
            code=Code.RELEASE_FILES if path in left else Code.FILES_REMOVED,
            message=f"this lane left {path}; " + ("it cannot be removed" if path in left else "removed"),
            where=path,
        )
        for path in found
    ]


def _shared_memory(left: Leftovers) -> list[Finding]:
    findings = []
    remove(left.ours)
    remaining = snapshot()
    for name in left.ours:
        gone = name not in remaining
        message = f"this lane left shared memory {name}; " + ("removed" if gone else "it cannot be removed")
        code = Code.SHM_REMOVED if gone else Code.RELEASE_SHM
        findings.append(Finding(code=code, message=message, where=name))
    for name in left.unattributed:
        message = f"shared memory {name} is new and unused; it may be this lane's or another program's"
        findings.append(Finding(code=Code.SHM_UNATTRIBUTED, message=message, where=name))
    return findings
