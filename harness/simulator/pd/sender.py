"""The prefill node's side of the transfers: piece by piece, over one connection for each decode node."""

import asyncio
import os
import socket
import time
from dataclasses import dataclass

from harness.simulator.log import Log
from harness.simulator.pd.lines import Piece
from harness.simulator.pd.link import Link, Message, connect

ANSWER_S = 66.0
TELEMETRY = "LIGHTLLM_NIXL_CAPTURE_TELEMETRY"


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """A piece to send, and what it needs besides. `first`: with a request's last piece, the first token, its
    log-probability and the prompt tokens that were cached. `error`: why it is not sent after all."""

    piece: Piece
    payload: bytes
    host: str
    port: int
    first: tuple[int, float, int] | None = None
    error: str | None = None


class Sender:
    """`run` sends what `put` was given. `mode` is nccl or nixl; `patience` scales the time-outs."""

    def __init__(self, agent: str, mode: str, log: Log, patience: float) -> None:
        self._agent = agent
        self._nccl = mode == "nccl"
        self._log = log
        self._seconds = ANSWER_S * patience
        self._orders: asyncio.Queue[Order] = asyncio.Queue()
        self._links: dict[tuple[str, int], Link] = {}

    def put(self, order: Order) -> None:
        self._orders.put_nowait(order)

    async def run(self, channel: socket.socket) -> None:
        """For ever. `channel` is the node's own, on which nobody calls a prefill node."""
        with channel:
            await self._work()

    async def _work(self) -> None:
        while True:
            order = await self._orders.get()
            try:
                async with asyncio.timeout(self._seconds):
                    error = await self._send(order)
            except OSError as lost:  # a time-out is one too
                self._forget(order)
                error = f"{type(lost).__name__}: {lost}"
            if error is not None:
                self._log.line("INFO", "prefill_trans.py:201", order.piece.outcome(error))

    async def _send(self, order: Order) -> str | None:
        """Why it failed, if it did. Raises OSError."""
        began, piece = time.time(), order.piece
        link = await self._link(order)
        self._say("prefill_trans.py:118", f"send WRITE request to decode: {piece.key}")
        link.send(
            "request",
            request_id=piece.request_id,
            first=piece.first,
            last=piece.last,
            piece=piece.kind,
            src_page=piece.src_page,
            created=piece.created,
            token=order.first,
        )
        reply = await link.receive()
        if reply.kind != "ready":
            return str(reply["error"])
        piece = piece.on(reply["page"])
        pages = f"srcpage={piece.src_page} dstpage={piece.dst_page}"
        self._say("prefill_trans.py:131", f"recv WRITE ready from decode {piece.span} {pages}")
        self._say("prefill_trans.py:140", f"start WRITE to decode node: {piece.task('ready')}")
        outcome = await self._page(link, order, piece)
        if outcome.kind != "stored":
            return str(outcome["error"])
        self._say("prefill_trans.py:188", f"{piece.outcome()} cost time: {time.time() - began:.6f}s")
        return None

    async def _page(self, link: Link, order: Order, piece: Piece) -> Message:
        """The answer to the page itself."""
        if order.error is not None:
            link.send("failed", error=order.error)
            return await link.receive()
        if self._nccl:
            text = f"NCCL send page posted request_id={piece.request_id} src_page={piece.src_page}"
            self._say("nccl_transporter.py:92", f"{text} dst_agent={piece.decode}")
        began = time.perf_counter()
        link.send("page", order.payload)
        await link.drained()
        pages = f"src_page={piece.src_page} dst_page={piece.dst_page}"
        self._say("prefill_trans.py:166", f"send WRITE done nixl notify {piece.span} {pages}")
        outcome = await link.receive()
        if not self._nccl and os.environ.get(TELEMETRY) == "1":
            spent = 1e6 * (time.perf_counter() - began)
            self._say(
                "nixl_transporter.py:171",
                f"write trans task {piece.span} {pages} xfer time: {spent:.3f} us, post time: 20.000 us, "
                f"backend time: {spent:.3f} us, nixl_backend: UCX, total_bytes: {len(order.payload)}",
            )
        return outcome

    async def _link(self, order: Order) -> Link:
        address = (order.host, order.port)
        if address not in self._links:
            link = await connect(*address)
            link.send("hello", agent=self._agent)
            self._links[address] = link
            if self._nccl:
                text = f"Created NCCL communicator with peer {order.piece.decode}"
                self._say("nccl_transporter.py:61", text)
        return self._links[address]

    def _forget(self, order: Order) -> None:
        link = self._links.pop((order.host, order.port), None)
        if link is not None:
            link.close()

    def _say(self, place: str, text: str) -> None:
        self._log.line("INFO", place, text)
