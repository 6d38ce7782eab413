"""The decode node's side of the transfers: listens for prefill nodes and gives every piece to its request."""

import asyncio
import itertools
import socket
import time
from typing import Protocol

from harness.simulator.http import MAX_LINE
from harness.simulator.log import Log
from harness.simulator.pd.lines import Piece
from harness.simulator.pd.link import Link, Message

FIRST_PORT, PORTS = 30_000, 100
READ_MS, READ_TOKEN_MS = 0.2, 0.0004  # simulated, of one page


class Landing(Protocol):
    """A request whose KV is awaited."""

    def take(self, piece: Piece, payload: bytes, token: tuple[int, float, int] | None) -> None:
        """Raises ValueError for what is no KV."""
        ...

    def lost(self, error: str) -> None: ...


class Landings(Protocol):
    def find(self, request_id: int) -> Landing | None: ...

    def lost(self, agent: str) -> None:
        """The prefill node of this name is gone."""
        ...


class Receiver:
    """`run` serves the bound socket for ever. `mode` is nccl or nixl; `pages`: how many a node has."""

    def __init__(self, bound: socket.socket, agent: str, mode: str, pages: int, log: Log) -> None:
        self.host, self.port = bound.getsockname()
        self._listener = bound
        self._agent = agent
        self._nccl = mode == "nccl"
        self._pages = pages
        self._next = itertools.count()
        self._log = log

    async def run(self, landings: Landings) -> None:
        sessions: set[asyncio.Task[None]] = set()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            session = asyncio.get_running_loop().create_task(self._serve(Link(reader, writer), landings))
            sessions.add(session)
            session.add_done_callback(sessions.discard)

        server = await asyncio.start_server(accept, sock=self._listener, limit=MAX_LINE)
        await server.serve_forever()

    async def _serve(self, link: Link, landings: Landings) -> None:
        agent = ""
        try:
            agent = str((await link.receive())["agent"])
            if self._nccl:
                text = f"Created NCCL communicator with peer {agent}"
                self._log.line("INFO", "nccl_transporter.py:61", text)
            while True:
                await self._piece(link, agent, await link.receive(), landings)
        except (ConnectionError, KeyError, TypeError):  # it is gone, or no prefill node
            landings.lost(agent)
        finally:
            link.close()

    async def _piece(self, link: Link, agent: str, asked: Message, landings: Landings) -> None:
        began, page = time.time(), next(self._next) % self._pages
        piece = Piece(
            request_id=asked["request_id"],
            first=asked["first"],
            last=asked["last"],
            kind=asked["piece"],
            prefill=agent,
            decode=self._agent,
            pages=self._pages,
            src_page=asked["src_page"],
            created=asked["created"],
        )
        self._say("decode_trans.py:104", f"recv WRITE request from prefill: {piece.task('request')}")
        landing = landings.find(piece.request_id)
        if landing is None:
            link.send("refused", error="request is not waiting for kv")
            return
        piece = piece.on(page)
        link.send("ready", page=page)
        sent = await link.receive()
        error = str(sent["error"]) if sent.kind == "failed" else None
        if error is None:
            self._received(piece)
            error = _stored(landing, piece, sent, asked["token"])
        if error is not None:
            self._say("decode_trans.py:196", piece.outcome(error))
            link.send("refused", error=error)
            landing.lost(error)
            return
        link.send("stored")
        read = READ_MS + READ_TOKEN_MS * (piece.last - piece.first)
        costs = f"cost time: {time.time() - began:.6f} s read_page_gpu_time: {read:.3f} ms"
        self._say("decode_trans.py:181", f"{piece.outcome()} {costs}")

    def _received(self, piece: Piece) -> None:
        if self._nccl:
            text = f"NCCL recv page done request_id={piece.request_id} dst_page={piece.dst_page}"
            self._say("nccl_transporter.py:117", text)
        self._say("decode_trans.py:152", f"recv WRITE done from prefill: {piece.task('done')}")

    def _say(self, place: str, text: str) -> None:
        self._log.line("INFO", place, text)


def _stored(landing: Landing, piece: Piece, sent: Message, token: list[float] | None) -> str | None:
    """Why not, if not."""
    first = None if token is None else (int(token[0]), float(token[1]), int(token[2]))
    try:
        landing.take(piece, sent.payload, first)
    except ValueError as error:
        return str(error)
    return None


def listener(host: str) -> socket.socket:
    """The first free port of those that LightLLM takes. Raises OSError."""
    for port in range(FIRST_PORT, FIRST_PORT + PORTS):
        bound = socket.socket()
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((host, port))
            bound.listen(64)
        except OSError:
            bound.close()
            continue
        return bound
    raise OSError(f"none of the ports {FIRST_PORT} to {FIRST_PORT + PORTS - 1} is free on {host}")
