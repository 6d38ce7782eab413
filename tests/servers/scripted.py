"""An upstream that sends exactly the bytes a test wants, when it wants them."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import BinaryIO, Self


@dataclass(frozen=True, slots=True)
class Received:
    """One request as it came over the wire: `raw` to the byte, `body` without chunked framing."""

    line: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    raw: bytes

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)


# Pieces to send one by one; the connection is closed after a script that ends with CLOSE, reset after RESET.
Script = Callable[[Received], Iterable[bytes]]
CLOSE = b"\0close"
RESET = b"\0reset"


def answer(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    """A whole HTTP answer with a length."""
    lines = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode("utf-8", "surrogateescape") + body


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


class Scripted:
    """Serves on a free port, one thread for each connection. `requests` are all it has seen
    on `accepted` connections, `broken` is set
    when a client has gone away under a running script."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self._connections: list[socket.socket] = []
        self.requests: list[Received] = []
        self.accepted = 0
        self.broken = threading.Event()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in [self._listener, *self._connections]:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._connections.append(connection)
                self.accepted += 1
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError):
            for request in _requests(connection):
                self.requests.append(request)
                for piece in self._script(request):
                    if piece == RESET:
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                    if piece in (CLOSE, RESET):
                        return connection.close()
                    if _gone(connection):
                        self.broken.set()
                        return connection.close()
                    connection.sendall(piece)
        return connection.close()


def _gone(connection: socket.socket) -> bool:
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


class _Wire:
    """Reads from a connection and remembers what it read."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.raw = b""

    def line(self) -> bytes:
        line = self._stream.readline()
        self.raw += line
        return line.rstrip(b"\r\n")

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self.raw += data
        return data

    def chunks(self) -> bytes:
        body = []
        while size := int(self.line(), 16):
            body.append(self.read(size))
            self.line()
        self.line()
        return b"".join(body)


def _requests(connection: socket.socket) -> Iterator[Received]:
    with connection.makefile("rb") as stream:
        while True:
            wire = _Wire(stream)
            first = wire.line().decode("latin-1")
            if not first:
                return
            headers = []
            while field := wire.line():
                name, _, value = field.decode("utf-8", "surrogateescape").partition(":")
                headers.append((name, value.strip()))
            sent = {name.lower(): value for name, value in headers}
            if "expect" in sent:
                connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            length = int(sent.get("content-length", 0))
            body = wire.chunks() if "transfer-encoding" in sent else wire.read(length)
            yield Received(first, tuple(headers), body, wire.raw)
