"""Judging a P/D lane: do its servers agree, and was each cold request's KV moved whole? Pure.

Proven whole where the logs tell ranges of tokens (LightLLM), and but for a block or two where a counter tells
tokens (vLLM). Bytes (SGLang) are held against those of the lane's other cold requests: one that was cut is
found, all of them cut alike are not; equal answers have to tell that.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.checks.exchange import Evidence, Exchange
from harness.checks.pd_transfers import NODES, Moved, of
from harness.engines.base import LogFacts, Transfer
from harness.findings import Code, Finding
from harness.scenario.model import Scalar

AGREE, VERSION, UNFIT, LEAST = "agree:", "version:", "unfit:", "least:"  # how names of notes begin
NORMAL = "normal"
IDLE, ASKING = "idle", "asking"  # marks around the moment in which nothing is asked
ALIKE = 0.99  # of two sums of bytes, that are differences of growing numbers
UNKNOWN = frozenset({None, "", "unknown"})


@dataclass(frozen=True, slots=True)
class Agreement:
    """What must be equal on the lane's servers: `agreed`, and `silent`, which none of them tells: switched
    off, or not known. `findings`: in what they differ; what only some tell is a difference."""

    agreed: list[str]
    silent: list[str]
    findings: list[Finding]


def agreement(evidence: Evidence) -> Agreement:
    """By settings, and by versions of the engine."""
    told = {
        key: {role: _setting(evidence, role, key) for role in roles if role != NORMAL}
        for key, roles in _agreement(evidence)
    }
    notes = evidence.facts.notes
    versions = {
        name.removeprefix(VERSION): value for name, value in notes.items() if name.startswith(VERSION)
    }
    told["version of the engine"] = dict.fromkeys(NODES) | versions
    silent = [key for key, values in told.items() if UNKNOWN.issuperset(values.values())]
    differ = [key for key, values in told.items() if len(set(map(_plain, values.values()))) > 1]
    found = [_mismatch(key, told[key]) for key in differ if key not in silent]
    agreed = [key for key in told if key not in (*silent, *differ)]
    if not agreed and not found:
        message = f"nothing that must be equal on the servers is told by any of them: {', '.join(silent)}"
        found.append(Finding(code=Code.EVIDENCE_MISSING, message=message, where=", ".join(NODES)))
    return Agreement(agreed, silent, found)


def unlike(evidence: Evidence, reference: Evidence) -> Iterator[Finding]:
    """Settings in which the nodes and the server of the reference lane differ."""
    configs = list(reference.facts.config.values())
    if len(configs) != 1:
        message = f"the reference lane has {len(configs)} servers, expected one that does all by itself"
        yield Finding(code=Code.REFERENCE_UNFIT, message=message, where=NORMAL)
        return
    (config,) = configs
    for key, roles in _agreement(evidence):
        ours = _setting(evidence, "prefill", key)
        if NORMAL in roles and _plain(ours) != _plain(config.get(key)):
            message = f"the reference ran with {key} {config.get(key)!r}, the P/D nodes with {ours!r}"
            yield Finding(code=Code.REFERENCE_UNFIT, message=message, where=key)


def errors(exchanges: Sequence[Exchange]) -> list[Finding]:
    """Failures that are reported as if they were answers."""
    return [
        Finding(
            code=Code.PD_TRANSFER,
            message=f"{exchange.leg} {exchange.case}: finish reason {exchange.finish_reason}, reported with "
            "HTTP 200: the request was given up between the nodes",
            where=exchange.where,
        )
        for exchange in exchanges
        if exchange.error is None and exchange.finish_reason in ("error", "abort")
    ]


def control(moved: Sequence[Moved]) -> list[Finding]:
    """Nodes that count transfers while nothing is asked prove nothing by counting."""
    asked = {line.role for line in moved if line.leg != IDLE}
    idle = {line.role for line in moved if line.leg == IDLE}
    found = [
        Finding(
            code=Code.CONTROL_FAILED,
            message=f"what the {role} node counts while nothing is asked is not on file",
            where=role,
        )
        for role in sorted(asked - idle)
    ]
    return found + [
        Finding(
            code=Code.CONTROL_FAILED,
            message=f"the {line.role} node counted moved KV ({_amount(line)}) while nothing was asked",
            where=line.role,
        )
        for line in moved
        if line.leg == IDLE and line.any
    ]


def quiet(evidence: Evidence, moved: Sequence[Moved]) -> Iterator[Finding]:
    """The same of what the nodes log. Where they count too, that is control enough for older evidence."""
    before, after = evidence.marks.get(IDLE), evidence.marks.get(ASKING)
    for role in NODES:
        lines = [transfer.line for transfer in _log(evidence, role).transfers.values()]
        if before is None or after is None:
            if lines and not any(line.leg == IDLE for line in moved):
                message = f"what the {role} node logs while nothing is asked is not on file"
                yield Finding(code=Code.CONTROL_FAILED, message=message, where=role)
        elif any(before.lines.get(role, 0) < line <= after.lines.get(role, 0) for line in lines):
            message = f"the {role} node logged a transfer while nothing was asked"
            yield Finding(code=Code.CONTROL_FAILED, message=message, where=role)


def transfers(evidence: Evidence, moved: Sequence[Moved], leg: str) -> Iterator[Finding]:
    """The proof of every request of the leg that was answered: by the nodes' logs, and by their counters,
    whichever tell."""
    for case, exchange in evidence.leg(leg).items():
        name = evidence.told(exchange).node_id or exchange.request_id
        sides = {role: _log(evidence, role).transfers.get(name) for role in NODES}
        counted = of(moved, leg, case)
        yield from _failures(exchange, sides, counted)
        if exchange.error is None:
            yield from (
                Finding(
                    code=Code.NOT_EXERCISED, message=f"{leg} {case}: {what}", where=_where(exchange, name)
                )
                for what in (*_gaps(evidence, exchange, sides, counted), *_cut(evidence, exchange, moved))
            )


def _failures(
    exchange: Exchange, sides: dict[str, Transfer | None], counted: Sequence[Moved]
) -> Iterator[Finding]:
    told = {role: side.errors for role, side in sides.items() if side is not None and side.errors}
    told |= {line.role: (f"{line.failed:.0f} failed transfers",) for line in counted if line.failed}
    for role, words in told.items():
        message = f"{exchange.leg} {exchange.case}: transfer failed on the {role} node: {'; '.join(words)}"
        yield Finding(code=Code.PD_TRANSFER, message=message, where=exchange.where)


def _gaps(
    evidence: Evidence, exchange: Exchange, sides: dict[str, Transfer | None], counted: Sequence[Moved]
) -> Iterator[str]:
    """What is missing of the proof, in words."""
    prefill, decode = sides["prefill"], sides["decode"]
    logged = any(_log(evidence, role).transfers for role in NODES) or evidence.told(exchange).node_id
    if logged and (prefill is None or decode is None):
        silent = " and ".join(role for role, side in sides.items() if side is None)
        yield f"the log of {silent} shows no transfer of this request"
    elif prefill is not None and decode is not None:
        yield from _log_gaps(evidence, exchange, prefill, decode)
    if counted and not any(line.any for line in counted) and _counts(counted):
        yield "the nodes counted no moved KV"
    moved = max((line.tokens for line in counted if line.tokens is not None), default=0)
    if 0 < moved < _least(evidence, exchange):
        yield f"the nodes counted {moved:.0f} moved tokens of a prompt of {exchange.prompt_tokens}"
    if not logged and not _counts(counted):
        yield "neither the nodes' logs nor their counters tell of transfers"


def _least(evidence: Evidence, exchange: Exchange) -> float:
    """Tokens that must move; where nothing was noted, half: whole pages are that much of what they may be."""
    noted = evidence.facts.notes.get(LEAST + exchange.case)
    return noted if isinstance(noted, int) else (exchange.prompt_tokens - 1) / 2


def _cut(evidence: Evidence, exchange: Exchange, moved: Sequence[Moved]) -> Iterator[str]:
    """Fewer bytes than those of a request of the leg that is no longer, or than half of what those of a
    longer one give for this length: whole pages, and what is moved once for a request, allow no less."""
    sizes = {line.case: line.size for line in moved if line.leg == exchange.leg and line.size}
    here = sizes.get(exchange.case)
    for case, other in evidence.leg(exchange.leg).items():
        shorter = exchange.asked_tokens < other.asked_tokens
        share = exchange.asked_tokens / other.asked_tokens / 2 if shorter else ALIKE
        if here is not None and case in sizes and here < share * sizes[case]:
            yield (
                f"{here:.0f} bytes moved for {exchange.asked_tokens} tokens, and {sizes[case]:.0f} for "
                f"{other.asked_tokens} in {case}"
            )
            return


def _log_gaps(evidence: Evidence, exchange: Exchange, prefill: Transfer, decode: Transfer) -> Iterator[str]:
    if prefill.size is not None or decode.seconds is not None:
        if (prefill.size or 0) <= 0:
            yield "the prefill node sent 0 bytes"
        if (decode.seconds or 0) <= 0:
            yield "the decode node waited for no transfer"
        return
    if prefill.ranges != decode.ranges:
        yield f"sent {_spans(prefill)}, received {_spans(decode)}"
    for role, side in (("prefill", prefill), ("decode", decode)):
        if not side.ranges:
            yield f"the {role} node moved no token"
        elif not _whole(side, exchange.prompt_tokens):
            yield f"{role}: {_spans(side)} is not the prompt of {exchange.prompt_tokens} tokens without a gap"
        hybrid = evidence.facts.config.get(role, {}).get("hybrid") or prefill.state or decode.state
        if hybrid and not side.state:
            yield f"the {role} node shows no transfer of the linear attention's state"


def _whole(side: Transfer, tokens: int) -> bool:
    edges = [0, *(last for _, last in side.ranges)]
    return [first for first, _ in side.ranges] == edges[:-1] and edges[-1] == tokens


def _spans(side: Transfer) -> str:
    return " ".join(f"[{first},{last})" for first, last in side.ranges) or "nothing"


def _counts(counted: Sequence[Moved]) -> bool:
    """Whether any node counts what proves a transfer."""
    return any(line.tokens is not None or line.size is not None for line in counted)


def _amount(line: Moved) -> str:
    return f"{line.tokens or 0:.0f} tokens, {line.size or 0:.0f} bytes"


def _where(exchange: Exchange, name: str) -> str:
    return exchange.where if name == exchange.request_id else f"{exchange.where}, {name} on the nodes"


def _agreement(evidence: Evidence) -> Iterator[tuple[str, list[str]]]:
    for name, roles in evidence.facts.notes.items():
        if name.startswith(AGREE):
            yield name.removeprefix(AGREE), str(roles).split(",")


def _setting(evidence: Evidence, role: str, key: str) -> Scalar | None:
    return evidence.facts.config.get(role, {}).get(key)


def _plain(value: Scalar | None) -> str:
    return str(value)


def _mismatch(key: str, values: dict[str, Scalar | None]) -> Finding:
    told = ", ".join(f"{role} {value!r}" for role, value in values.items())
    return Finding(code=Code.PD_MISMATCH, message=f"the servers differ in {key}: {told}", where=key)


def _log(evidence: Evidence, role: str) -> LogFacts:
    return evidence.facts.log.get(role, LogFacts())
