"""Judging what the `cpu-reload` check collected. Pure."""

from dataclasses import replace
from pathlib import Path

from harness.checks import drift, legs
from harness.checks.acceptance import ACCEPT_SHARE, accept_length
from harness.checks.drift import Compared
from harness.checks.exchange import Evidence, Exchange
from harness.checks.reload_plan import (
    AFTER,
    AGAIN,
    CASE,
    COLD,
    EVICTED,
    RELOAD,
    RELOADED,
    WARM,
    Noted,
    Wanted,
    load_noted,
    sequence,
)
from harness.checks.reload_proof import absence, proof
from harness.errors import HarnessError
from harness.evidence.record import CheckResult
from harness.findings import Code, Finding, verdict_of
from harness.verdict import Verdict

COMPARED = tuple(Compared(WARM, leg, AGAIN) for leg in (RELOAD, AFTER))


def judge(folder: Path, wanted: Wanted, *, share: float, control: Path | None) -> CheckResult:
    """`share`: the longest time to first token of the reload, as a share of the cold one's. `control`:
    evidence of the negative control."""
    try:
        evidence, noted = load_noted(folder)
    except (HarnessError, KeyError, TypeError, ValueError) as error:
        return legs.missing_evidence(error, folder)
    tier = wanted.tier
    findings = sequence(evidence, noted, wanted)
    if tier:
        findings += _reloaded(evidence, noted, share)
        findings += _control(control, noted, wanted) if control else []
    else:
        findings += _not_reloaded(evidence, noted)
    earned = Verdict.PASS if control or not tier else Verdict.REPORTED
    metrics = _metrics(evidence, noted, tier=tier, control=control)
    faster = metrics.get("first_token_share")
    told = f"reload hit {metrics.get('hit')}"
    told += f", first token at {faster:.0%} of cold" if isinstance(faster, float) else ""
    return CheckResult(verdict=verdict_of(findings, earned), findings=findings, metrics=metrics, told=told)


def _reloaded(evidence: Evidence, noted: Noted, share: float) -> list[Finding]:
    target = _answered(evidence, RELOAD)
    if target is None or EVICTED not in evidence.marks or RELOADED not in evidence.marks:
        return []  # told already
    found = _fits(noted, target)
    found = found or proof(evidence, target, noted.expected_host, (EVICTED, RELOADED))
    if not found and not legs.cold(evidence, COLD):  # a cold request that hit a cache measures nothing
        found = _faster(evidence, target, share)
    found += legs.same_output(evidence, COLD, WARM, None)  # nothing tells batch shape from damage there
    for one in COMPARED:
        found += legs.same_output(evidence, one.reference, one.leg, one.control)
        found += drift.drifted(evidence, one)
    return found + _acceptance(evidence, target)


def _fits(noted: Noted, target: Exchange) -> list[Finding]:
    """The sequence can show a reload at all."""
    if not noted.expected_host:
        message = (
            "no reload is possible: this server has no cache in host memory, or does not copy so few tokens "
            f"({noted.length}) back from it"
        )
        return [Finding(code=Code.NOT_EXERCISED, message=message, where=target.where)]
    if noted.host is not None and noted.evict_tokens + noted.length >= noted.host:
        message = (
            f"the prompts that push the target out ({noted.evict_tokens} tokens) do not fit into the host's "
            f"cache beside it ({noted.host} tokens): enlarge that cache, or make the device's smaller"
        )
        return [Finding(code=Code.NOT_EXERCISED, message=message, where=target.where)]
    return []


def _not_reloaded(evidence: Evidence, noted: Noted) -> list[Finding]:
    target = _answered(evidence, RELOAD)
    if target is None or EVICTED not in evidence.marks or RELOADED not in evidence.marks:
        return []
    if noted.expected_host:
        message = (
            "the server's own configuration has a cache in host memory: this lane is no negative control"
        )
        return [Finding(code=Code.CONTROL_FAILED, message=message, where=target.where)]
    return absence(evidence, target, (EVICTED, RELOADED))


def _control(place: Path, noted: Noted, wanted: Wanted) -> list[Finding]:
    """The negative control: the same sequence, without the tier, showed no reload."""
    name = f"{place.parent.name}/{place.name}"
    try:
        evidence, other = load_noted(place)
    except (HarnessError, KeyError, TypeError, ValueError) as error:
        message = f"the negative control {name} cannot be read: {error}"
        return [Finding(code=Code.REFERENCE_UNFIT, message=message, where=str(place))]
    if other.tier:
        message = f"{name} is no negative control: it was not collected with `tier: off`"
        return [Finding(code=Code.REFERENCE_UNFIT, message=message, where=str(place))]
    if (other.length, other.evict_prompts) != (noted.length, noted.evict_prompts):
        message = (
            f"the negative control {name} asked another sequence: {other.length} tokens, "
            f"{other.evict_prompts} prompts to push them out; here {noted.length} and {noted.evict_prompts}"
        )
        return [Finding(code=Code.REFERENCE_UNFIT, message=message, where=str(place))]
    found = sequence(evidence, other, replace(wanted, tier=False)) + _not_reloaded(evidence, other)
    return legs.unfit(found, "the negative control", place)


def _faster(evidence: Evidence, target: Exchange, share: float) -> list[Finding]:
    got = _share(evidence)
    if got is None:
        message = "whether the reload was faster than computing cannot be told: no times are on file"
        return [Finding(code=Code.NOT_EXERCISED, message=message, where=target.where)]
    if got < share:
        return []
    message = (
        f"the reload's first token took {got:.0%} of the cold one's time, not less than {share:.0%}: "
        "a hit was told, the prompt was computed all the same, or the copy costs as much"
    )
    return [Finding(code=Code.NOT_EXERCISED, message=message, where=target.where)]


def _share(evidence: Evidence) -> float | None:
    """Time to first token of the reload over that of the cold request. Where the server does not tell it,
    over and above the latency of a device hit, since all of them generate the same number of tokens."""
    legs_of = [_answered(evidence, leg) for leg in (RELOAD, COLD, WARM, AGAIN)]
    if any(exchange is None for exchange in legs_of):
        return None
    reload, cold, *warm = (exchange for exchange in legs_of if exchange is not None)
    told = _first(evidence, reload), _first(evidence, cold)
    if told[0] is not None and told[1] is not None:
        return told[0] / told[1]
    least = min(exchange.latency_s for exchange in warm)
    if cold.latency_s <= least:
        return None
    return max(0.0, reload.latency_s - least) / (cold.latency_s - least)


def _first(evidence: Evidence, exchange: Exchange | None) -> float | None:
    if exchange is None:
        return None
    told = (exchange.first_token_s, evidence.told(exchange).first_token_s)
    return next((seconds for seconds in told if seconds is not None and seconds > 0), None)


def _acceptance(evidence: Evidence, target: Exchange) -> list[Finding]:
    """Of a server that speculates: the drafter's own cache came back too."""
    warm = _answered(evidence, WARM)
    before = accept_length(evidence, [warm]) if warm else None
    after = accept_length(evidence, [target])
    if warm is not None and before is None and after is not None:
        message = f"accept length {after:.3f} after the reload, and none is told of before"
        return [Finding(code=Code.NOT_EXERCISED, message=message, where=warm.where)]
    if warm is None or before is None or before <= 1 or warm.ids != target.ids:
        return []  # of another text it is another number; the difference itself is told already
    if after is not None and after >= ACCEPT_SHARE * before:
        return []
    message = (
        f"accept length {'unknown' if after is None else format(after, '.3f')} after the reload, "
        f"{before:.3f} before: less than {ACCEPT_SHARE:.0%} of it"
    )
    return [Finding(code=Code.ACCEPT_COLLAPSE, message=message, where=target.where)]


def _metrics(
    evidence: Evidence, noted: Noted, *, tier: bool, control: Path | None
) -> dict[str, float | int | str | None]:
    target, cold, warm = (_answered(evidence, leg) for leg in (RELOAD, COLD, WARM))
    cached = evidence.cached(target) if target else None
    metrics: dict[str, float | int | str | None] = {
        "hit": cached.total if cached else None,
        "hit_device": cached.device if cached else None,
        "hit_host": cached.host if cached else None,
        "expected_host": noted.expected_host,
        "first_token_cold_s": _first(evidence, cold),
        "first_token_warm_s": _first(evidence, warm),
        "first_token_reload_s": _first(evidence, target),
        "first_token_share": _share(evidence),
        "device_tokens": noted.device,
        "host_tokens": "not told" if noted.host is None else noted.host,
        "evict_tokens": noted.evict_tokens,
        "accept_before": accept_length(evidence, [warm]) if warm else None,
        "accept_after": accept_length(evidence, [target]) if target else None,
        "warm_equals_cold": "yes" if warm and cold and warm.ids == cold.ids else "no",
        **drift.metrics(evidence, COMPARED),
    }
    if tier:
        none = "none ran: at best REPORTED"
        metrics["negative_control"] = f"{control.parent.name}/{control.name}" if control else none
    return metrics


def _answered(evidence: Evidence, leg: str) -> Exchange | None:
    exchange = evidence.leg(leg).get(CASE)
    return exchange if exchange is not None and exchange.error is None else None
