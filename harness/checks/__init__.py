"""One file per check. The dict is the whole plug-in system."""

from harness.checks.accept_length import AcceptLength
from harness.checks.base import Check
from harness.checks.cache_boundary import CacheBoundary
from harness.checks.cpu_reload import CpuReload
from harness.checks.gsm8k import Gsm8k
from harness.checks.pause_resume import PauseResume
from harness.checks.pd_parity import PdParity
from harness.checks.smoke import Smoke

CHECKS: dict[str, Check] = {
    check.kind: check
    for check in (Gsm8k(), CacheBoundary(), Smoke(), AcceptLength(), CpuReload(), PauseResume(), PdParity())
}
