"""What the log of SGLang's prefill and decode nodes says of single requests' KV on its way between them.

`--enable-request-time-stats-logging` has a line for each request, with the id that the client gave it.
"""

import re
from collections.abc import Iterable
from dataclasses import replace

from harness.engines.base import Transfer

MIB = 1 << 20
_STATS = re.compile(
    r"ReqTimeStats\(rid=(?P<id>\S+?), (?:bootstrap_room=(?P<room>\d+), )?input_len=\d+.*?"
    r"type=(?P<type>prefill|decode)\): (?P<rest>.*)"
)
_SIZE = re.compile(r"\btransfer_total=(?P<mib>[\d.]+) MB")
_TIME = re.compile(r"\btransfer_duration=(?P<ms>[\d.]+)ms")
_FAILED = re.compile(
    r"(?P<what>(?:Prefill|Decode) (?:transfer|bootstrap|handshake) failed for request "
    r".*?rid='(?P<id>[^']+)'.*)"
)
WARM_UP = "0"  # the room of requests that a node sends to itself: nothing is moved for them
MAX_WORDS = 300


def transfers(lines: Iterable[tuple[int, str]]) -> dict[str, Transfer]:
    """By the request's id. A decode node tells how long it waited for the KV, a prefill node its size."""
    found: dict[str, Transfer] = {}
    for number, line in lines:
        if match := _STATS.search(line):
            if match["room"] != WARM_UP:
                found[match["id"]] = replace(_told(number, match["rest"]), errors=_errors(found, match["id"]))
        elif match := _FAILED.search(line):
            errors = (*_errors(found, match["id"]), match["what"][:MAX_WORDS])
            found[match["id"]] = replace(found.get(match["id"], Transfer()), errors=errors, line=number)
    return found


def _told(number: int, text: str) -> Transfer:
    size, time = _SIZE.search(text), _TIME.search(text)
    return Transfer(
        size=float(size["mib"]) * MIB if size else None,
        seconds=float(time["ms"]) / 1000 if time else None,
        line=number,
    )


def _errors(found: dict[str, Transfer], name: str) -> tuple[str, ...]:
    return found[name].errors if name in found else ()
