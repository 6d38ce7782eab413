"""Accept length of a lane that speculates: tokens per verification step, per phase, against a reference.

Its own phases are `cold` and `warm` (the same prompts from the device's cache). Each leg of another check of
the lane is a phase too, where that check left its evidence (`cpu-reload.reload`). A collapsed drafter leaves
every answer right, so that nothing but this number tells it.
"""

from pathlib import Path

from pydantic import BaseModel, Field

from harness.checks import phases
from harness.checks.asking import Ask, Asker
from harness.checks.base import Begun, CheckContext, WithReference, caching, reference_folder
from harness.checks.exchange import load_evidence
from harness.checks.functional import FunctionalCheck
from harness.checks.phases import BEGIN, COLD, WARM
from harness.checks.planned import sizes
from harness.checks.prompts import MOST_TOKENS, PromptMaker, maker_for
from harness.errors import HarnessError
from harness.evidence.fingerprint import Fingerprint
from harness.evidence.record import CheckResult
from harness.scenario.model import Seconds


class AcceptLengthParams(WithReference):
    """Parameters of the `accept-length` check."""

    reference_length: float | None = Field(
        None,
        gt=1,
        allow_inf_nan=False,
        description="the accept length that is known of this model and drafter, instead of a lane",
    )
    min_share: float = Field(0.95, gt=0, le=1, description="of the reference, that must be reached")
    prompts: int = Field(4, ge=1, le=1024, description="how many")
    prompt_tokens: int = Field(1100, ge=2, le=MOST_TOKENS, description="length of each")
    output_tokens: int = Field(128, ge=2, le=MOST_TOKENS, description="tokens generated for each")
    request_s: Seconds = Field(600, description="time limit of one request")


class AcceptLength(FunctionalCheck):
    """See the module's docstring."""

    kind = "accept-length"
    params: type[BaseModel] = AcceptLengthParams

    def problems(self, params: AcceptLengthParams) -> list[str]:
        if params.reference and params.reference_length:
            return ["reference and reference_length: only one of them can be the reference"]
        return []

    def requests(self, params: AcceptLengthParams) -> list[tuple[int, int]]:
        return [(params.prompt_tokens, params.output_tokens)]

    def collect(self, params: AcceptLengthParams, context: CheckContext, begun: Begun | None) -> None:
        del begun
        with Asker(context, timeout_s=params.request_s) as asker:
            maker = maker_for(context)
            cache = caching(context)
            asker.note(expected_warm=cache.engine.expected_hit(params.prompt_tokens, cache.config))
            prompts = _reused(params, context.folder, maker)
            asker.note(prompts="the reference's" if prompts else "fresh")
            prompts = prompts or [maker(params.prompt_tokens) for _ in range(params.prompts)]
            asker.mark(BEGIN)
            for leg in (COLD, WARM):
                for index, prompt in enumerate(prompts):
                    asker.ask(_ask(leg, index, prompt, params))
                    context.progress(index + 1 + params.prompts * (leg == WARM), 2 * params.prompts)
                asker.mark(leg)

    def judge(self, params: AcceptLengthParams, folder: Path) -> CheckResult:
        return phases.judge(
            folder,
            sizes(range(params.prompts), params.prompt_tokens, params.output_tokens),
            least=params.min_share,
            number=params.reference_length,
            reference=reference_folder(params, folder),
        )

    def fingerprint(self, params: AcceptLengthParams, folder: Path) -> Fingerprint:
        del folder
        return {
            "prompts": params.prompts,
            "prompt_tokens": params.prompt_tokens,
            "output_tokens": params.output_tokens,
        }


def _reused(params: AcceptLengthParams, folder: Path, maker: PromptMaker) -> list[tuple[int, ...] | str]:
    """The prompts of the reference lane, where it asked the same number of the same length: then nothing but
    the lanes differs. None of them where it did not; the judge tells why the reference is unfit."""
    place = reference_folder(params, folder)
    try:
        asked = load_evidence(place).leg(COLD) if place else {}
        found = [asked[case] for case in map(str, range(params.prompts)) if case in asked]
        if len(found) != params.prompts or any(one.asked_tokens != params.prompt_tokens for one in found):
            return []
        return [maker.again(one.prompt) for one in found]
    except HarnessError:
        return []


def _ask(leg: str, index: int, prompt: tuple[int, ...] | str, params: AcceptLengthParams) -> Ask:
    return Ask(
        leg=leg,
        case=str(index),
        prompt=prompt,
        tokens=params.prompt_tokens,
        max_tokens=params.output_tokens,
        min_tokens=params.output_tokens,
    )
