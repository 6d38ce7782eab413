"""Prefix cache at page boundaries: cold, warm, warm again after something else, alone and all at once.

The warm hit must be exactly what the engine's page arithmetic gives, and the tokens must not change. The
control leg asks the same prompts with the cache put aside.
"""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field

from harness.checks import legs
from harness.checks.asking import Ask, Asker
from harness.checks.base import Begun, CheckContext, caching
from harness.checks.drift import Compared, drifted, metrics
from harness.checks.exchange import load_evidence
from harness.checks.functional import FunctionalCheck
from harness.checks.monotony import monotonous
from harness.checks.planned import Planned, as_planned, repeated, sizes
from harness.checks.prompts import MOST_TOKENS, PromptMaker, maker_for
from harness.errors import HarnessError
from harness.evidence.fingerprint import Fingerprint
from harness.evidence.record import CheckResult
from harness.findings import Finding
from harness.scenario.model import Frozen, Seconds
from harness.verdict import Verdict

ALONE, TOGETHER = "", "-together"  # suffix of the legs
SINGLE = "single"  # the prompts that were asked together, one by one: nobody may have got another's answer
UNRELATED_TOKENS = 300


class CacheBoundaryParams(Frozen):
    """Parameters of the `cache-boundary` check."""

    lengths: tuple[Annotated[int, Field(le=MOST_TOKENS)], ...] = Field(
        (2304, 2305, 2306, 2307), min_length=1, max_length=1024, description="prompt lengths in tokens"
    )
    output_tokens: int = Field(32, ge=1, le=MOST_TOKENS, description="tokens generated for each prompt")
    together: bool = Field(True, description="also ask all lengths at once")
    request_s: Seconds = Field(600, description="time limit of one request")


class CacheBoundary(FunctionalCheck):
    """See the module's docstring."""

    kind = "cache-boundary"
    params: type[BaseModel] = CacheBoundaryParams

    def problems(self, params: CacheBoundaryParams) -> list[str]:
        least = 2 * legs.CHANCE
        short = [f"lengths: {length} is too short for a page" for length in params.lengths if length < least]
        return short + repeated(params.lengths)

    def requests(self, params: CacheBoundaryParams) -> list[tuple[int, int]]:
        return [(length, params.output_tokens) for length in params.lengths]

    def collect(self, params: CacheBoundaryParams, context: CheckContext, begun: Begun | None) -> None:
        del begun
        with Asker(context, timeout_s=params.request_s) as asker:
            maker = maker_for(context)
            asker.note(has_control=maker.can_avoid_cache)
            cache = caching(context)
            asker.note(**{str(n): cache.engine.expected_hit(n, cache.config) for n in params.lengths})
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
        findings += as_planned(evidence, _plan(params, has_control=has_control))
        compared = []
        for suffix in (ALONE, TOGETHER) if params.together else (ALONE,):
            cold, warm, control = f"cold{suffix}", f"warm{suffix}", f"control{suffix}"
            warm_legs = [warm, "warm-again"] if suffix == ALONE else [warm]
            findings += legs.cold(evidence, cold)
            findings += legs.control_cold(evidence, control)
            findings += monotonous(evidence, cold)
            for leg in warm_legs:
                findings += legs.hit(evidence, leg, expected)
                findings += legs.same_output(evidence, cold, leg, control)
                compared.append(Compared(cold, leg, control))
        findings += [finding for one in compared for finding in drifted(evidence, one)]
        if params.together:
            for name in ("cold", "warm", "control"):
                findings += legs.crossed(evidence, SINGLE, f"{name}{TOGETHER}")
        hits = {f"hit_{case}": evidence.cached(got).total for case, got in evidence.leg("warm").items()}
        told = f"hits {'/'.join(map(str, hits.values()))}"
        earned = Verdict.PASS if has_control else Verdict.REPORTED
        return legs.result(findings, {**hits, **metrics(evidence, compared)}, told, earned)

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


def _plan(params: CacheBoundaryParams, *, has_control: bool) -> dict[str, Planned]:
    asked = {str(length): (length, params.output_tokens) for length in params.lengths}
    unrelated = sizes(params.lengths, UNRELATED_TOKENS, params.output_tokens)
    plan = {"unrelated": Planned(unrelated), "warm-again": Planned(asked, like="cold")}
    for suffix in (ALONE, TOGETHER) if params.together else (ALONE,):
        cold, at_once = f"cold{suffix}", suffix == TOGETHER
        plan[cold] = Planned(asked, together=at_once)
        plan[f"warm{suffix}"] = Planned(asked, like=cold, together=at_once)
        if has_control:
            plan[f"control{suffix}"] = Planned(asked, use_cache=False, like=cold, together=at_once)
    if params.together:
        plan[SINGLE] = Planned(asked, like=f"cold{TOGETHER}")
    return plan


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
