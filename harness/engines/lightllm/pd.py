"""What LightLLM's logs say of prefill/decode disaggregation, request by request.

A master gives every request that it passes on a number of its own; under that, and under no other name, both
nodes log the request. They write a line for each piece of KV that was sent or received, with the tokens
[a, b) that it holds, and one with the outcome of each piece. A model with linear attention has one piece
more, its state, which stands behind the last token: [L, L).
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from harness.engines.base import Transfer
from harness.host.logs import clean

_PREFIX = re.compile(r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]\s]+:\d+\] ")
_TELLING = (" WRITE done ", "trans task ret ", "sub req id", "kv transfer error")
_TASK = r"request_id=(?P<id>\d+), start_kv_index=(?P<a>\d+), end_kv_index=(?P<b>\d+)"
_SENT = re.compile(r"send WRITE done \w* ?notify request_id=(?P<id>\d+) kv=\[(?P<a>\d+),(?P<b>\d+)\)")
_RECEIVED = re.compile(rf"recv WRITE done from prefill: \w+\({_TASK}\b")
_OUTCOME = re.compile(
    rf"trans task ret (?P<word>success|fail):\w+\({_TASK}, has_error=(?P<error>True|False)(?P<rest>.*)"
)
_COST = re.compile(r"\) cost time: (?P<s>[\d.e-]+) ?s(?: read_page_gpu_time: (?P<ms>-?[\d.]+) ms)?")
_WHY = re.compile(r"error_info=(?P<why>'[^']*'|\"[^\"]*\"|\w+)")
_SUB = re.compile(r"pd log gen sub req id (?P<sub>\d+) for main req id (?P<main>\d+)")
_FORCED = re.compile(r"req_id: (?P<id>\d+) (?P<what>forced to finished \(reason=\w+\), kv transfer error)")

Span = tuple[int, int]


@dataclass(slots=True)
class _Request:
    moved: set[Span] = field(default_factory=set)
    done: set[Span] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)
    line: int = 0


@dataclass(frozen=True, slots=True)
class PdLog:
    """`transfers` by the number under which the nodes know a request, as text. `sub_ids`: the numbers that a
    master gave to its request, in order; a long output may need more than one."""

    transfers: dict[str, Transfer]
    sub_ids: dict[int, tuple[int, ...]]


def read(lines: Iterable[tuple[int, str]]) -> PdLog:
    """From numbered lines of a master's or a node's log. Lines may be missing; a piece counts as moved when
    both its own line and its good outcome are there."""
    requests: defaultdict[str, _Request] = defaultdict(_Request)
    subs: defaultdict[int, list[int]] = defaultdict(list)
    for number, message in _messages(lines):
        if match := _SUB.match(message):
            subs[int(match["main"])].append(int(match["sub"]))
        elif match := _SENT.match(message) or _RECEIVED.match(message):
            requests[match["id"]].moved.add((int(match["a"]), int(match["b"])))
            requests[match["id"]].line = number
        elif match := _OUTCOME.match(message):
            _note_outcome(requests[match["id"]], match)
            requests[match["id"]].line = number
        elif match := _FORCED.match(message):
            requests[match["id"]].errors.append(match["what"])
            requests[match["id"]].line = number
    transfers = {name: _transfer(request) for name, request in requests.items()}
    return PdLog(transfers, {main: tuple(ids) for main, ids in subs.items()})


def _messages(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Messages without their prefix; two that were written into one line come one by one."""
    for number, line in lines:
        if any(word in line for word in _TELLING):
            for message in _PREFIX.split(clean(line))[1:]:
                yield number, message.strip()


def _note_outcome(request: _Request, match: re.Match[str]) -> None:
    span = (int(match["a"]), int(match["b"]))
    if match["word"] == "fail" or match["error"] == "True":
        why = _WHY.search(match["rest"])
        request.errors.append(f"[{span[0]},{span[1]}): {why['why'] if why else 'no reason told'}")
        return
    cost = _COST.search(match["rest"])
    # Without a cost nothing was moved: the decode node had it all. A negative time: nothing was read.
    if cost is not None and (cost["ms"] is None or float(cost["ms"]) > 0 or span[0] == span[1]):
        request.done.add(span)


def _transfer(request: _Request) -> Transfer:
    good = sorted(request.moved & request.done)
    return Transfer(
        ranges=tuple(span for span in good if span[0] < span[1]),
        state=any(first == last for first, last in good),
        errors=tuple(request.errors),
        line=request.line,
    )
