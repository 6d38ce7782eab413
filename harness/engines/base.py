"""What an engine adapter is: the types that cross its border, and the protocol it fulfils.

An adapter knows one inference server: its command line, its ports, its log, its HTTP API. It decides no
verdict, starts no process and leases nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from harness.engines.arguments import ArgumentList
from harness.engines.client import Client
from harness.engines.facts import (
    AcceptCounters,
    CachedTokens,
    LogFacts,
    RequestFacts,
    Transfer,
    TransferTotals,
)
from harness.engines.grammar import LogGrammar
from harness.engines.sizes import Told
from harness.scenario.model import FlagValue, Scalar

__all__ = [
    "AcceptCounters",
    "CachedTokens",
    "Engine",
    "GenerateRequest",
    "Generation",
    "KvCapacity",
    "Launch",
    "LogFacts",
    "NoTraces",
    "Pausing",
    "RequestFacts",
    "ServedModel",
    "Told",
    "Traces",
    "Transfer",
    "TransferTotals",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """Everything an adapter may use to build one server's command.

    `ports` maps each name of `Engine.ports` to a leased port. `cpus` are core numbers the server is bound
    to. `gpus` are indices in PCI order, or UUIDs; `gpu_model` is their name. `folder` is the lane's evidence
    directory. `peers` are the other servers of the lane: role -> base URL, and `role.port` -> URL of another
    port of it (`prefill.bootstrap`).
    """

    lane: str
    role: str
    model_path: str
    served_name: str
    flags: Mapping[str, FlagValue]
    env: Mapping[str, str]
    ports: Mapping[str, int]
    folder: Path
    host: str = "127.0.0.1"
    python: str | None = None
    binary: str | None = None
    cpus: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()
    gpu_model: str = ""
    peers: Mapping[str, str] = field(default_factory=dict)

    @property
    def base_url(self) -> str:
        return f"http://{self.host}:{self.ports['http']}"

    @property
    def scratch(self) -> Path:
        """Where the servers of a lane may put files for one another; emptied when they have stopped."""
        return self.folder / "scratch"


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerateRequest:
    """One generation, the same for every engine. Greedy unless `temperature` says otherwise. Without
    `use_cache` the prompt is computed anew whatever is cached: a true cold control."""

    prompt: str | tuple[int, ...]
    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False
    temperature: float = 0.0
    stop: tuple[str, ...] = ()
    logprobs: bool = False
    use_cache: bool = True
    request_id: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """What one generation returned. `ids` is empty where the engine cannot give token ids.

    `finish_reason` is one of `stop`, `length`, `abort`, `error`. Times are in seconds; `first_token_s` is the
    server's own word, None where it does not tell. `pauses`: how often the request was put aside for want of
    KV cache, None where the answer does not tell.
    """

    text: str
    ids: tuple[int, ...]
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    cached: CachedTokens
    accept: AcceptCounters | None
    latency_s: float
    first_token_s: float | None = None
    logprobs: tuple[float, ...] = ()
    pauses: int | None = None
    raw: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class KvCapacity:
    """Tokens that the caches hold; None where the server does not tell, 0 where there is no such tier."""

    device: int | None = None
    host: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Pausing:
    """How a server tells that it puts running requests aside when the KV cache is full, and takes them up
    again later.

    `word` is its own word for one such event. `logs_requests`: its log names the request of every pause and
    every recovery. `counter` is the name of the event's counter in `Engine.counters`, where there is one.
    `estimates`: it admits requests by a guess, in its log, at how long outputs are. `hint` says what makes it
    admit more than the cache holds.
    """

    word: str
    logs_requests: bool = False
    counter: str | None = None
    estimates: bool = False
    hint: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedModel:
    """What the running server says that it serves."""

    name: str
    max_length: int | None
    path: str | None = None


class Traces(Protocol):
    """Names by which a server's own leftovers are known when it is gone."""

    @property
    def sysv_ids(self) -> frozenset[int]:
        """Its System V segments."""
        ...

    @property
    def patterns(self) -> frozenset[str]:
        """Shell patterns of the names that `owns` claims, for whoever cannot ask it: see `Guard`."""
        ...

    def owns(self, path: str) -> bool:
        """Whether a file or socket in `/dev/shm` or `/tmp` is its own."""
        ...


@dataclass(frozen=True, slots=True)
class NoTraces:
    """Of a server whose names say nothing of whom they belong to."""

    sysv_ids: frozenset[int] = frozenset()
    patterns: frozenset[str] = frozenset()

    def owns(self, path: str) -> bool:
        del path
        return False


class Engine(Protocol):
    """One inference server. Adding an engine is one folder and one line in `ENGINES`."""

    name: str
    roles: tuple[str, ...]
    grammar: LogGrammar
    pausing: Pausing | None  # None: it never puts a running request aside
    tells_ids: bool  # `tokenize` can: no tokenizer in the model's directory is needed
    must_agree: Mapping[str, tuple[str, ...]]
    """Entries of the effective configuration that must be equal on the servers of these roles of a lane,
    which might answer all the same; `normal`: and on the server that they are compared with."""

    def ports(self, role: str, flags: Mapping[str, FlagValue]) -> tuple[str, ...]:
        """Names of every port the server takes, hidden ones too; the first is always `http`."""
        ...

    def argv(self, launch: Launch) -> list[str]:
        """The command, flags exactly as given plus those the harness owns (model, host, ports, name)."""
        ...

    def environment(self, launch: Launch) -> dict[str, str]:
        """What is added to the inherited environment, the lane's own `env` included."""
        ...

    def problems(self, launch: Launch) -> list[str]:
        """What is wrong with the command, found without starting it: unknown or abbreviated flags (with the
        nearest valid name), bad choices, flags the harness owns, a missing interpreter or model."""
        ...

    def gpus_used(self, launch: Launch) -> Told | None:
        """How many GPUs the server will use; None where its flags do not tell."""
        ...

    def limits(self, launch: Launch) -> tuple[Told, ...]:
        """What limits the tokens of one request, prompt and output together; nothing where no flag tells."""
        ...

    def arguments(self, launch: Launch) -> ArgumentList:
        """What its command line accepts, and where that is known from. Raises ConfigError where the installed
        engine cannot tell."""
        ...

    def at_once(self, launch: Launch) -> tuple[Told, ...]:
        """How many requests the server computes at the same time at most; nothing where no flag tells."""
        ...

    def version(self, launch: Launch) -> str:
        """Version of the installed engine, or `unknown`. Read from its files; starts no server."""
        ...

    def served_model(self, client: Client) -> ServedModel:
        """Who answers on the port. Raises TargetError while the server is not up."""
        ...

    def effective_config(self, client: Client, log: Path) -> dict[str, Scalar | None]:
        """The configuration the running server resolved, flat, with stable names. Always has `kv_dtype` and
        `max_length` when the server tells them. Values that depend on the run (ports, pids, uptime, free
        memory) are left out: the result is compared between lanes."""
        ...

    def generate(self, client: Client, request: GenerateRequest) -> Generation:
        """One generation through the engine's richest endpoint. Raises TargetError on any refusal."""
        ...

    def expected_hit(self, tokens: int, config: Mapping[str, Scalar | None]) -> int:
        """Prompt tokens of an exactly repeated prompt that come from the cache, by the engine's own page
        arithmetic and the running server's `config`. Raises TargetError where the config does not tell."""
        ...

    def expected_reload(self, tokens: int, config: Mapping[str, Scalar | None]) -> int:
        """Prompt tokens of an exactly repeated prompt that are copied back from the host's memory, where the
        device holds none of it any more; 0 where there is no such tier, or the engine does not copy so few.
        Raises TargetError where the config does not tell."""
        ...

    def evicting(self, tokens: int, config: Mapping[str, Scalar | None]) -> tuple[int, ...]:
        """Lengths of fresh prompts that, asked one after the other, leave nothing of a prompt of `tokens`
        tokens in the device's cache. Raises TargetError where the config does not tell."""
        ...

    def capacity(self, config: Mapping[str, Scalar | None]) -> KvCapacity:
        """How many tokens the caches of the running server hold."""
        ...

    def tokenize(self, client: Client, text: str) -> tuple[int, ...] | None:
        """The server's own token ids of a text, without special tokens; None where it cannot tell."""
        ...

    def log_facts(self, lines: Iterable[tuple[int, str]]) -> LogFacts:
        """What these lines of the server's log (number, text) say of requests and of the scheduler."""
        ...

    def traces(self, log: Path) -> Traces:
        """What a stopped server may have left behind, told from its log."""
        ...

    def counters(self, client: Client) -> dict[str, float]:
        """Monotonic counters that prove features (hits, evictions, retractions, transfers), by name."""
        ...

    def joined(self, client: Client) -> frozenset[str]:
        """Roles whose node has joined the master or router that answers here. Raises TargetError while it
        does not answer."""
        ...

    def transferred(self, client: Client) -> TransferTotals | None:
        """What this prefill or decode node has counted; None where only its log tells of transfers."""
        ...
