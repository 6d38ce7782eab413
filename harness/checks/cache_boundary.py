"""Prefix cache at page boundaries: cold, warm, warm again after something else, alone and all at once.

The warm hit must be exactly what the engine's page arithmetic gives, and the tokens must not change. The
control leg asks the same prompts with the cache put aside.
"""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field

from harness.checks import legs
from harness.checks.asking import Ask, Asker
from harness.checks.base import Begun, CheckContext
from harness.checks.exchange import Evidence, load_evidence
from harness.checks.functional import FunctionalCheck
from harness.checks.prompts import MOST_TOKENS, PromptMaker, maker_for
from harness.errors import HarnessError
from harness.evidence.fingerprint import Fingerprint
from harness.evidence.record import CheckResult
from harness.findings import Code, Finding
from harness.scenario.model import Frozen
from harness.verdict import Verdict

ALONE, TOGETHER = "", "-together"  # suffix of the legs
SINGLE = "single"  # the prompts that were asked together, one by one: nobody may have got another's answer
UNRELATED_TOKENS = 300


class CacheBoundaryParams(Frozen):
    """Parameters of the `cache-boundary` check."""

    lengths: tuple[Annotated[int, Field(le=MOST_TOKENS)], ...] = Field(
        (2304, 2305, 2306, 2307), min_length=1, description="prompt lengths in tokens"
    )
    output_tokens: int = Field(32, ge=1, le=MOST_TOKENS, description="tokens generated for each prompt")
    together: bool = Field(True, description="also ask all lengths at once")
    request_s: float = Field(600, gt=0, description="time limit of one request")


class CacheBoundary(FunctionalCheck):
    """See the module's docstring."""

    kind = "cache-boundary"
    params: type[BaseModel] = CacheBoundaryParams

    def problems(self, params: CacheBoundaryParams) -> list[str]:
        least = 2 * legs.CHANCE
        return [f"lengths: {length} is too short for a page" for length in params.lengths if length < least]

    def collect(self, params: CacheBoundaryParams, context: CheckContext, begun: Begun | None) -> None:
        del begun
        with Asker(context, timeout_s=params.request_s) as asker:
            maker = maker_for(context)
            config = context.servers[-1].config
            asker.note(has_control=maker.can_avoid_cache)
            asker.note(
                **{str(length): context.engine.expected_hit(length, config) for length in params.lengths}
            )
            total = len(params.lengths) * (5 + 4 * params.together)
            done = 0
            for length in params.lengths:
                done += _alone(asker, maker, length, params)
                context.progress(done, total)
            if params.together:
                done += _together(asker, maker, params)
                context.progress(done, total)

    def judge(self, params: CacheBoundaryParams, folder: Path) -> CheckResult:
        try:
            evidence = load_evidence(folder)
            expected = {str(length): int(str(evidence.facts.notes[str(length)])) for length in params.lengths}
        except (HarnessError, KeyError, ValueError) as error:
            return legs.missing_evidence(error, folder)
        has_control = evidence.facts.notes.get("has_control") is True
        findings: list[Finding] = legs.sound(evidence.exchanges)
        for suffix in (ALONE, TOGETHER) if params.together else (ALONE,):
            cold, warm, control = f"cold{suffix}", f"warm{suffix}", f"control{suffix}"
            warm_legs = [warm, "warm-again"] if suffix == ALONE else [warm]
            controls = [control] if has_control else []
            findings += legs.asked(evidence, [cold, *warm_legs, *controls], map(str, params.lengths))
            findings += legs.cold(evidence, cold)
            findings += legs.control_cold(evidence, control)
            for leg in warm_legs:
                findings += legs.hit(evidence, leg, expected)
                findings += legs.same_output(evidence, cold, leg, control)
        if params.together:
            findings += legs.asked(evidence, [SINGLE], map(str, params.lengths))
            for leg in (f"cold{TOGETHER}", f"warm{TOGETHER}"):
                findings += legs.crossed(evidence, SINGLE, leg)
        findings += _as_planned(evidence, params)
        hits = {f"hit_{case}": evidence.cached(got).total for case, got in evidence.leg("warm").items()}
        told = f"hits {'/'.join(map(str, hits.values()))}"
        earned = Verdict.PASS if has_control else Verdict.REPORTED
        return legs.result(findings, hits, told, earned)

    def fingerprint(self, params: CacheBoundaryParams, folder: Path) -> Fingerprint:
        del folder
        return {"lengths": str(params.lengths), "output_tokens": params.output_tokens}


def _alone(asker: Asker, maker: PromptMaker, length: int, params: CacheBoundaryParams) -> int:
    """One length after the other; returns how many requests that were."""
    prompt = maker(length)
    case = str(length)

    def ask(leg: str, *, use_cache: bool = True) -> None:
        asker.ask(_one(leg, case, prompt, length, params, use_cache=use_cache))

    ask("cold")
    ask("warm")
    asker.ask(_one("unrelated", case, maker(UNRELATED_TOKENS), UNRELATED_TOKENS, params))
    ask("warm-again")
    if maker.can_avoid_cache:
        ask("control", use_cache=False)
    return 5


def _together(asker: Asker, maker: PromptMaker, params: CacheBoundaryParams) -> int:
    prompts = {length: maker(length) for length in params.lengths}
    legs_of = ["cold", "warm", "control"] if maker.can_avoid_cache else ["cold", "warm"]
    for leg in legs_of:
        asks = [
            _one(f"{leg}{TOGETHER}", str(length), prompt, length, params, use_cache=leg != "control")
            for length, prompt in prompts.items()
        ]
        asker.ask_all(asks, concurrency=len(asks))
    for length, prompt in prompts.items():
        asker.ask(_one(SINGLE, str(length), prompt, length, params))
    return 4 * len(prompts)


def _as_planned(evidence: Evidence, params: CacheBoundaryParams) -> list[Finding]:
    """The evidence is of what the parameters say: lengths, and one prompt over the legs of a case."""
    found = []
    for exchange in evidence.exchanges:
        together = exchange.leg.endswith(TOGETHER) or exchange.leg == SINGLE
        cold = evidence.leg(f"cold{TOGETHER if together else ALONE}").get(exchange.case)
        if exchange.leg == "unrelated":
            continue
        same = cold is not None and exchange.prompt == cold.prompt
        sized = (str(exchange.asked_tokens), exchange.max_tokens) == (exchange.case, params.output_tokens)
        if not (same and sized and exchange.use_cache != exchange.leg.startswith("control")):
            message = f"{exchange.leg} {exchange.case} was not asked as the parameters say"
            found.append(Finding(code=Code.NOT_EXERCISED, message=message, where=exchange.where))
    return found


def _one(
    leg: str,
    case: str,
    prompt: tuple[int, ...] | str,
    length: int,
    params: CacheBoundaryParams,
    *,
    use_cache: bool = True,
) -> Ask:
    return Ask(
        leg=leg,
        case=case,
        prompt=prompt,
        tokens=length,
        max_tokens=params.output_tokens,
        min_tokens=params.output_tokens,
        use_cache=use_cache,
    )
