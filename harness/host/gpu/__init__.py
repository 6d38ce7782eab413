"""GPUs: what there are, who may have which, and whether they came back. Start with `book.py`."""

from harness.host.gpu.book import GpuBook
from harness.host.gpu.inventory import (
    Gpu,
    GpuProcess,
    GpuSource,
    Inventory,
    Link,
    Usage,
    busy_reason,
)
from harness.host.gpu.lease import GpuLease
from harness.host.gpu.visible import cuda_names, visible

__all__ = [
    "Gpu",
    "GpuBook",
    "GpuLease",
    "GpuProcess",
    "GpuSource",
    "Inventory",
    "Link",
    "Usage",
    "busy_reason",
    "cuda_names",
    "visible",
]
