"""One file per check. The dict is the whole plug-in system."""

from harness.checks.base import Check
from harness.checks.gsm8k import Gsm8k

CHECKS: dict[str, Check] = {"gsm8k": Gsm8k()}
