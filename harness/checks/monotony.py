"""Answers that cannot show damage, because they do not depend on the prompt. Pure.

One token over and over is what log-probabilities that are no numbers come out as, and the same answer to
every prompt is what a model says that does not read its KV cache: both are the same with the feature and
without it. To loop is another thing: a sound model may, once it has to go on beyond its end.
"""

from harness.checks.exchange import Evidence
from harness.checks.legs import TELLING, answered
from harness.findings import Code, Finding


def monotonous(evidence: Evidence, leg: str) -> list[Finding]:
    """To be asked of the leg that others are held against: what differs from it is told anyway."""
    told = {case: one for case, one in answered(evidence, leg).items() if len(one.ids) >= TELLING}
    found = []
    for case, exchange in told.items():
        if len(set(exchange.ids)) == 1:
            message = (
                f"{leg} {case}: all {len(exchange.ids)} tokens are {exchange.ids[0]}: such an answer cannot "
                "show damage; are the model's weights and its numbers sound?"
            )
            found.append(Finding(code=Code.NOT_EXERCISED, message=message, where=exchange.where))
    prompts = {str(exchange.prompt) for exchange in told.values()}
    if not found and len(prompts) > 1 and len({tuple(exchange.ids) for exchange in told.values()}) == 1:
        message = (
            f"{leg}: the answers to {len(prompts)} different prompts are one and the same: such answers "
            "cannot show damage; does the model read its prompts?"
        )
        found.append(Finding(code=Code.NOT_EXERCISED, message=message, where=leg))
    return found
