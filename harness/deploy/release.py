"""After the stop: is everything really free again? What is not is a finding of its own."""

import time
from collections.abc import Collection, Sequence

from harness.deploy.server import RunningServer
from harness.findings import Code, Finding
from harness.host.ports import listener, still_bound
from harness.host.shm import ShmSnapshot, leftovers, remove, snapshot

SETTLE_S = 5.0
POLL_S = 0.1
UNATTRIBUTED_S = 1.0


def verify_released(
    servers: Sequence[RunningServer], before: ShmSnapshot, used: Collection[str]
) -> list[Finding]:
    """Processes gone, ports bindable, shared memory as `before`; `used` names what the servers had mapped.

    Waits a few seconds for the kernel to settle. Shared memory that is surely the lane's own is removed.
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
    pids = {pid for server in servers for pid in server.process.seen_pids}
    left = leftovers(before, pids, used)
    if left.unattributed:  # other programs' names live for moments: only what stays is worth a note
        time.sleep(UNATTRIBUTED_S)
        left = leftovers(before, pids, used)
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
