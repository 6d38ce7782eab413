"""Printing on standard output. A reader that has gone or a full disk must not change the exit code."""

import os
import sys


def say(text: str) -> None:
    """Print `text` as it is, with a line end if it has none."""
    try:
        sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
        sys.stdout.flush()
    except (OSError, ValueError, AttributeError):  # gone, full, or closed from the start
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        except OSError:
            return
