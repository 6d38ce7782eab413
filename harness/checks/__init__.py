"""One file per check. The dict is the whole plug-in system."""

from harness.checks.base import Check
from harness.checks.cache_boundary import CacheBoundary
from harness.checks.gsm8k import Gsm8k

CHECKS: dict[str, Check] = {check.kind: check for check in (Gsm8k(), CacheBoundary())}
