"""What is known of single requests, from a server's answers, its log and its counters."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class CachedTokens:
    """Prompt tokens taken from a cache, by tier; None where the engine does not say."""

    total: int | None = None
    device: int | None = None
    host: int | None = None
    storage: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class AcceptCounters:
    """Speculative decoding of one request: tokens proposed and accepted, None where the engine is silent."""

    proposed: int | None = None
    accepted: int | None = None
    steps: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Transfer:
    """KV of one request on its way from a prefill to a decode node, as the log of one of them tells it.

    `ranges` are the prompt's tokens [a, b) that were moved, in order; `size` is in bytes, `seconds` how long
    the node waited for them; `state`: the state of linear attention was moved too. None and empty: not told.
    `errors` in the engine's own words.
    """

    ranges: tuple[tuple[int, int], ...] = ()
    size: float | None = None
    seconds: float | None = None
    state: bool = False
    errors: tuple[str, ...] = ()
    line: int = 0  # where it is last told


@dataclass(frozen=True, kw_only=True, slots=True)
class TransferTotals:
    """What a prefill or decode node has counted since it started: requests whose KV was moved, their tokens
    and bytes, and transfers that failed. None: it does not count this."""

    requests: float | None = None
    tokens: float | None = None
    size: float | None = None
    failed: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestFacts:
    """What the log says of one request. `paused` and `recovered` are line numbers, in order. `node_id` is the
    id under which prefill and decode nodes know a request that a master has passed on to them."""

    cached: CachedTokens = CachedTokens()
    first_token_s: float | None = None
    accept: AcceptCounters | None = None
    paused: tuple[int, ...] = ()
    recovered: tuple[int, ...] = ()
    node_id: str | None = None
    line: int = 0  # where it is told


@dataclass(frozen=True, kw_only=True, slots=True)
class LogFacts:
    """What a piece of the log says, by request id where the engine logs it.

    `pauses` are line numbers of any request's pause (preemption, retraction), `host_loads` of cached tokens
    that were copied back from the host's memory. `pool_lost` are tokens that
    belonged to nobody when the server was last idle, `output_estimate` how long an output the scheduler last
    expected; None: not told. `transfers` are by the id under which the node knows the request.
    """

    requests: Mapping[str, RequestFacts] = field(default_factory=dict)
    transfers: Mapping[str, Transfer] = field(default_factory=dict)
    pauses: tuple[int, ...] = ()
    host_loads: tuple[int, ...] = ()
    pool_lost: int | None = None
    output_estimate: int | None = None
