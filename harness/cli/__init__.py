"""The command line: the only place that prints for people, and the only one that exits.

Commands import what they need when they run, so that `harness --help` and completion stay quick.
"""

from harness.cli.app import main

__all__ = ["main"]
