"""The master: takes requests as a single server does, and has a pair of nodes compute them."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.simulator.faults import Planted
from harness.simulator.log import Log
from harness.simulator.pd.asked import options_of
from harness.simulator.pd.link import Message
from harness.simulator.pd.roster import Node, Roster
from harness.simulator.pump import Breaker, Receiver
from harness.simulator.request_lines import header, master_done_line
from harness.simulator.sampling import Sampling
from harness.simulator.service import Group, ServerBusy, Service
from harness.simulator.start_args import RESERVED
from harness.simulator.types import Done, Limits, Request, Token

PROMPT_S, PLAN_S, FIRST_TOKEN_S = 180.0, 60.0, 182.0


class NodeFailed(Exception):
    """A node said that it cannot serve a request, or is gone."""


@dataclass(kw_only=True, slots=True, eq=False)
class Flight:
    """One request on its way through a pair of nodes."""

    request: Request
    sub_id: int
    prefill: Node
    decode: Node
    said: "asyncio.Queue[Message]" = field(default_factory=asyncio.Queue)
    arranged: bool = False  # both nodes know what to do
    task: "asyncio.Task[None] | None" = None

    async def expect(self, kind: str | None, seconds: float) -> Message:
        """What a node says next. Raises TimeoutError, NodeFailed."""
        async with asyncio.timeout(seconds):
            message = await self.said.get()
        if message.kind == "failed":
            raise NodeFailed(message["error"])
        if kind is not None and message.kind != kind:
            raise NodeFailed(f"{message.kind} instead of {kind}")
        return message


class Nodes:
    """What computes for the master's `Service`. Implements `service.Backend`."""

    def __init__(
        self,
        args: Mapping[str, Any],
        ids: Iterator[int],
        planted: Planted,
        log: Log,
        patience: float,
    ) -> None:
        """`ids` are shared with the service. `patience` scales time-outs."""
        longest = args["max_req_total_len"]
        self.limits = Limits(max_total_token_num=longest + RESERVED, max_req_total_len=longest)
        self.last_token = time.monotonic()
        self.before_request = Breaker(planted, log).before_request
        self.roster = Roster(args, log, patience, self._heard, self._gone)
        self.sub_ids: dict[int, int] = {}
        self._ids = ids
        self._planted = planted
        self._log = log
        self._patience = patience
        self._flights: dict[int, Flight] = {}

    @property
    def busy(self) -> bool:
        return bool(self._flights)

    def add(self, request: Request) -> None:
        """Raises RuntimeError where there are no nodes."""
        if self._planted.now("stall"):
            return
        prefill, decode = self.roster.pick()
        sub_id = self.sub_ids[request.req_id] = next(self._ids)
        text = f"pd log gen sub req id {sub_id} for main req id {request.req_id}"
        self._log.line("INFO", "manager.py:571", text)
        flight = Flight(request=request, sub_id=sub_id, prefill=prefill, decode=decode)
        self._flights[sub_id] = flight
        flight.task = asyncio.get_running_loop().create_task(self._serve(flight))

    def deliver(self, receiver: Receiver, item: Token | Done) -> None:
        receiver.put(item)

    def abort(self, request: Request) -> None:
        sub_id = self.sub_ids.pop(request.req_id, None)
        flight = self._flights.pop(sub_id, None) if sub_id is not None else None
        if flight is not None:
            self._give_up(flight)
            if flight.task is not None:
                flight.task.cancel()

    def _give_up(self, flight: Flight) -> None:
        for node in (flight.prefill, flight.decode):
            node.link.send("abort", req_id=flight.sub_id)

    async def _serve(self, flight: Flight) -> None:
        error: Exception | None = None
        try:
            await self._arrange(flight)
            await self._relay(flight)
        except TimeoutError:
            error = ServerBusy("pd nodes are busy, please try again later.")
        except NodeFailed as failure:
            self._log.line("ERROR", "manager.py:655", f"received PD node generate error: {failure}")
            error = RuntimeError(f"PD node generate failed: {failure}")
        finally:
            self._flights.pop(flight.sub_id, None)
        if error is not None and flight.request.fail is not None:
            self.sub_ids.pop(flight.request.req_id, None)
            self._give_up(flight)
            flight.request.fail(error)

    async def _arrange(self, flight: Flight) -> None:
        sub_id, prompt = flight.sub_id, flight.request.prompt
        asked: dict[str, Any] = {"req_id": sub_id, "prompt": prompt, "options": options_of(flight.request)}
        flight.prefill.link.send("prompt", **asked)
        told = await flight.expect("prompt_ids", PROMPT_S * self._patience)
        text = f"group_request_id: {sub_id} get prefill prompt ids len {told['length']}"
        self._log.line("INFO", "manager.py:603", text)
        flight.decode.link.send("plan", **asked, prefill=f"{flight.prefill.node_id}_0")
        params = (await flight.expect("upkv", PLAN_S * self._patience))["params"]
        text = f"received upkv_status group_request_id: {sub_id} pd_master_node_id: 0"
        size = f"pd_kv_trans_params_len: {len(str(params))}"
        self._log.line("INFO", "api_http.py:417", f"{text} {size} from {flight.decode.link.peer}")
        if params["ready"] >= len(prompt) - 1:
            flight.prefill.link.send("stop", req_id=sub_id)
        else:
            flight.prefill.link.send("compute", req_id=sub_id, **params)
        flight.arranged = True

    async def _relay(self, flight: Flight) -> None:
        """Everything from the first token to the end."""
        seconds = FIRST_TOKEN_S * self._patience
        while True:
            message = await flight.expect(None, seconds)
            if message.kind == "token":
                seconds = float("inf")
                self.last_token = time.monotonic()
                flight.request.emit(Token(**message["token"]))
            elif message.kind == "done":
                flight.request.emit(Done(**message["done"]))
                return

    def _heard(self, message: Message) -> None:
        flight = self._flights.get(message["req_id"])
        if flight is not None:
            flight.said.put_nowait(message)

    def _gone(self, node: Node) -> None:
        """Once a decode node awaits KV, it finds by itself that none comes."""
        for flight in self._flights.values():
            if node is flight.decode or (node is flight.prefill and not flight.arranged):
                error = f"{node.mode} node {node.url} is gone"
                flight.said.put_nowait(Message("failed", {"error": error}))


class MasterService(Service):
    """Text in, nodes behind, and lines of its own."""

    pump: Nodes

    def _encode(self, prompt: str | list[int], sampling: Sampling) -> tuple[int, ...]:
        assert isinstance(prompt, str), "pd master only supports str prompts"
        assert sampling.use_cache, "pd master does not support disable_prompt_cache"
        assert sampling.n == 1, "the simulated pd master does not support n > 1"
        return super()._encode(prompt, sampling)

    def _to_router(self, group: Group) -> None:
        """There is none."""

    def _done_line(self, group: Group, out: int, done: Done) -> str:
        front = header(self.pump.sub_ids.pop(group.req_id, 0), group.headers, group.timing)
        return master_done_line(front, len(group.prompt), out, done, group.timing)
