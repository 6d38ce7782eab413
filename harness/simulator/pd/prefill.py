"""The prefill node: computes prompts, and sends what is computed while it goes on."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from harness.simulator.pd.asked import Asked, NodeParts
from harness.simulator.pd.lines import Kind, Piece
from harness.simulator.pd.link import Message
from harness.simulator.pd.sender import Order, Sender
from harness.simulator.types import Done, Request, Token


@dataclass(frozen=True, slots=True)
class Target:
    """Where a request's KV goes; the first `ready` tokens of it are there already."""

    host: str
    port: int
    agent: str
    ready: int


class Prefill:
    """`handle` is given what the master says; `say` answers it."""

    def __init__(self, parts: NodeParts, sender: Sender, say: Callable[..., None]) -> None:
        self._parts = parts
        self._sender = sender
        self._say = say
        self._asked: dict[int, Asked] = {}

    def handle(self, message: Message) -> None:
        if message.kind == "prompt":
            self._upload(Asked.of(message.fields))
            return
        asked = self._asked.pop(message["req_id"], None)
        if asked is None:
            return
        if message.kind == "stop":
            text = f"pd prefill node stop gen token for group_request_id {asked.req_id}"
            self._parts.log.line("INFO", "manager.py:812", text)
        elif message.kind == "compute":
            self._compute(asked, Target(*(message[name] for name in ("host", "port", "agent", "ready"))))
        elif message.kind == "abort" and asked.request is not None:
            asked.request.aborted = True

    def _upload(self, asked: Asked) -> None:
        try:
            self._parts.accept(asked)
        except ValueError as error:
            self._say("failed", req_id=asked.req_id, error=str(error))
            return
        self._asked[asked.req_id] = asked
        length = len(asked.prompt)
        text = f"pd prefill node upload group_req_id {asked.req_id} prompt ids len : {length}"
        self._parts.log.line("INFO", "manager.py:798", text)
        self._say("prompt_ids", req_id=asked.req_id, length=length)

    def _compute(self, asked: Asked, target: Target) -> None:
        if self._parts.planted.now("health-green-while-dead"):
            return
        job = _Job(self._parts, self._sender, asked, target, lambda: self._asked.pop(asked.req_id, None))
        options = {**asked.options, "max_new_tokens": 1}
        asked.request = Request(
            req_id=asked.req_id,
            prompt=asked.prompt,
            emit=lambda item: self._parts.pump.later(partial(job.heard, item)),
            progress=lambda computed: self._parts.pump.later(partial(job.computed, computed)),
            use_cache=self._parts.use_cache,
            **options,
        )
        self._asked[asked.req_id] = asked
        self._parts.pump.add(asked.request)


class _Job:
    """One prompt while it is computed: cut into pieces by what is computed, and by the transfer page."""

    def __init__(
        self, parts: NodeParts, sender: Sender, asked: Asked, target: Target, ended: Callable[[], Any]
    ) -> None:
        self._parts = parts
        self._sender = sender
        self._asked = asked
        self._target = target
        self._ended = ended
        self._sent = target.ready
        self._page = 0

    def computed(self, tokens: int) -> None:
        if self._parts.planted.now("prefill-dies"):
            os.kill(os.getpid(), signal.SIGKILL)
        if tokens < len(self._asked.prompt):  # the last piece waits for the first token
            self._send_until(tokens)

    def heard(self, item: Token | Done) -> None:
        if isinstance(item, Done):
            self._ended()
            self._parts.finish(self._asked, item)
            return
        self._asked.timing.token()
        self._parts.pump.last_token = time.monotonic()
        length, hybrid = len(self._asked.prompt), self._parts.hybrid
        first = (item.id, item.logprob, item.prompt_cached)
        self._send_until(length, None if hybrid else first)
        if hybrid:
            state = self._parts.engine.language.state(self._asked.prompt)
            self._order("linear_att_state", length, length, state, first)

    def _send_until(self, end: int, first: tuple[int, float, int] | None = None) -> None:
        size = self._parts.args["pd_kv_page_size"]
        while self._sent < end:
            start, stop = self._sent, min(end, self._sent + size)
            self._sent = stop
            if self._strikes("pd-gap") and not self._page:
                start += (stop - start) // 2
            payload = self._parts.engine.language.kv(self._asked.prompt[start:stop])
            self._order("kv", start, stop, payload, first if stop == end else None)

    def _order(
        self, kind: Kind, start: int, stop: int, payload: bytes, first: tuple[int, float, int] | None
    ) -> None:
        pages = self._parts.args["pd_kv_page_num"]
        piece = Piece(
            request_id=self._asked.req_id,
            first=start,
            last=stop,
            kind=kind,
            prefill=self._parts.agent,
            decode=self._target.agent,
            pages=pages,
            src_page=self._page % pages,
        )
        if self._strikes("pd-corrupt-transfer") and not self._page:
            payload = bytes([payload[0] ^ 1]) + payload[1:]
        error = "xfer error" if self._strikes("pd-transfer-error") else None
        self._page += 1
        host, port = self._target.host, self._target.port
        self._sender.put(Order(piece=piece, payload=payload, host=host, port=port, first=first, error=error))

    def _strikes(self, fault: str) -> bool:
        return self._parts.planted.strikes(fault, self._asked.key)
