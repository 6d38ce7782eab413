"""What crosses the border between the simulated engine (cache, scheduler, model) and the server around it.

The engine is pure and synchronous: it knows no socket, no clock and no log format. Time is what it returns
from `step`; what happens inside it is told to an `Observer`, and the server writes the log lines.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The resolved start arguments that decide what the scheduler does. All lengths are in tokens.

    `hash_page` is the unit of prefix hits (`--linear_att_hash_page_size` of hybrid models, else the page
    size); `cpu_tokens` is the capacity of the CPU tier, 0 when it is off; `cpu_page` its unit.
    """

    max_total_token_num: int
    max_req_total_len: int
    page_size: int = 1
    hash_page: int = 1
    running_max_req_size: int = 32
    batch_max_tokens: int = 4096
    chunked_prefill_size: int = 512
    router_token_ratio: float = 0.85
    mtp_step: int = 0
    cpu_tokens: int = 0
    cpu_page: int = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class Token:
    """One generated token. `prompt_cached` is the sum over the tiers; `mtp_accepted` is cumulative."""

    id: int
    text: str
    logprob: float
    special: bool
    index: int  # 1 for the first generated token
    prompt_cached: int
    mtp_accepted: int
    mtp_verified: int
    damaged: bool = False  # by a fault, now or before it


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """The end of a request, after its last token."""

    reason: FinishReason
    generated: int
    gpu_cached: int
    cpu_cached: int
    disk_cached: int
    mtp_steps: int
    mtp_accepted: int
    cpu_copied: int = 0  # of `cpu_cached`, what really was copied and not computed again


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrived:
    """A prompt that another node has computed. `ids` are those that its KV stands for: the prompt's own,
    unless it was damaged on the way; `intact` says so of its state. `first`: the other node's first token and
    its log-probability."""

    ids: tuple[int, ...]
    intact: bool
    first: tuple[int, float]


@dataclass(kw_only=True, slots=True, eq=False)
class Request:
    """One prompt. `emit` is called from inside `step`, with every token and then with Done; `progress` during
    the prefill, with how many of its tokens are computed."""

    req_id: int
    prompt: tuple[int, ...]
    max_new_tokens: int
    emit: Callable[[Token | Done], None]
    min_new_tokens: int = 1
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    seed: int = 0  # 0 with greedy decoding; else it salts the generation
    use_cache: bool = True
    aborted: bool = field(default=False)
    progress: Callable[[int], None] | None = None
    fail: Callable[[Exception], None] | None = None  # called by a master: no more output comes
    arrived: Arrived | None = None


class Observer(Protocol):
    """Told of what the scheduler does, in order, from inside `step`."""

    def paused(self, req_id: int) -> None: ...

    def recovered(self, req_id: int) -> None: ...

    def released(self, req_id: int) -> None: ...

    def idle(self, refed: int, held: int, free: int, total: int) -> None:
        """The last running request was released: tokens referenced and held by the radix tree, and free."""
        ...

    def status(self, running: int, waiting: int, paused: int, token_ratio: float, ema_out_len: int) -> None:
        """Every 100 steps."""
        ...


class SimulatedEngine(Protocol):
    """What the server holds. Not thread-safe: one thread calls everything."""

    limits: Limits

    def add(self, request: Request) -> None:
        """Queue a request that fits (the server has refused others already)."""
        ...

    def step(self) -> float:
        """One pass: admit, prefill a chunk, decode a step, pause or recover, finish. Returns the simulated
        seconds that it took; 0.0 when there was nothing to do."""
        ...

    def load(self) -> tuple[float, float, float]:
        """LightLLM's `/token_load`: current, logical maximum and dynamic maximum, as shares of the pool."""
        ...

    @property
    def busy(self) -> bool: ...
