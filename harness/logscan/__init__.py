"""Reading servers' logs while they grow."""

from harness.logscan.scanner import FatalLine, LogScanner, Phase

__all__ = ["FatalLine", "LogScanner", "Phase"]
