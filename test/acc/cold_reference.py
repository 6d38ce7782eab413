"""The cold outputs of an earlier run, asked again of another server: prefill/decode against one server.

They say that the answers are the same, not how they came about: no transfer between nodes is proven.
"""

from pathlib import Path

from running_server import RunningServer, judged

from harness.checks import drift, legs
from harness.checks.asking import Ask, Asker
from harness.checks.cold_standard import COLD, REFERENCE, STEADY, with_standard
from harness.checks.drift import Compared
from harness.checks.exchange import Exchange, load_evidence
from harness.checks.planned import Planned, as_planned
from harness.checks.prompts import PromptMaker, maker_for
from harness.errors import HarnessError
from harness.evidence.record import CheckResult
from harness.findings import Code, Finding

KIND = "cold-reference"
UNPROVEN = "not proven here: `pd-parity` of a lane does that"


def cold_reference(server: RunningServer, earlier: Path) -> CheckResult:
    """Every prompt that was asked cold in the folder `earlier`, asked cold here: the ids must be the same."""
    context = server.context(KIND)

    def collect() -> None:
        with Asker(context) as asker:
            maker = maker_for(context)
            for case, exchange in load_evidence(earlier).leg(COLD).items():
                asker.ask(_again(case, exchange, maker))

    return judged(collect, lambda: _judge(context.folder, earlier))


def _again(case: str, exchange: Exchange, maker: PromptMaker) -> Ask:
    return Ask(
        leg=COLD,
        case=case,
        prompt=maker.again(exchange.prompt),
        tokens=exchange.asked_tokens,
        max_tokens=exchange.max_tokens,
        min_tokens=exchange.min_tokens,
    )


def _judge(folder: Path, earlier: Path) -> CheckResult:
    try:
        evidence, before = load_evidence(folder), load_evidence(earlier)
    except HarnessError as error:
        return legs.missing_evidence(error, folder)
    asked = before.leg(COLD)
    findings = legs.sound(evidence.exchanges)
    sizes = {case: (exchange.asked_tokens, exchange.max_tokens) for case, exchange in asked.items()}
    findings += as_planned(evidence, {COLD: Planned(sizes)})
    findings += legs.cold(evidence, COLD)
    both, unfit = with_standard(evidence, before, earlier)
    compared = Compared(REFERENCE, COLD, STEADY)
    findings += unfit + legs.same_output(both, REFERENCE, COLD, STEADY) + drift.drifted(both, compared)
    if not asked:
        message = "the reference has no cold answers"
        findings.append(Finding(code=Code.REFERENCE_UNFIT, message=message, where=str(earlier)))
    return legs.result(
        findings, {"compared": len(asked), **drift.metrics(both, [compared]), "transfer": UNPROVEN}
    )
