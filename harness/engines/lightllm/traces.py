"""What a LightLLM leaves on its machine when it is killed, told from other servers' by its unique id.

Every start draws a new id, 16 hexadecimal digits and the node's rank; all its names in `/dev/shm` and `/tmp`
carry it. The CPU cache is a System V segment, whose number is in the log.
"""

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from harness.host.logs import clean

_ID = r"[0-9a-f]{16}_(?:\d+|pd_master)"
_STAMP = r"^[A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d \[[^\]\s]+:\d+\] "
_SOCKETS = re.compile(rf"{_STAMP}(?:zmq mode head: |all start args:.*\bzmq_mode\W+)ipc:///tmp/_({_ID})_")
_SEGMENT = re.compile(rf"{_STAMP}Shared memory ID: (\d+)$")
_PLACES = ("/dev/shm", "/tmp")  # noqa: S108 - where LightLLM has them


@dataclass(frozen=True, slots=True)
class LightllmTraces:
    """The unique ids that one server had, and the numbers of its System V segments."""

    unique_ids: frozenset[str]
    sysv_ids: frozenset[int]

    @property
    def patterns(self) -> frozenset[str]:
        """Of its names in `/dev/shm` and `/tmp`."""
        kinds = ("{}_*", "_{}_*", "lightllm_disk_cache_{}")
        return frozenset(kind.format(own) for own in self.unique_ids for kind in kinds)

    def owns(self, path: str) -> bool:
        """Whether a file or socket in `/dev/shm` or `/tmp` is this server's, by its name."""
        place = PurePosixPath(path)
        if str(place.parent) not in _PLACES:
            return False
        return any(fnmatchcase(place.name, pattern) for pattern in self.patterns)


def leftovers_of(log: Path) -> LightllmTraces:
    """From a server's log, which names the id once its arguments are checked and before any child is there. A
    log that is gone, or too short, gives nothing."""
    ids: set[str] = set()
    segments: set[int] = set()
    try:
        with log.open(encoding="utf-8", errors="replace", newline="\n") as file:
            for line in file:
                if "zmq" not in line and "Shared memory" not in line:
                    continue
                text = clean(line)
                if match := _SOCKETS.match(text):
                    ids.add(match[1])
                elif match := _SEGMENT.match(text):
                    segments.add(int(match[1]))
    except OSError:
        pass  # nothing is known, so nothing is attributed
    return LightllmTraces(frozenset(ids), frozenset(segments))
