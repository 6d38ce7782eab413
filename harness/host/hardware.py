"""What the machine's processor can do."""

from functools import cache
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


@cache
def cpu_features() -> frozenset[str]:
    """Instruction-set flags of the first core as the kernel names them (`avx2`, `avx512f`, `amx_tile`)."""
    return frozenset(_field("flags").split() or _field("Features").split())


@cache
def cpu_model() -> str:
    """The processor's name, `unknown` where the kernel does not tell."""
    return _field("model name") or "unknown"


def _field(name: str) -> str:
    try:
        lines = CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next(
        (line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == name), ""
    )
