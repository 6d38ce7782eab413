"""Whether a request's cached tokens came from the host's memory: from its answer, the log, or counters. Pure.

Each engine tells it in its own way. By tier, for the request itself (LightLLM, SGLang): that stands. As a
total (llama.cpp, vLLM): then the log or a counter must say, between the two moments around the request, that
the host gave something back; alone, a total could just as well come from the device.
"""

from harness.checks.exchange import Evidence, Exchange
from harness.checks.legs import CHANCE
from harness.engines import counter_names
from harness.findings import Code, Finding

Moments = tuple[str, str]  # labels of the marks before and after the request


def proof(evidence: Evidence, target: Exchange, expected: int, moments: Moments) -> list[Finding]:
    """Nothing where `expected` tokens, and no others, came from the host."""
    cached = evidence.cached(target)
    if cached.host is not None:
        device = cached.device if cached.device is not None else (cached.total or 0) - cached.host
        found = _by_tier(target, expected, device, cached.host)
        tiers = device + cached.host + (cached.storage or 0)
        if not found and cached.total is not None and abs(cached.total - tiers) > CHANCE:
            found = _not_exercised(target, f"{cached.total} cached tokens in all, and {tiers} by tier")
    elif cached.total is None:
        found = _not_exercised(target, "the server does not tell cached tokens: nothing can be proven")
    else:
        found = _by_total(evidence, target, expected, cached.total, moments)
    return found or _copied(evidence, target, expected, moments)


def absence(evidence: Evidence, target: Exchange, moments: Moments) -> list[Finding]:
    """Nothing where the request was computed anew, which is what the negative control is to show."""
    cached = evidence.cached(target)
    loads, counted = _loads(evidence, moments), _grown(evidence, counter_names.HOST_HITS, moments)
    if cached.host or loads or counted:
        message = (
            f"reload: the host's cache gave something back ({cached.host or counted or loads}), and this "
            "server is not to have one: a hit proves nothing here"
        )
        return [Finding(code=Code.CONTROL_FAILED, message=message, where=target.where)]
    most = evidence.most_cached(target)
    if cached.total is None or most is None:
        return _not_exercised(target, "the server does not tell cached tokens: nothing can be proven")
    if most <= CHANCE:
        return []
    if cached.device is not None or cached.host is not None:
        return _not_pushed_out(target, most)
    message = (
        f"reload: {most} tokens came from a cache although the prompt was pushed out of the device's "
        "and there is no other: a hit proves nothing here"
    )
    return [Finding(code=Code.CONTROL_FAILED, message=message, where=target.where)]


def _by_tier(target: Exchange, expected: int, device: int, host: int) -> list[Finding]:
    if device > CHANCE:
        return _not_pushed_out(target, device)
    if host == 0:
        return _computed(target)
    # A token or two that the device had by chance are not fetched from the host.
    return [] if expected - device <= host <= expected else _mismatch(target, host, expected)


def _by_total(
    evidence: Evidence, target: Exchange, expected: int, total: int, moments: Moments
) -> list[Finding]:
    loads, counted = _loads(evidence, moments), _grown(evidence, counter_names.HOST_HITS, moments)
    if total <= CHANCE:
        return _computed(target)
    if not loads and not counted:
        return _not_exercised(
            target,
            f"{total} tokens came from a cache, and neither log nor counters say that it was the host's: the "
            "target was never pushed out, or the log is too terse (llama.cpp: --verbosity 4)",
        )
    if total != expected:
        return _mismatch(target, total, expected)
    return _mismatch(target, counted, expected) if counted is not None and counted != expected else []


def _copied(evidence: Evidence, target: Exchange, expected: int, moments: Moments) -> list[Finding]:
    """A hit is told before anything is copied; where copies are counted too, they must have happened."""
    copied = _grown(evidence, counter_names.LOAD_BACKS, moments)
    if copied is None or copied >= expected - CHANCE:
        return []
    return _not_exercised(
        target, f"{expected} tokens were found in the host's cache and only {copied} copied back"
    )


def _loads(evidence: Evidence, moments: Moments) -> int:
    """Lines about loads from the host that the log has between the two moments."""
    before, after = (evidence.marks[label].lines for label in moments)
    return sum(
        before.get(role, 0) < line <= after.get(role, 0)
        for role, log in evidence.facts.log.items()
        for line in log.host_loads
    )


def _grown(evidence: Evidence, names: tuple[str, ...], moments: Moments) -> int | None:
    before, after = (evidence.marks[label].counters for label in moments)
    return counter_names.grown(names, before, after)


def _not_pushed_out(target: Exchange, tokens: int) -> list[Finding]:
    return _not_exercised(
        target,
        f"{tokens} tokens were still in the device's cache: the target was not pushed out; raise `evict`",
    )


def _computed(target: Exchange) -> list[Finding]:
    return _not_exercised(
        target,
        "the target was computed anew: the host's cache did not have it, it is too small, or it is not read",
    )


def _not_exercised(target: Exchange, message: str) -> list[Finding]:
    finding = Finding(code=Code.NOT_EXERCISED, message=f"{target.leg}: {message}", where=target.where)
    return [finding]


def _mismatch(target: Exchange, got: int, expected: int) -> list[Finding]:
    message = f"{target.leg}: {got} prompt tokens came from the host's cache, {expected} were expected"
    return [Finding(code=Code.HIT_MISMATCH, message=message, where=target.where)]
