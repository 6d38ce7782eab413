"""A request as the master passes it on, and what a node keeps and logs of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.simulator.faults import Planted
from harness.simulator.log import Log
from harness.simulator.metrics import Metrics
from harness.simulator.pump import Pump
from harness.simulator.request_lines import Timing, done_line, header
from harness.simulator.scheduler import Scheduler
from harness.simulator.types import Done, Request


@dataclass(kw_only=True, slots=True, eq=False)
class Asked:
    """`req_id` is the number that the master gave it, and `options` go to the engine as they are."""

    req_id: int
    prompt: tuple[int, ...]
    options: Mapping[str, Any]
    timing: Timing = field(default_factory=Timing)
    request: Request | None = None  # once the engine has it

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> "Asked":
        options = {**fields["options"], "stop": tuple(fields["options"]["stop"])}
        return cls(req_id=fields["req_id"], prompt=tuple(fields["prompt"]), options=options)

    @property
    def key(self) -> str:
        """What a fault's share is dealt by."""
        return repr(self.prompt)


def options_of(request: Request) -> dict[str, Any]:
    """What a node has to know of a request beside its prompt."""
    names = ("max_new_tokens", "min_new_tokens", "ignore_eos", "stop", "seed")
    return {name: getattr(request, name) for name in names}


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeParts:
    """What both kinds of node work with. `longest` request, in tokens; `patience` scales time-outs."""

    args: Mapping[str, Any]
    engine: Scheduler
    pump: Pump
    metrics: Metrics
    planted: Planted
    log: Log
    agent: str
    longest: int
    hybrid: bool
    patience: float

    @property
    def use_cache(self) -> bool:
        return not self.args["disable_dynamic_prompt_cache"]

    def accept(self, asked: Asked) -> None:
        """Count and log a request that came in. Raises ValueError for one that does not fit."""
        self.planted.requests += 1
        self.pump.before_request()
        self.metrics.count += 1
        front = header(asked.req_id, {}, asked.timing)
        self.log.line("INFO", "manager.py:538", f"received req {front} ")
        length = len(asked.prompt)
        if length >= self.longest:
            self.metrics.failure += 1
            raise ValueError(f"the input prompt token len {length} is too long, the limit is {self.longest}")

    def finish(self, asked: Asked, done: Done) -> None:
        """Count and log its end."""
        self.metrics.add(len(asked.prompt), done.generated, done)
        front = header(asked.req_id, {}, asked.timing)
        line = done_line(front, len(asked.prompt), done.generated, done, asked.timing, self.args["mtp_step"])
        self.log.line("INFO", "manager.py:745", line)
        self.log.line("DEBUG", "manager.py:771", f"httpserver release req_id {asked.req_id}, index 0")
