"""One connection between two servers: messages of one line of JSON, each with as many bytes as it says."""

import asyncio
import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.simulator.http import MAX_LINE


@dataclass(frozen=True, slots=True)
class Message:
    """`kind` says what `fields` it has."""

    kind: str
    fields: Mapping[str, Any]
    payload: bytes = b""

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]


class Link:
    """Whoever reads must be one task; anybody may send."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @property
    def peer(self) -> tuple[str, int]:
        """Address and port of the other side."""
        address = self._writer.get_extra_info("peername") or ("", 0)
        return str(address[0]), int(address[1])

    def send(self, kind: str, payload: bytes = b"", **fields: Any) -> None:
        """What cannot be sent any more is dropped: whoever reads learns that the connection has ended."""
        if not self._writer.is_closing():
            head = json.dumps({"kind": kind, "size": len(payload), **fields})
            self._writer.write(head.encode() + b"\n" + payload)

    async def drained(self) -> None:
        """Raises ConnectionError."""
        await self._writer.drain()

    async def receive(self) -> Message:
        """Raises ConnectionError when the other side has closed, or does not speak like this."""
        try:
            fields = json.loads(await self._reader.readuntil(b"\n"))
            payload = await self._reader.readexactly(fields.pop("size"))
            return Message(fields.pop("kind"), fields, payload)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise ConnectionResetError("the connection was closed by the other side") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConnectionAbortedError(f"not a message: {error}") from error

    def close(self) -> None:
        """At once: nothing that is still unsent is sent."""
        self._writer.transport.abort()


async def connect(host: str, port: int) -> Link:
    """Raises OSError."""
    return Link(*await asyncio.open_connection(host, port, limit=MAX_LINE))


async def upgrade(host: str, port: int, path: str) -> Link:
    """A connection to an HTTP server that gives it away at this path. Raises OSError."""
    reader, writer = await asyncio.open_connection(host, port, limit=MAX_LINE)
    status = await _get(reader, writer, path, "Upgrade")
    if status != 101:
        writer.close()
        raise ConnectionRefusedError(f"{host}:{port}{path} answered {status}")
    return Link(reader, writer)


async def http_status(host: str, port: int, path: str, seconds: float) -> int | None:
    """Of a GET; None without an answer in that time."""
    with contextlib.suppress(OSError):
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                return await _get(reader, writer, path, "close")
            finally:
                writer.close()
    return None


async def _get(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, connection: str
) -> int | None:
    writer.write(f"GET {path} HTTP/1.1\r\nHost: node\r\nConnection: {connection}\r\n\r\n".encode())
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        return int(head.split(None, 2)[1])
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, IndexError):
        return None
