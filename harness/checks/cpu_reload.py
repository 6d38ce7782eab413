"""Reload of a prompt from the host's memory: cold, warm, pushed out of the device, and asked again.

The proof lies on the target request: nothing of it from the device, exactly what page arithmetic says from
the host, the first token clearly earlier than when cold, and the same tokens as from the device's cache. The
negative control is another lane whose server has no such tier: there the same sequence must be computed anew.
"""

import time
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

from harness.checks import reloading
from harness.checks.asking import QUIET_S, Ask, Asker
from harness.checks.base import Begun, CheckContext, LaneName, caching, reference_folder
from harness.checks.functional import FunctionalCheck
from harness.checks.prompts import MOST_TOKENS, PromptMaker, maker_for
from harness.checks.reload_plan import (
    AFTER,
    AGAIN,
    CASE,
    COLD,
    EVICT,
    EVICTED,
    RELOAD,
    RELOADED,
    WARM,
    Wanted,
)
from harness.evidence.fingerprint import Fingerprint
from harness.evidence.record import CheckResult
from harness.scenario.model import Frozen, Seconds

MOST_PROMPTS = 100_000


class CpuReloadParams(Frozen):
    """Parameters of the `cpu-reload` check."""

    length: int = Field(2304, ge=2, le=MOST_TOKENS, description="length of the target prompt in tokens")
    output_tokens: int = Field(32, ge=1, le=MOST_TOKENS, description="tokens generated for the target")
    evict: Literal["computed"] | int = Field(
        "computed",
        description="how many prompts of `length` tokens push the target out of the device's cache; "
        "computed: as many as exceed what the server says of its size",
    )
    max_ttft_share: float = Field(
        0.7, gt=0, le=1, description="the reloaded prompt's time to first token, as a share of the cold one's"
    )
    tier: bool = Field(
        True, description="off: this lane is a negative control, its server has no cache in host memory"
    )
    control: LaneName | None = Field(
        None,
        description="`lane` or `lane/check` of this scenario that does the same with `tier: off`; without it "
        "nothing better than REPORTED is earned",
    )
    request_s: Seconds = Field(600, description="time limit of one request")

    @property
    def reference(self) -> str | None:
        """That lane runs first. See `reference_of`."""
        return self.control


class CpuReload(FunctionalCheck):
    """See the module's docstring."""

    kind = "cpu-reload"
    params: type[BaseModel] = CpuReloadParams

    def problems(self, params: CpuReloadParams) -> list[str]:
        found = []
        if isinstance(params.evict, int) and params.evict < 1:
            found.append(f"evict: {params.evict} prompts push nothing out")
        if isinstance(params.evict, int) and params.evict > MOST_PROMPTS:
            found.append(f"evict: {params.evict} prompts are a slip of the pen, {MOST_PROMPTS} are the most")
        if params.control and not params.tier:
            found.append("control: a lane with `tier: off` is a control itself")
        return found

    def requests(self, params: CpuReloadParams) -> list[tuple[int, int]]:
        return [(params.length, params.output_tokens)]

    def collect(self, params: CpuReloadParams, context: CheckContext, begun: Begun | None) -> None:
        del begun
        with Asker(context, timeout_s=params.request_s) as asker:
            maker = maker_for(context)
            lengths = _eviction(params, context)
            _note(asker, params, context, lengths)
            target = maker(params.length)
            for leg in (COLD, WARM, AGAIN):
                asker.ask(_target(leg, target, params))
            _evict(asker, maker, lengths, context)
            _mark(asker, EVICTED)
            asker.ask(_target(RELOAD, target, params))
            _mark(asker, RELOADED)
            asker.ask(_target(AFTER, target, params))

    def judge(self, params: CpuReloadParams, folder: Path) -> CheckResult:
        control = reference_folder(params, folder)
        evict = params.evict if isinstance(params.evict, int) else None
        wanted = Wanted(params.length, params.output_tokens, evict, params.tier)
        return reloading.judge(folder, wanted, share=params.max_ttft_share, control=control)

    def fingerprint(self, params: CpuReloadParams, folder: Path) -> Fingerprint:
        del folder
        return {
            "length": params.length,
            "output_tokens": params.output_tokens,
            "evict": params.evict,
            "tier": params.tier,
        }


def _eviction(params: CpuReloadParams, context: CheckContext) -> tuple[int, ...]:
    if isinstance(params.evict, int):
        return (params.length,) * params.evict
    cache = caching(context)
    return cache.engine.evicting(params.length, cache.config)


def _note(asker: Asker, params: CpuReloadParams, context: CheckContext, lengths: tuple[int, ...]) -> None:
    cache = caching(context)
    capacity = cache.engine.capacity(cache.config)
    asker.note(
        tier=params.tier,
        length=params.length,
        expected_warm=cache.engine.expected_hit(params.length, cache.config),
        expected_host=cache.engine.expected_reload(params.length, cache.config),
        device_tokens=capacity.device,
        host_tokens=capacity.host,
        evict_prompts=len(lengths),
        evict_tokens=sum(lengths),
    )


def _evict(asker: Asker, maker: PromptMaker, lengths: tuple[int, ...], context: CheckContext) -> None:
    for index, length in enumerate(lengths):
        asker.ask(
            Ask(leg=EVICT, case=str(index), prompt=maker(length), tokens=length, max_tokens=1, min_tokens=1)
        )
        context.progress(3 + index, 5 + len(lengths))


def _mark(asker: Asker, label: str) -> None:
    """A moment later: some servers log from a thread of its own, behind the answer."""
    time.sleep(QUIET_S)
    asker.mark(label)


def _target(leg: str, prompt: tuple[int, ...] | str, params: CpuReloadParams) -> Ask:
    return Ask(
        leg=leg,
        case=CASE,
        prompt=prompt,
        tokens=params.length,
        max_tokens=params.output_tokens,
        min_tokens=params.output_tokens,
    )
