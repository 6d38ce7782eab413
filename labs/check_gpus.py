#!/usr/bin/env python3
"""Show what the harness sees of this machine's GPUs; lease the idle ones for a moment, verify their release.

    .venv/bin/python labs/check_gpus.py

Starts nothing on the GPUs. Exit code 1 when something is not as it should be.
"""

import sys

from harness.host.gpu import GpuBook, busy_reason, visible
from harness.host.gpu.nvml import NvmlSource


def main() -> int:
    source = NvmlSource()
    book = GpuBook(source, "labs/check_gpus.py")
    found = book.inventory
    print(f"{found.summary()} ({found.source})", *found.notes, sep="\n")
    for gpu in found.gpus:
        usage = source.usage(gpu)
        links = " ".join(found.link(gpu, other).name for other in found.gpus if other is not gpu)
        print(f"{gpu}: {gpu.family}, {gpu.uuid}, bus {gpu.bus_id}, NUMA node {gpu.numa}, CUDA {gpu.ordinal}")
        print(f"  {usage.used_mib} of {gpu.memory_mib} MiB used; {busy_reason(gpu, usage) or 'idle'}")
        print(f"  links: {links or 'none'}")
    idle = sum(not book.in_the_way(gpu) for gpu in found.gpus)
    for count in range(1, idle + 1):
        with book.lease(count, deadline_s=5) as lease:
            findings = book.verify_released(lease, frozenset(), patience_s=1)
            print(f"{count}: {[gpu.index for gpu in lease.gpus]}, {visible(lease.gpus[:1], 'uuid')} ...")
        if findings:
            print(*findings, sep="\n")
            return 1
    return 0 if idle else 1


if __name__ == "__main__":
    sys.exit(main())
