"""How far log-probabilities moved under ids that did not: damage to the KV cache that left every token alone.

Rounding moves them too, by the shape of a batch: a healthy prefill that is split in another way moved one of
24 tokens by up to 0.16 nats in BF16 and 0.23 over an FP8 cache (on a model of 135 million parameters), one
that is split in the same way by nothing. So a leg is held against a number well above that, and against its
control leg. One that moved farther is INCONCLUSIVE: there is something to look at. Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from harness.checks.exchange import Evidence, Exchange
from harness.checks.legs import answered, parting
from harness.findings import Code, Finding

FAR = 0.5  # nats
TIMES = 4.0  # as far as the control leg


@dataclass(frozen=True, slots=True)
class Compared:
    """Names of legs, as `legs.same_output` takes them."""

    reference: str
    leg: str
    control: str | None
    standard: str | None = None


@dataclass(frozen=True, slots=True)
class _Drift:
    size: float  # nats
    at: int
    base: float
    other: float
    exchange: Exchange


def drifted(evidence: Evidence, compared: Compared) -> list[Finding]:
    """At most one finding for the leg. None without log-probabilities, or without a control leg: then nothing
    tells how far rounding goes."""
    here = _widest(evidence, compared.reference, compared.leg)
    if here is None or compared.control is None:
        return []
    standard = compared.standard
    has_own = standard is not None and bool(answered(evidence, standard))
    control = _widest(evidence, standard if standard and has_own else compared.reference, compared.control)
    if control is None or here.size <= max(FAR, TIMES * control.size):
        return []
    message = (
        f"{compared.leg} {here.exchange.case} has token {here.at + 1} of {compared.reference}, but with "
        f"log-probability {here.other:.4f} instead of {here.base:.4f}, {here.size:.4f} away; the control leg "
        f"moved {control.size:.4f} at most: the KV cache may hold something else"
    )
    return [Finding(code=Code.LOGPROB_DRIFT, message=message, where=here.exchange.where)]


def metrics(evidence: Evidence, compared: Iterable[Compared]) -> Mapping[str, float]:
    """The largest of all of these legs, in nats; nothing without log-probabilities."""
    found = [_widest(evidence, one.reference, one.leg) for one in compared]
    sizes = [one.size for one in found if one is not None]
    return {"logprob_drift": round(max(sizes), 6)} if sizes else {}


def _widest(evidence: Evidence, reference: str, leg: str) -> _Drift | None:
    """Over all cases, among the tokens before the two outputs part."""
    bases = answered(evidence, reference)
    drifts = [
        _Drift(abs(one - two), at, one, two, exchange)
        for case, exchange in answered(evidence, leg).items()
        if (base := bases.get(case)) is not None
        for at, (one, two) in enumerate(
            zip(base.logprobs[: parting(base, exchange)], exchange.logprobs, strict=False)
        )
    ]
    return max(drifts, key=lambda drift: drift.size, default=None)
