"""Everything that can be made to go wrong, by name.

`FAULTS` says what each does; `Planted` answers which of them strike now. `settings.Fault` says where a fault
can be aimed.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

START = {
    "oom": "loading ends in an out-of-memory traceback, exit code 1",
    "child-killed-launcher-hangs": "the router is killed while it loads, and the launcher waits on",
    "hang-loading": "loading stops without a word and without an end",
    "slow-but-progressing": "loading takes `factor` (10) times as long and shows progress",
    "sigterm-while-loading-hangs": "SIGTERM during loading kills the children and leaves the launcher",
    "wrong-model-name": "serves under the name `to` (another-model)",
    "exits-at-ready": "ends with exit code 1 as soon as it is ready",
    "kv-type-rewritten": "the KV type is `to` instead (None, or fp8kv_dsa where None was asked)",
    "pd-never-registers": "a node never calls its master",
    "pd-argument-mismatch": "a decode node has another value than it was told: `to` (pd_kv_page_num=3)",
}
RUNNING = {  # `after_requests` prompts are served well before these begin
    "fatal-line-while-serving": "logs a CUDA error (or the line `to`), and serves on",
    "killed": "kills itself with SIGKILL",
    "router-killed": "its router is killed: no answer any more; the launcher notices and exits with 1",
    "stall": "takes requests and never answers; /health is green",
    "infer-thread-dead": "one traceback in impl.py, then as `stall`",
    "error-500": "500 from the OpenAI endpoints, and 417 from LightLLM's own, for that share of the requests",
    "busy-429": "429 for that share of the requests",
    "null-text": "null instead of the text, for that share of the prompts",
    "empty-text": "an empty text, for that share of the prompts",
    "zero-tokens": "no token at all, reported as a natural stop, for that share of the prompts",
    "cut-answers": "max_new_tokens is lowered to a `factor`th (4), silently",
    "swapped-answers": "two requests that run at the same time get each other's answers",
    "half-right-after": "half of the right answers turn wrong, after `after_requests`",
    "repeat-answers": "the first words over and over up to the last token, for that share of the prompts",
}
PD = {  # of a prefill and a decode node; as RUNNING
    "pd-no-transfer": "the decode node computes that share of the prompts itself: nothing is sent",
    "pd-transfer-error": "KV is not sent, for that share; the answer ends with the reason `error`",
    "pd-corrupt-transfer": "KV is damaged on its way, for that share of the prompts",
    "pd-gap": "half of the first piece is never sent, and computed by the decode node, for that share",
    "prefill-dies": "the prefill node kills itself with SIGKILL in the middle of a prompt",
    "health-green-while-dead": "the prefill node computes nothing more, and says that it is well",
}
ENGINE = {  # set for the whole life of the server: `share` and `after_requests` mean nothing to them
    "cold-hits": "a prompt never seen is reported, and run, as a full hit",
    "short-hit": "a hit is one hash page shorter than it should be",
    "warm-differs": "the output changes after a GPU hit",
    "cpu-never-read": "prompts go to the CPU tier, and none comes back",
    "cpu-logged-not-copied": "a CPU hit is reported, and the prompt computed all the same",
    "reload-corrupts": "the output changes after a copy from the CPU tier",
    "accept-collapse-after-reload": "no drafted token is accepted after such a copy",
    "never-pauses": "every request reserves all that it may generate, so none has to pause",
    "loses-paused": "a paused request never resumes and ends as aborted",
    "shortens-paused": "a resumed request ends halfway through what was left of it",
    "resume-corrupts": "the output changes after a resume",
    "pool-leak": "the first finished request never gives back what it held",
}
END = {
    "ignores-sigterm": "SIGTERM does nothing",
    "orphan-holds-port": "a child in a session of its own keeps the listening socket",
    "leaves-shm": "names in /dev/shm stay after a clean stop",
    "leaves-sysv": "a System V segment stays after a clean stop",
}
FAULTS: Mapping[str, str] = {**START, **RUNNING, **PD, **ENGINE, **END}


class Plan(Protocol):
    """What `Planted` needs of one planted fault: see `settings.Fault`."""

    @property
    def fault(self) -> str: ...
    @property
    def when(self) -> Mapping[str, Any]: ...
    @property
    def share(self) -> float: ...
    @property
    def after_requests(self) -> int: ...
    @property
    def to(self) -> str: ...
    @property
    def factor(self) -> float | None: ...


class Planted:
    """The faults that are aimed at a server with these start arguments. `requests` counts its prompts."""

    def __init__(self, plans: Sequence[Plan], start_args: Mapping[str, Any], seed: int = 0) -> None:
        """Raises ValueError for a condition on an argument that does not exist."""
        self._plans = {plan.fault: plan for plan in plans if _applies(plan.when, start_args)}
        self._seed = seed
        self.requests = 0

    def __contains__(self, name: str) -> bool:
        return name in self._plans

    def now(self, name: str) -> bool:
        """Whether the fault is planted and the requests that it spares are over."""
        return name in self._plans and self.requests > self._plans[name].after_requests

    def strikes(self, name: str, key: str) -> bool:
        """As `now`, for the share of the keys that the fault falls on: the same keys every time."""
        return self.now(name) and _fraction(f"{self._seed} {name} {key}") < self._plans[name].share

    def coin(self, name: str, key: str) -> bool:
        """Heads or tails for this key, the same every time."""
        return _fraction(f"{self._seed} coin {name} {key}") < 0.5

    def to(self, name: str, default: str) -> str:
        plan = self._plans.get(name)
        return plan.to if plan and plan.to else default

    def factor(self, name: str, default: float) -> float:
        """How much worse; 1 where the fault is not planted."""
        plan = self._plans.get(name)
        if plan is None:
            return 1.0
        return default if plan.factor is None else plan.factor


def _applies(when: Mapping[str, Any], start_args: Mapping[str, Any]) -> bool:
    for name in when:
        if name not in start_args:
            raise ValueError(f"a fault is aimed at the start argument '{name}', which does not exist")
    return all(start_args[name] == value for name, value in when.items())


def _fraction(text: str) -> float:
    return (
        int.from_bytes(hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()) / 2**64
    )
