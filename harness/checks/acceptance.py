"""Speculative decoding, measured from answers: mean tokens per step. Pure."""

from collections.abc import Iterable

from harness.checks.exchange import Evidence, Exchange
from harness.engines.base import AcceptCounters

ACCEPT_SHARE = 0.95  # of the accept length before, that must be left after a reload or a resume


def accept_length(evidence: Evidence, exchanges: Iterable[Exchange]) -> float | None:
    """Tokens per verification step, its own one included, over all of these requests: 1.0 where no drafted
    token was ever accepted. None where nothing was verified, or where neither answers nor log tell."""
    accepted, steps = counted(evidence, exchanges)
    return 1 + accepted / steps if steps > 0 else None


def told_by_all(evidence: Evidence, exchanges: Iterable[Exchange]) -> bool:
    """Whether every answer, or the log, tells what was accepted, and it can be true: those that do not must
    not be left to the others' mean."""
    told = [one.accept or evidence.told(one).accept for one in exchanges if one.error is None]
    return all(one is not None and _possible(one) for one in told)


def _possible(one: AcceptCounters) -> bool:
    """Told, and nothing accepted without a step. What was proposed is counted differently by release."""
    accepted, steps = one.accepted, one.steps
    return accepted is not None and accepted >= 0 and (steps is None or steps > 0 or steps == accepted == 0)


def counted(evidence: Evidence, exchanges: Iterable[Exchange]) -> tuple[int, int]:
    """Drafted tokens that were accepted, and verification steps."""
    accepted = steps = 0
    for exchange in exchanges:
        one = exchange.accept or evidence.told(exchange).accept
        if exchange.error is None and one is not None and _possible(one):
            accepted += one.accepted or 0
            steps += _steps(one, exchange.completion_tokens)
    return accepted, steps


def mean_length(counters: AcceptCounters | None) -> float | None:
    """The same from counters of a whole server."""
    if counters is None or not counters.steps or counters.accepted is None:
        return None
    return 1 + counters.accepted / counters.steps


def _steps(one: AcceptCounters, tokens: int) -> int:
    """Where they are not counted: every token that was not drafted ended a step."""
    return one.steps if one.steps is not None else tokens - (one.accepted or 0)
