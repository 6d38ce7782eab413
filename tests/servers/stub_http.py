"""A small threading HTTP/1.1 server that looks like llama.cpp's. Standard library only, quick to import."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 500: "Internal Server Error"}
REASONS |= {501: "Not Implemented", 503: "Service Unavailable"}
ERRORS = {400: "invalid_request_error", 404: "not_found_error", 500: "server_error"}
ERRORS |= {501: "not_supported_error", 503: "unavailable_error"}


@dataclass(frozen=True)
class Request:
    """One request. `json` raises ValueError where the body is none."""

    method: str
    path: str
    body: bytes

    def json(self) -> dict[str, Any]:
        payload = json.loads(self.body)
        if not isinstance(payload, dict):
            raise ValueError("the body is not an object")  # noqa: TRY004 - bad input, not a bad call
        return payload


@dataclass(frozen=True)
class Response:
    """One answer: bytes, or a stream of them that is sent piece by piece."""

    status: int = 200
    body: bytes | Iterator[bytes] = b""
    content_type: str = "application/json; charset=utf-8"
    headers: dict[str, str] = field(default_factory=dict)


def json_response(payload: Any, status: int = 200) -> Response:
    return Response(status, json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode())


def error_response(status: int, message: str) -> Response:
    error = {"code": status, "message": message, "type": ERRORS[status]}
    return json_response({"error": error}, status)


def serve(listener: socket.socket, handle: Callable[[Request], Response]) -> None:
    """Answer for ever, each connection in a thread of its own."""
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=_converse, args=(connection, handle), daemon=True).start()


def _converse(connection: socket.socket, handle: Callable[[Request], Response]) -> None:
    try:
        with connection, connection.makefile("rb") as stream:
            while True:
                request, keep = _read(stream)
                if request is None:
                    return
                response = handle(request)
                _send(connection, request, response, keep)
                if not keep or response.status >= 400:
                    return
    except (OSError, ValueError):
        return  # the client is gone, or speaks no HTTP


def _read(stream: BinaryIO) -> tuple[Request | None, bool]:
    words = stream.readline().decode("latin-1").split()
    if len(words) != 3:
        return None, False
    headers: dict[str, str] = {}
    while (line := stream.readline().decode("latin-1").strip()) != "":
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = _chunks(stream)
    else:
        body = stream.read(int(headers.get("content-length", 0)))
    keep = headers.get("connection", "keep-alive").lower() != "close" and words[2] == "HTTP/1.1"
    return Request(words[0], words[1].partition("?")[0], body), keep


def _chunks(stream: BinaryIO) -> bytes:
    body = b""
    while size := int(stream.readline().split(b";")[0], 16):
        body += stream.read(size)
        stream.readline()
    stream.readline()
    return body


def _send(connection: socket.socket, request: Request, response: Response, keep: bool) -> None:
    whole = response.body if isinstance(response.body, bytes) else None
    lines = [
        f"HTTP/1.1 {response.status} {REASONS[response.status]}",
        "Server: llama.cpp",
        "Access-Control-Allow-Origin: ",
        *(f"{name}: {value}" for name, value in response.headers.items()),
        f"Content-Type: {response.content_type}",
        "Transfer-Encoding: chunked" if whole is None else f"Content-Length: {len(whole)}",
        "Keep-Alive: timeout=5, max=100" if keep and response.status < 400 else "Connection: close",
    ]
    head = "\r\n".join(lines).encode() + b"\r\n\r\n"
    if whole is not None:
        connection.sendall(head if request.method == "HEAD" else head + whole)
        return
    connection.sendall(head)
    for piece in response.body:
        assert isinstance(piece, bytes)
        connection.sendall(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
    connection.sendall(b"0\r\n\r\n")
