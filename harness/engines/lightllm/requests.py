"""What LightLLM's log says of single requests: their ids, cache hits by tier, acceptance, pauses, the pool.

The answer of a request has the sum of its cached tokens and no pause; only the log tells the tiers, and it
knows a request by LightLLM's own number. The line in which a request came in connects the two.

Processes write into one log: their lines interleave, now and then within one line. Anything may be missing.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from harness.engines.base import AcceptCounters, CachedTokens
from harness.host.logs import clean

GROUP = 8  # LightLLM numbers requests in steps of this; the sequences of one with n > 1 lie between

_STAMP = r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]\s]+:\d+\] "
_PREFIX = re.compile(_STAMP)
# What no interesting line is without: most lines are none, and a log may have a million.
_TELLING = ("lightllm_req_id:", "paused req id", "ema_req_out_put_len", "token num", "manager total size")
_IDS = r"X-Request-Id:(?P<request>\S*) X-Session-Id:\S* start_time:\S+ \S+ lightllm_req_id:(?P<engine>\d+)"
_RECEIVED = re.compile(rf"rec(?:ei|ie)ved req {_IDS}\b")  # two spellings, by release
_FINISHED = re.compile(rf"{_IDS} (?P<fields>first_token_cost:.*)")
_FIELD = re.compile(r"(?P<name>\w+): ?(?P<value>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)")
_PAUSE = re.compile(r"infer (?P<recover>recover )?paused req id (?P<engine>\d+)$")
_ESTIMATE = re.compile(r"RouterStatics .*\bema_req_out_put_len: (?P<tokens>\d+)")
_POOL = re.compile(
    r"(?:radix|mem manager) (?P<field>refed|hold|can alloc|total size)(?: token num)? (?P<n>\d+)$"
)
# The lines of one record of the idle pool, in their order.
_POOL_FIELDS = {"refed": "referenced", "hold": "held", "can alloc": "free", "total size": "total"}

LogLines: TypeAlias = Iterable[tuple[int, str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Received:
    """A prompt that came in. Prompts of one HTTP request share a `request_id`; each has an `engine_id`."""

    line: int
    request_id: str
    engine_id: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    """A prompt's last line.

    `cached` has no tiers where the release, or a P/D master, tells the sum alone. Of a prompt that was paused
    it is the hit at its last recovery.
    """

    line: int
    request_id: str
    engine_id: int
    first_token_ms: float | None
    cached: CachedTokens
    accept: AcceptCounters | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Pause:
    """A prompt put aside for want of KV cache, or taken up again."""

    line: int
    engine_id: int
    kind: Literal["paused", "recovered"]


@dataclass(frozen=True, kw_only=True, slots=True)
class IdlePool:
    """The KV cache of one GPU process when its last request was released, in tokens; None: not told."""

    line: int
    referenced: int | None = None
    held: int | None = None
    free: int | None = None
    total: int | None = None

    @property
    def lost(self) -> int | None:
        """Tokens that belong to nobody: a leak unless 0. None when that cannot be told."""
        if self.held is None or self.free is None or self.total is None:
            return None
        return self.total - self.held - self.free


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """How long an output the scheduler expects, in tokens; it decides how many requests are admitted."""

    line: int
    tokens: int


@dataclass(frozen=True, slots=True)
class RequestLog:
    """Everything, in the order of the log."""

    received: tuple[Received, ...] = ()
    finished: tuple[Finished, ...] = ()
    pauses: tuple[Pause, ...] = ()
    idle: tuple[IdlePool, ...] = ()
    estimates: tuple[Estimate, ...] = ()


def read(lines: LogLines) -> RequestLog:
    """From numbered lines, as they stand in the file or cleaned."""
    received: list[Received] = []
    finished: list[Finished] = []
    pauses: list[Pause] = []
    estimates: list[Estimate] = []
    pools = _Pools()
    for number, message in _messages(lines):
        if match := _RECEIVED.match(message):
            received.append(
                Received(line=number, request_id=match["request"], engine_id=int(match["engine"]))
            )
        elif match := _FINISHED.match(message):
            finished.append(_finished(number, match))
        elif match := _PAUSE.match(message):
            kind: Literal["paused", "recovered"] = "recovered" if match["recover"] else "paused"
            pauses.append(Pause(line=number, engine_id=int(match["engine"]), kind=kind))
        elif match := _ESTIMATE.match(message):
            estimates.append(Estimate(line=number, tokens=int(match["tokens"])))
        elif match := _POOL.match(message):
            pools.add(number, _POOL_FIELDS[match["field"]], int(match["n"]))
    idle = tuple(pools.records)
    return RequestLog(tuple(received), tuple(finished), tuple(pauses), idle, tuple(estimates))


def _messages(lines: LogLines) -> Iterator[tuple[int, str]]:
    """Messages without their prefix; two that were written into one line come one by one."""
    for number, line in lines:
        if any(word in line for word in _TELLING):
            for message in _PREFIX.split(clean(line))[1:]:
                yield number, message.strip()


def _finished(number: int, match: re.Match[str]) -> Finished:
    fields = {field["name"]: float(field["value"]) for field in _FIELD.finditer(match["fields"])}
    tiers = [_whole(fields, f"{tier}_prompt_cache_len") for tier in ("gpu", "cpu", "disk")]
    total = _whole(fields, "prompt_cache_len")
    if total is None and None not in tiers:
        total = sum(tier or 0 for tier in tiers)
    return Finished(
        line=number,
        request_id=match["request"],
        engine_id=int(match["engine"]),
        first_token_ms=fields.get("first_token_cost"),
        cached=CachedTokens(total=total, device=tiers[0], host=tiers[1], storage=tiers[2]),
        accept=_accepted(fields),
    )


def _accepted(fields: Mapping[str, float]) -> AcceptCounters | None:
    accepted = _whole(fields, "mtp_accepted_token_num")
    if accepted is None:
        return None
    steps, verified = _whole(fields, "mtp_total_verify_steps"), _whole(fields, "mtp_total_verify_tokens")
    proposed = verified - steps if verified is not None and steps is not None else None
    return AcceptCounters(proposed=proposed, accepted=accepted, steps=steps)


def _whole(fields: Mapping[str, float], name: str) -> int | None:
    return int(fields[name]) if name in fields else None


class _Pools:
    """Puts the lines of one record together. Every GPU process writes its own, so that several may be open
    at once; a line goes to the oldest record that lacks it. Their values are alike: a mix-up does no harm."""

    def __init__(self) -> None:
        self.records: list[IdlePool] = []
        self._open: list[int] = []

    def add(self, line: int, name: str, tokens: int) -> None:
        at = next((at for at in self._open if getattr(self.records[at], name) is None), None)
        if name == "referenced" or at is None:
            at = len(self.records)
            self.records.append(IdlePool(line=line))
            self._open.append(at)
        self.records[at] = replace(self.records[at], **{name: tokens})
        if name == "total":
            self._open.remove(at)
