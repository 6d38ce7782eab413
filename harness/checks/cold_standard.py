"""The cold answers of another lane as the standard of this one's, with that lane's own control. Pure.

A broken control would hide a real difference behind `batch shape`. So that lane's answers are held to the
rules that it holds them to; what of them breaks these is told, and is neither standard nor control.
"""

from dataclasses import replace
from pathlib import Path

from harness.checks import legs
from harness.checks.exchange import Evidence
from harness.checks.monotony import monotonous
from harness.checks.planned import Planned, as_planned
from harness.findings import Finding

COLD, WARM = "cold", "warm"
# That lane's answers, under names of their own.
REFERENCE, STEADY = "reference", "reference-control"


def with_standard(evidence: Evidence, other: Evidence, place: Path) -> tuple[Evidence, list[Finding]]:
    """The evidence with the answers of the `other` lane as two more legs, and what makes them unfit for it.
    `place` is the folder of that lane's check."""
    # How steady its answers are is shown by those without its cache; where it could not be put aside, by the
    # warm ones.
    steady = "control" if other.leg("control") else WARM
    names = {COLD: REFERENCE, steady: STEADY}
    sizes = {case: (one.asked_tokens, one.max_tokens) for case, one in other.leg(COLD).items()}
    plan = {COLD: Planned(sizes), steady: Planned(sizes, use_cache=steady == WARM, like=COLD)}
    kept = tuple(exchange for exchange in other.exchanges if exchange.leg in names)
    found = legs.sound(kept) + as_planned(replace(other, exchanges=kept), plan)
    found += legs.crossed(other, COLD, steady) + monotonous(other, COLD)
    bad = {finding.where for finding in found}
    fit = tuple(
        exchange.model_copy(update={"leg": names[exchange.leg]})
        for exchange in kept
        if exchange.where not in bad
    )
    return replace(evidence, exchanges=evidence.exchanges + fit), legs.unfit(found, "the reference", place)
