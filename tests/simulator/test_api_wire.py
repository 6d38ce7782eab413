"""The HTTP server itself, byte by byte."""

import json
import socket
from pathlib import Path

import pytest

from tests.simulator.launched import launched, until


@pytest.mark.process
def test_on_the_wire(tmp_path: Path) -> None:
    """Keep-alive, pipelining, chunked bodies, Expect, garbage, and clients that hang up."""
    with launched(tmp_path, settings={"speed": 1}) as server:
        server.ready()

        def talk(data: bytes, until_text: bytes) -> bytes:
            with socket.create_connection(("127.0.0.1", server.port), 10) as client:
                client.sendall(data)
                seen = b""
                while until_text not in seen:
                    piece = client.recv(65536)
                    if not piece:
                        break
                    seen += piece
                return seen

        get = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
        assert talk(get * 3 + get.replace(b"health", b"liveness"), b"status").count(b"200 OK") == 4
        body = b'{"text": "abc"}'
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:5], body[5:])) + b"0\r\n\r\n"
        post = b"POST /tokens HTTP/1.1\r\nHost: x\r\n"
        assert b'{"ntokens": 4}' in talk(post + b"Transfer-Encoding: chunked\r\n\r\n" + chunks, b"ntokens")
        expecting = post + b"Expect: 100-continue\r\nContent-Length: 15\r\n\r\n"
        assert talk(expecting, b"\r\n\r\n").startswith(b"HTTP/1.1 100 Continue")
        assert talk(b"nonsense\r\n\r\n", b"close").startswith(b"HTTP/1.1 400")
        assert talk(post + b"Content-Length: -1\r\n\r\n", b"close").startswith(b"HTTP/1.1 400")
        for path in ("/generate", "/generate_stream"):
            long = json.dumps(
                {"inputs": "a", "parameters": {"max_new_tokens": 5000, "ignore_eos": True}}
            ).encode()
            before = server.log.count("aborted group_request_id")
            with socket.create_connection(("127.0.0.1", server.port), 10) as client:
                client.sendall(
                    b"POST %b HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (path.encode(), len(long), long)
                )
                until(lambda: "router recive req id" in server.log, "the request")
                if path == "/generate_stream":
                    client.recv(100)
            until(lambda n=before: server.log.count("aborted group_request_id") > n, "the abort")  # type: ignore[misc]
            until(lambda at=path: f"POST {at} 499" in server.log, "the access line")  # type: ignore[misc]
        assert server.generate().status_code == 200
