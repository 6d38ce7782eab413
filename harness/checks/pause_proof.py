"""Whether requests were really put aside for want of KV cache, and taken up again. Pure.

Where the log names requests, each pause must be followed by its recovery. Other engines only count: there the
complete answers show that what was put aside was taken up again.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from harness.checks.exchange import Evidence, Exchange, Mark
from harness.engines.base import Pausing
from harness.findings import Code, Finding
from harness.scenario.model import Scalar

# The leg of long requests that run together, and the marks around it; then each of them alone.
STRESS, BEFORE, AFTER = "together", "before-together", "after-together"
SERIAL = "alone"
_PREFIX = "pausing."


@dataclass(frozen=True, slots=True)
class Proof:
    """`pauses` are events; `requests` how many requests had some, None where nothing tells. `findings` say
    what is wrong with the proof itself."""

    pauses: int
    requests: int | None
    findings: list[Finding] = field(default_factory=list)


def as_notes(pausing: Pausing) -> dict[str, Scalar | None]:
    """How the engine tells pauses, to be kept with the evidence: judges know no engine."""
    return {f"{_PREFIX}{name}": value for name, value in asdict(pausing).items()}


def from_notes(evidence: Evidence) -> Pausing:
    """What `as_notes` kept. Raises KeyError or TypeError where not all of it is there."""
    told: dict[str, Any] = {one.name: evidence.facts.notes[_PREFIX + one.name] for one in fields(Pausing)}
    for name in ("logs_requests", "estimates"):
        if not isinstance(told[name], bool):
            raise TypeError(f"{_PREFIX}{name}")
    return Pausing(**told)


def role_of(evidence: Evidence) -> str:
    """The server that was asked. Raises KeyError where its log is not among the evidence."""
    role = str(evidence.facts.notes["role"])
    if role not in evidence.facts.log:
        raise KeyError(f"log of role {role}")
    return role


def prove(evidence: Evidence, leg: str, start: str, end: str) -> Proof:
    """Pauses of the requests of this leg, which was asked between these two marks. Raises KeyError or
    TypeError where the evidence is not whole."""
    role, pausing = role_of(evidence), from_notes(evidence)
    before, after = evidence.marks[start], evidence.marks[end]
    exchanges = evidence.leg(leg).values()
    if pausing.logs_requests:
        proof = _by_request(evidence, exchanges, role, before.lines.get(role, 0))
        silent = pausing.estimates and evidence.facts.log[role].output_estimate is None
        return _silent(proof, role, pausing) if silent and not proof.pauses else proof
    return _by_count(evidence, exchanges, pausing, role, before, after)


def _by_request(evidence: Evidence, exchanges: Iterable[Exchange], role: str, start: int) -> Proof:
    pauses = requests = 0
    findings = []
    for exchange in exchanges:
        told = evidence.told(exchange, role)
        name = f"{exchange.leg} {exchange.case}"
        if not told.line:
            message = f"{name}: the server's log does not tell of this request; is it this server's log?"
            findings.append(Finding(code=Code.EVIDENCE_MISSING, message=message, where=exchange.where))
            continue
        paused = [line for line in told.paused if line > start]
        recovered = [line for line in told.recovered if line > start]
        if fault := _disorder(paused, recovered):
            lost = bool(paused) and paused[-1] > max(recovered, default=0) and not _whole(exchange)
            code = Code.OUTPUT_COUNT if lost else Code.NOT_EXERCISED
            message = f"{name}: {fault}" + (f"; its answer is not whole: {_end(exchange)}" if lost else "")
            findings.append(Finding(code=code, message=message, where=exchange.where))
        requests += bool(paused)
        pauses += len(paused)
    return Proof(pauses, requests, findings)


def _silent(proof: Proof, role: str, pausing: Pausing) -> Proof:
    """The estimate is logged at the level at which pauses are: without it, no pause proves nothing."""
    message = (
        f"the log tells neither of a {pausing.word} nor what the scheduler expected: {pausing.word}s would "
        f"not be told either; see: {pausing.hint}"
    )
    finding = Finding(code=Code.NOT_EXERCISED, message=message, where=role)
    return Proof(proof.pauses, proof.requests, [*proof.findings, finding])


def _disorder(paused: list[int], recovered: list[int]) -> str:
    """What is wrong with the order of one request's pauses and recoveries; empty where nothing is."""
    events = sorted([(line, True) for line in paused] + [(line, False) for line in recovered])
    aside = False
    for line, is_pause in events:
        if is_pause == aside:
            what = "a second pause" if is_pause else "a recovery without a pause"
            return f"the log tells of {what} in line {line}"
        aside = is_pause
    if aside:
        return f"paused in line {events[-1][0]} of the log and never taken up again"
    return ""


def _whole(exchange: Exchange) -> bool:
    return exchange.error is None and exchange.completion_tokens == exchange.max_tokens


def _end(exchange: Exchange) -> str:
    tokens = f"{exchange.completion_tokens} of {exchange.max_tokens} tokens"
    return exchange.error or f"{tokens}, finish reason {exchange.finish_reason}"


def _by_count(
    evidence: Evidence, exchanges: Iterable[Exchange], pausing: Pausing, role: str, before: Mark, after: Mark
) -> Proof:
    answered = [exchange.pauses for exchange in exchanges if exchange.pauses is not None]
    told = [sum(answered)] if answered else []
    if before.counters and after.counters and pausing.counter:
        # A counter that has never counted may be absent.
        told.append(round(after.counters.get(pausing.counter, 0) - before.counters.get(pausing.counter, 0)))
    if not told:
        message = f"the server tells of no {pausing.word}s, and of none that were not: are its counters on?"
        return Proof(0, None, [Finding(code=Code.NOT_EXERCISED, message=message, where=role)])
    lines = evidence.facts.log[role].pauses
    logged = sum(before.lines.get(role, 0) < line <= after.lines.get(role, 0) for line in lines)
    return Proof(max(*told, logged, 0), sum(map(bool, answered)) if answered else None)
