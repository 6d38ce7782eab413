"""A small HTTP/1.1 server on asyncio: keep-alive, chunked bodies in, streams out, and clients that hang up.

A handler whose client is gone is cancelled. Whatever it does then, the access log shows 499.
"""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeAlias
from urllib.parse import unquote

MAX_HEAD = 65536
MAX_LINE = 1 << 26  # of a connection that was taken over
CLIENT_GONE = 499
SWITCHED = 101
_BAD_REQUEST = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Request:
    """Header names are lower case; `path` is without its query."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Raises ValueError for what is no JSON."""
        return json.loads(self.body)


Taker: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]


@dataclass(frozen=True, slots=True)
class Response:
    """`body` is sent whole; with `stream`, its pieces are sent as they come. With `taken`, the answer is 101
    and the connection its own from then on."""

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    stream: AsyncGenerator[bytes, None] | None = field(default=None)
    taken: Taker | None = None

    @classmethod
    def of(cls, content: Any, status: int = 200) -> "Response":
        return cls(status, json.dumps(content, ensure_ascii=False).encode(errors="replace"))

    @classmethod
    def text(cls, content: str, status: int = 200) -> "Response":
        return cls(status, content.encode(), "text/plain; charset=utf-8")

    @classmethod
    def events(cls, stream: AsyncGenerator[bytes, None]) -> "Response":
        return cls(content_type="text/event-stream; charset=utf-8", stream=stream)


Handler: TypeAlias = Callable[[Request], Awaitable[Response]]
AccessLog: TypeAlias = Callable[[str, str, int], None]


class _Malformed(Exception):
    """Bytes that are no HTTP request."""


class Server:
    """`active` are the connections that have a request running."""

    def __init__(self, handler: Handler, access: AccessLog) -> None:
        """The handler must not raise. `access` is told method, path and status of every answer."""
        self.active: set[object] = set()
        self._handler = handler
        self._access = access
        self._server: asyncio.Server | None = None

    async def listen(self, listener: socket.socket) -> None:
        """Serve on a bound socket."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self._handler, self._access, self.active), sock=listener, backlog=1024
        )

    def close(self) -> None:
        """Stop listening; what runs goes on."""
        if self._server is not None:
            self._server.close()


class _Connection(asyncio.Protocol):
    def __init__(self, handler: Handler, access: AccessLog, active: set[object]) -> None:
        self._handler = handler
        self._access = access
        self._active = active
        self._buffer = bytearray()
        self._invited = False
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._transport = None
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._advance()

    def _advance(self) -> None:
        """Start the next request, if there is a whole one and none is running."""
        if self._task is not None or self._transport is None:
            return
        try:
            parsed = _parse(self._buffer)
        except _Malformed:
            self._send(_BAD_REQUEST)
            self._transport.close()
            return
        if parsed is None:
            self._invite()
            return
        request, used, keep = parsed
        del self._buffer[:used]
        self._invited = False
        self._active.add(self)
        self._task = asyncio.get_running_loop().create_task(self._answer(request, keep))

    def _invite(self) -> None:
        """Ask for the body, once, if the client waits for that."""
        head, end, _ = self._buffer[:MAX_HEAD].partition(b"\r\n\r\n")
        if end and not self._invited and b"100-continue" in head.lower():
            self._invited = True
            self._send(b"HTTP/1.1 100 Continue\r\n\r\n")

    async def _answer(self, request: Request, keep: bool) -> None:
        status = CLIENT_GONE
        try:
            response = await self._handler(request)
            if response.taken is not None:
                status = SWITCHED
                self._hand_over(response.taken)
            else:
                await self._write(response, head_only=request.method == "HEAD", keep=keep)
                status = response.status
        except asyncio.CancelledError:
            if self._transport is not None:  # the server stops; the client is still there
                self._transport.abort()
            return
        except Exception:
            keep = False  # a stream broke; the client must see that it is not whole
            raise
        finally:
            self._access(request.method, request.path, status)
            self._task = None
            self._active.discard(self)
            if not keep and self._transport is not None:
                self._transport.close()
        self._advance()

    def _hand_over(self, take: Taker) -> None:
        transport, self._transport = self._transport, None
        if transport is None:
            return
        transport.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\r\n")
        reader = asyncio.StreamReader(limit=MAX_LINE)
        protocol = asyncio.StreamReaderProtocol(reader)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        reader.feed_data(bytes(self._buffer))
        take(reader, asyncio.StreamWriter(transport, protocol, reader, asyncio.get_running_loop()))

    async def _write(self, response: Response, *, head_only: bool, keep: bool) -> None:
        head = [
            f"HTTP/1.1 {response.status} {_phrase(response.status)}",
            f"Content-Type: {response.content_type}",
        ]
        if not keep:
            head.append("Connection: close")
        if response.stream is None:
            head.append(f"Content-Length: {len(response.body)}")
            self._send("\r\n".join([*head, "", ""]).encode() + (b"" if head_only else response.body))
            return
        head.append("Transfer-Encoding: chunked")
        self._send("\r\n".join([*head, "", ""]).encode())
        async with contextlib.aclosing(response.stream) as stream:
            async for piece in stream:
                self._send(b"%x\r\n%b\r\n" % (len(piece), piece))
        self._send(b"0\r\n\r\n")

    def _send(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


def _phrase(status: int) -> str:
    return HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else "Client Closed Request"


def _parse(buffer: bytearray) -> tuple[Request, int, bool] | None:
    """The first request, the bytes it took and whether the connection stays; None when more must come."""
    end = buffer.find(b"\r\n\r\n")
    if end < 0:
        if len(buffer) > MAX_HEAD:
            raise _Malformed("header too long")
        return None
    first, *rest = bytes(buffer[:end]).decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise _Malformed("no HTTP/1 request line")
    headers = {
        name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)
    }
    body = _body(buffer, end + 4, headers)
    if body is None:
        return None
    content, used = body
    connection = headers.get("connection", "").lower()
    keep = connection != "close" and (words[2] == "HTTP/1.1" or connection == "keep-alive")
    return Request(words[0], unquote(words[1].partition("?")[0]), headers, content), used, keep


def _body(buffer: bytearray, start: int, headers: Mapping[str, str]) -> tuple[bytes, int] | None:
    if "chunked" in headers.get("transfer-encoding", "").lower():
        return _chunks(buffer, start)
    length = headers.get("content-length", "0")
    if not length.isdecimal():
        raise _Malformed("bad Content-Length")
    end = start + int(length)
    return (bytes(buffer[start:end]), end) if len(buffer) >= end else None


def _chunks(buffer: bytearray, at: int) -> tuple[bytes, int] | None:
    parts: list[bytes] = []
    while (line_end := buffer.find(b"\r\n", at)) >= 0:
        try:
            size = int(bytes(buffer[at:line_end]).partition(b";")[0], 16)
        except ValueError as error:
            raise _Malformed("bad chunk") from error
        at = line_end + 2
        if len(buffer) < at + size + 2:
            return None
        parts.append(bytes(buffer[at : at + size]))
        at += size + 2
        if not size:
            return b"".join(parts), at
    return None
