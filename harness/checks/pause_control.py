"""The control of `pause-resume`: a lane under the same load, in whose pool nothing had to wait. Pure.

A broken control hides a real difference behind `batch shape`. So it is held to the rules that its own lane
holds it to; what of it breaks them is told, and is no control of its case. The other cases still have theirs.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from harness.checks import legs
from harness.checks.base import WithReference, reference_folder
from harness.checks.exchange import Evidence, load_evidence
from harness.checks.monotony import monotonous
from harness.checks.pause_proof import AFTER, BEFORE, SERIAL, STRESS, prove
from harness.checks.planned import Planned, as_planned
from harness.errors import HarnessError
from harness.findings import Code, Finding

# That lane's answers under load, and each alone, under names of their own.
CONTROL, STANDARD = "control", "control-alone"


def with_control(
    params: WithReference, evidence: Evidence, folder: Path, plan: Mapping[str, Planned]
) -> tuple[Evidence, list[Finding]]:
    """The evidence with the reference lane's answers as two more legs, and what makes them unfit for it.
    `plan` is what both lanes were to ask."""
    source = reference_folder(params, folder)
    if source is None:
        return evidence, []
    try:
        other = load_evidence(source)
        proof = prove(other, STRESS, BEFORE, AFTER)
    except (HarnessError, KeyError, TypeError) as error:
        return evidence, [_unfit(f"its evidence cannot be read: {error}", source)]
    if proof.pauses or proof.findings:
        return evidence, [_unfit(f"it saw {proof.pauses} pauses itself", source)]
    names = {STRESS: CONTROL, SERIAL: STANDARD}
    long = [exchange for exchange in other.exchanges if exchange.leg in names]
    found = legs.sound(long) + as_planned(replace(other, exchanges=tuple(long)), plan)
    found += legs.control_cold(other, SERIAL) + legs.crossed(other, SERIAL, STRESS)
    found += monotonous(other, SERIAL)
    unfit = legs.unfit(found, "the control", source)
    strange = _strange(evidence, other)
    unfit += [_unfit(f"it did not ask the same prompt {case}", source) for case in strange]
    bad = {finding.where for finding in found}
    fit = tuple(
        exchange.model_copy(update={"leg": names[exchange.leg]})
        for exchange in long
        if exchange.where not in bad and exchange.case not in strange
    )
    return replace(evidence, exchanges=evidence.exchanges + fit), unfit


def _strange(evidence: Evidence, other: Evidence) -> list[str]:
    """Cases in which the two lanes asked different prompts."""
    asked = other.leg(STRESS)
    return [
        case
        for case, exchange in evidence.leg(STRESS).items()
        if case in asked and asked[case].prompt != exchange.prompt
    ]


def _unfit(why: str, source: Path) -> Finding:
    message = f"the reference cannot be the control: {why}"
    return Finding(code=Code.REFERENCE_UNFIT, message=message, where=str(source))
