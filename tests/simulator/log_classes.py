"""The simulator's log, line by line, by the patterns of what the real server writes."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

PATTERNS = json.loads((Path(__file__).parent / "data/lightllm-log-patterns.json").read_text())
PREFIX = re.compile(PATTERNS["prefix"])
# Lines that the real server writes and for which the harness has no use.
UNLISTED = (
    r"zmq mode head: |Loading model weights with |the profiled pool holds |free a batch state:"
    r"|radix \w+ token num |mem manager total size |dp_i 0 (?!paused)|detoken release req id "
    r"|Received signal to shutdown|Graceful shutdown completed|All processes have been forcefully"
    r"|client \{.*\} removed"
)


def plain(log: str) -> Iterator[str]:
    for line in log.split("\n"):
        text = re.sub(r"\x1b\[[\d;]*m", "", line.rstrip("\r"))
        if text:
            yield text


def classes(log: str) -> dict[str, list[str]]:
    """Lines by the name of their pattern. A line that nothing knows is a failure."""
    found: dict[str, list[str]] = {}
    for line in plain(log):
        names = [name for name, pattern in PATTERNS.items() if name != "prefix" and re.search(pattern, line)]
        assert names or re.search(UNLISTED, line), f"no pattern knows: {line}"
        if "hypercorn_ready" not in names and "Loading model weights" not in line:
            assert PREFIX.match(line), line
        for name in names:
            found.setdefault(name, []).append(line)
    return found
