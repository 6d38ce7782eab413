"""LightLLM's log in the words that all engines share."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from harness.engines.base import CachedTokens, LogFacts, RequestFacts
from harness.engines.lightllm.pd import read as read_pd
from harness.engines.lightllm.requests import GROUP, Finished, RequestLog, read


def log_facts(lines: Iterable[tuple[int, str]]) -> LogFacts:
    """By X-Request-Id, which prefill and decode nodes do not log. `host_loads` stays empty: cached tokens of
    the CPU tier are logged before it is decided whether they are copied."""
    kept = list(lines)
    log, pd = read(kept), read_pd(kept)
    return LogFacts(
        requests=_requests(log, pd.sub_ids),
        transfers=pd.transfers,
        pauses=tuple(item.line for item in log.pauses if item.kind == "paused"),
        pool_lost=_lost(log),
        output_estimate=log.estimates[-1].tokens if log.estimates else None,
    )


def _requests(log: RequestLog, sub_ids: Mapping[int, tuple[int, ...]]) -> dict[str, RequestFacts]:
    names = {item.engine_id: item.request_id for item in log.received}
    pauses: dict[str, dict[str, list[int]]] = {}
    for item in log.pauses:
        name = names.get(item.engine_id // GROUP * GROUP, "")
        pauses.setdefault(name, {"paused": [], "recovered": []})[item.kind].append(item.line)
    finished = {item.request_id: item for item in log.finished}
    told = {item.request_id: item.line for item in log.received}
    told |= {item.request_id: item.line for item in log.finished}
    subs = {item.request_id: sub_ids.get(item.engine_id, ()) for item in log.received}
    return {
        name: replace(
            _facts(line, finished.get(name), pauses.get(name, {})), node_id=_first(subs.get(name, ()))
        )
        for name, line in told.items()
        if name
    }


def _first(sub_ids: Sequence[int]) -> str | None:
    """The sub request that had the whole prompt; later ones go on with a long output."""
    return str(sub_ids[0]) if sub_ids else None


def _facts(line: int, finished: Finished | None, pauses: dict[str, list[int]]) -> RequestFacts:
    first_ms = finished.first_token_ms if finished else None
    return RequestFacts(
        cached=finished.cached if finished else CachedTokens(),
        first_token_s=None if first_ms is None else first_ms / 1000,
        accept=finished.accept if finished else None,
        paused=tuple(pauses.get("paused", ())),
        recovered=tuple(pauses.get("recovered", ())),
        line=line,
    )


def _lost(log: RequestLog) -> int | None:
    """When last idle, in the process that wrote last: tokens of nobody, and tokens still referenced though
    nothing runs."""
    for pool in reversed(log.idle):
        if pool.lost is not None:
            return pool.lost + (pool.referenced or 0)
    return None
