"""The control of `pause-resume`: a lane under the same load, in whose pool nothing had to wait. Pure."""

from dataclasses import replace
from pathlib import Path

from harness.checks.base import WithReference, reference_folder
from harness.checks.exchange import Evidence, load_evidence
from harness.checks.pause_proof import AFTER, BEFORE, STRESS, prove
from harness.errors import HarnessError
from harness.findings import Code, Finding

CONTROL = "control"


def with_control(params: WithReference, evidence: Evidence, folder: Path) -> tuple[Evidence, list[Finding]]:
    """The evidence with the reference lane's answers as its control leg, and what makes them unfit for it."""
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
    control, judged = other.leg(STRESS), evidence.leg(STRESS)
    if len(control) != len(judged):
        return evidence, [_unfit(f"{len(control)} requests ran together there, {len(judged)} here", source)]
    for case, exchange in judged.items():
        if case not in control or control[case].prompt != exchange.prompt:
            return evidence, [_unfit(f"it did not ask the same prompt {case}", source)]
        if control[case].max_tokens != exchange.max_tokens:
            return evidence, [_unfit(f"its requests generated {control[case].max_tokens} tokens", source)]
    renamed = tuple(exchange.model_copy(update={"leg": CONTROL}) for exchange in control.values())
    return replace(evidence, exchanges=evidence.exchanges + renamed), []


def _unfit(why: str, source: Path) -> Finding:
    message = f"the reference cannot be the control: {why}"
    return Finding(code=Code.REFERENCE_UNFIT, message=message, where=str(source))
