"""The command line: the only place that prints for people, and the only one that exits.

Commands import what they need when they run, so that `harness --help` and completion stay quick.
"""

import sys


def main() -> None:
    """Entry point of the program. Importing it takes a moment in which an interrupt is no error either."""
    try:
        from harness.cli.app import main as run
    except KeyboardInterrupt:
        sys.stderr.write("harness: interrupted; nothing was started\n")
        sys.exit(130)
    run()
