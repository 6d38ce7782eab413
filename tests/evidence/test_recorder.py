"""The recording proxy on the wire: what goes through is unchanged, and what went through is on file."""

import concurrent.futures
import gzip
import hashlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.errors import HarnessError
from harness.evidence.recorder import Recorder, journal
from harness.findings import Code
from tests.servers.scripted import CLOSE, RESET, Received, Scripted, answer, chunk

pytestmark = pytest.mark.process

COMPLETIONS = "/v1/completions"
JSON = "Content-Type: application/json"


def completion(*texts: str | None, **more: Any) -> bytes:
    choices = [{"index": i, "text": text, "finish_reason": "stop"} for i, text in enumerate(texts)]
    return json.dumps({"object": "text_completion", "choices": choices, **more}).encode()


def always(*pieces: bytes) -> Callable[[Received], Iterable[bytes]]:
    return lambda request: pieces


def post(
    url: str, path: str, body: bytes | str | dict[str, Any], headers: dict[str, str] | None = None
) -> tuple[int, bytes]:
    connection = connect(url)
    try:
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        connection.request("POST", path, data, {"Content-Type": "application/json", **(headers or {})})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def connect(url: str) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)


def raw_socket(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]


def wait_for(what: Callable[[], bool], limit_s: float = 10.0) -> None:
    deadline = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.005)


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "requests.jsonl"


@pytest.fixture
def raw(out: Path) -> Path:
    return out.with_name("raw_responses.jsonl")


class TestPassingOn:
    def test_request_reaches_the_server_unchanged_but_for_its_host(self, out: Path) -> None:
        body = b'{ "prompt" : "caf\\u00e9", "odd":\t[1] }\n'
        head = (
            b"POST /v1/completions?a=%2F&b=1+2&c=%E4%BD%A0 HTTP/1.1\r\nhost:  me:1\r\n"
            b"X-Odd: \xe4\xbd\xa0 \xff\r\n"
            b"Cookie: a=1\r\nTwice: 1\r\nTwice: 2\r\nKeep-Alive: 5\r\ncontent-LENGTH: %d\r\n\r\n"
        ).replace(b"%d", str(len(body)).encode())
        with Scripted(always(answer(completion("x")))) as server, Recorder(server.url, out) as recorder:
            with raw_socket(recorder.base_url) as client:
                client.sendall(head + body)
                assert client.recv(65536) == answer(completion("x"))
            (got,) = server.requests
        authority = server.url.removeprefix("http://").encode()
        assert got.raw == head.replace(b"  me:1", b" " + authority) + body

    def test_every_byte_of_an_answer_reaches_the_client(self, out: Path) -> None:
        reply = (
            b"HTTP/1.1 418 I'm a teapot\r\nSet-Cookie: a\r\nset-cookie: b\r\nX-Odd: \xff\r\nKeep-Alive: 5\r\n"
        )
        reply += b"Transfer-Encoding: chunked\r\n\r\n5;odd=1\r\n{\xff \r\n\r\n0\r\nTrailer: x\r\n\r\n"
        with Scripted(always(reply)) as server, Recorder(server.url, out) as recorder:
            with raw_socket(recorder.base_url) as client:
                for _ in range(2):
                    client.sendall(f"POST {COMPLETIONS} HTTP/1.1\r\nContent-Length: 2\r\n\r\n{{}}".encode())
                    got = b""
                    while len(got) < len(reply):
                        got += client.recv(65536)
                    assert got == reply
            assert len(server.requests) == 2

    @pytest.mark.parametrize("method", ["GET", "DELETE", "OPTIONS", "PUT", "PATCH"])
    def test_any_method_and_path_passes_and_only_prompts_make_prompt_lines(
        self, out: Path, raw: Path, method: str
    ) -> None:
        with Scripted(always(answer(b"pong", status="404 Not Found"))) as server:
            with Recorder(server.url, out) as recorder:
                connection = connect(recorder.base_url)
                connection.request(method, "/any/thing?key=secret")
                response = connection.getresponse()
                assert (response.status, response.read()) == (404, b"pong")
                connection.close()
            assert server.requests[0].line == f"{method} /any/thing?key=secret HTTP/1.1"
        assert lines(out) == []
        (line,) = lines(raw)
        assert (line["method"], line["path"], line["status"]) == (method, "/any/thing", 404)
        assert (line["request"], line["response"]) == ("", "pong")
        assert recorder.counts.seen == 0

    def test_head_keeps_the_length_and_has_no_body(self, out: Path) -> None:
        reply = b"HTTP/1.1 200 OK\r\nContent-Length: 123\r\n\r\n"
        with Scripted(always(reply)) as server, Recorder(server.url, out) as recorder:
            connection = connect(recorder.base_url)
            for _ in range(2):
                connection.request("HEAD", "/health")
                response = connection.getresponse()
                assert (response.status, response.headers["Content-Length"]) == (200, "123")
                assert response.read() == b""
            connection.close()

    def test_chunked_request_and_chunked_answer(self, out: Path) -> None:
        body = completion("yes")
        pieces = [body[i : i + 7] for i in range(0, len(body), 7)]
        reply = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"".join(map(chunk, pieces))
        with Scripted(always(reply + chunk(b""))) as server, Recorder(server.url, out) as recorder:
            connection = connect(recorder.base_url)
            request = [b'{"prompt"', b': "a"}']
            connection.request("POST", COMPLETIONS, iter(request), encode_chunked=True)
            assert connection.getresponse().read() == body
            connection.close()
            assert server.requests[0].body == b"".join(request)
        (line,) = lines(out)
        assert (line["prompt_sha256"], line["text_sha256"], line["error"]) == (sha("a"), sha("yes"), None)

    def test_answer_that_ends_with_the_connection(self, out: Path) -> None:
        reply = b"HTTP/1.0 200 OK\r\n\r\n" + completion("old")
        with Scripted(always(reply, CLOSE)) as server, Recorder(server.url, out) as recorder:
            assert post(recorder.base_url, COMPLETIONS, {"prompt": "a"}) == (200, completion("old"))
        assert lines(out)[0]["text_sha256"] == sha("old")

    def test_gzip_passes_as_it_is_and_is_read_for_the_record(self, out: Path, raw: Path) -> None:
        body = gzip.compress(completion("squeezed"))
        request = gzip.compress(b'{"prompt": "small"}')
        reply = answer(body, "Content-Encoding: gzip")
        with Scripted(always(reply)) as server, Recorder(server.url, out) as recorder:
            headers = {"Content-Encoding": "gzip", "Accept-Encoding": "gzip, br"}
            assert post(recorder.base_url, COMPLETIONS, request, headers) == (200, body)
            assert server.requests[0].body == request
            assert server.requests[0].header("Accept-Encoding") == "gzip, br"
        (line,) = lines(out)
        assert (line["prompt_sha256"], line["text_sha256"]) == (sha("small"), sha("squeezed"))
        assert lines(raw)[0]["request"] == {"prompt": "small"}

    def test_no_proxy_of_the_environment_is_used(self, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, "http://127.0.0.1:9")
        with Scripted(always(answer(completion("x")))) as server, Recorder(server.url, out) as recorder:
            assert post(recorder.base_url, COMPLETIONS, {"prompt": "a"})[0] == 200

    def test_redirects_and_failures_are_the_clients_business(self, out: Path) -> None:
        reply = answer(b"", "Location: /elsewhere", status="307 Temporary Redirect")
        with Scripted(always(reply)) as server, Recorder(server.url, out) as recorder:
            assert post(recorder.base_url, COMPLETIONS, {"prompt": "a"})[0] == 307
            assert len(server.requests) == 1

    def test_client_that_waits_for_100_continue(self, out: Path) -> None:
        body = b'{"prompt": "a"}'
        with Scripted(always(answer(completion("x")))) as server, Recorder(server.url, out) as recorder:
            client = raw_socket(recorder.base_url)
            with client:
                head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
                client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode())
                assert client.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
                client.sendall(body)
                assert client.recv(65536).startswith(b"HTTP/1.1 200 OK\r\n")
        assert lines(out)[0]["status"] == 200

    @pytest.mark.parametrize(
        ("target", "path"),
        [
            ("http://other:1/v1/x?y=%2F", "/v1/x?y=%2F"),
            ("//v1/../x", "//v1/../x"),
            ("*", "*"),
            ("9/steal", "9/steal"),
            ("@other:1/x", "@other:1/x"),
            ("https://other", "/"),
        ],
    )
    def test_odd_targets_go_to_the_server_and_nowhere_else(self, out: Path, target: str, path: str) -> None:
        with Scripted(always(answer(b"ok"))) as server, Recorder(server.url, out) as recorder:
            with raw_socket(recorder.base_url) as client:
                client.sendall(f"OPTIONS {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                assert client.recv(65536) == answer(b"ok")
            assert server.requests[0].line == f"OPTIONS {path} HTTP/1.1"

    def test_upstream_with_a_path(self, out: Path) -> None:
        with Scripted(always(answer(b"ok"))) as server, Recorder(f"{server.url}/under/", out) as recorder:
            post(recorder.base_url, COMPLETIONS, {"prompt": "a"})
            assert server.requests[0].line == f"POST /under{COMPLETIONS} HTTP/1.1"
        assert lines(out)[0]["path"] == COMPLETIONS

    def test_ten_megabytes_in_and_out(self, out: Path, raw: Path) -> None:
        prompt = "long " * 2_000_000
        text = "x" * 10_000_000
        reply = answer(completion(text))
        with Scripted(always(reply)) as server, Recorder(server.url, out) as recorder:
            status, body = post(recorder.base_url, COMPLETIONS, {"prompt": prompt})
            assert (status, body) == (200, completion(text))
            assert json.loads(server.requests[0].body) == {"prompt": prompt}
        (line,) = lines(out)
        assert (line["prompt_chars"], line["text_chars"], line["error"]) == (10_000_000, 10_000_000, None)
        (line,) = lines(raw)
        assert line["truncated"] is True
        assert len(line["request"]) == len(line["response"]) == 4 << 20


class TestStreams:
    def events(self, *texts: str, reason: str | None = "stop") -> list[bytes]:
        payloads: list[Any] = [{"choices": [{"index": 0, "text": text}]} for text in texts]
        payloads.append({"choices": [{"index": 0, "text": "", "finish_reason": reason}]})
        payloads.append({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": len(texts)}})
        return [f"data: {json.dumps(payload)}\n\n".encode() for payload in payloads] + [b"data: [DONE]\n\n"]

    HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"

    def test_every_event_is_passed_on_before_the_next_one_exists(self, out: Path) -> None:
        go = threading.Semaphore(0)
        events = self.events("", "one", " two")

        def script(request: Received) -> Iterator[bytes]:
            yield self.HEAD
            for event in events:
                go.acquire(timeout=10)
                yield chunk(event)
            yield chunk(b"")

        with Scripted(script) as server, Recorder(server.url, out) as recorder:
            connection = connect(recorder.base_url)
            connection.request("POST", COMPLETIONS, json.dumps({"prompt": "a", "stream": True}))
            response = connection.getresponse()
            for event in events:
                if event == events[1]:
                    time.sleep(0.05)
                go.release()
                assert response.readline() + response.readline() == event
            assert response.read() == b""
            connection.close()
        (line,) = lines(out)
        assert (line["text_sha256"], line["finish_reason"]) == (sha("one two"), "stop")
        assert (line["prompt_tokens"], line["completion_tokens"]) == (3, 3)
        # the first event has no text: the time to the first token is that of the second
        assert 0.05 <= line["ttft_s"] <= line["latency_s"]
        assert line["streamed"] is True

    def test_stream_without_a_finish_reason_is_an_error(self, out: Path) -> None:
        body = b"".join(map(chunk, self.events("cut", reason=None))) + chunk(b"")
        with Scripted(always(self.HEAD + body)) as server, Recorder(server.url, out) as recorder:
            post(recorder.base_url, COMPLETIONS, {"prompt": "a", "stream": True})
        assert lines(out)[0]["error"] == "the stream ended without a finish reason"
        assert recorder.counts.failed == 1

    @pytest.mark.parametrize("end", [CLOSE, RESET])
    def test_server_that_dies_in_a_stream_breaks_the_clients_stream_too(self, out: Path, end: bytes) -> None:
        piece = chunk(self.events("half")[0])
        with Scripted(always(self.HEAD, piece, end)) as server, Recorder(server.url, out) as recorder:
            connection = connect(recorder.base_url)
            connection.request("POST", COMPLETIONS, json.dumps({"prompt": "a", "stream": True}))
            with pytest.raises((http.client.IncompleteRead, ConnectionError)):
                connection.getresponse().read()
            connection.close()
        (line,) = lines(out)
        assert line["status"] in (200, 0)  # a reset may overtake the head of the answer
        assert "server" in line["error"]
        assert line["client_gone"] is False

    def test_client_that_reads_slowly_slows_the_server_down(self, out: Path) -> None:
        sent = 0

        def script(request: Received) -> Iterator[bytes]:
            nonlocal sent
            yield self.HEAD
            for _ in range(64):
                yield chunk(b": ping" + b" " * (1 << 20) + b"\n")
                sent += 1
            yield chunk(self.events("end")[0]) + chunk(self.events()[0]) + chunk(b"")

        with Scripted(script) as server, Recorder(server.url, out) as recorder:
            connection = connect(recorder.base_url)
            connection.request("POST", COMPLETIONS, b'{"prompt": "a", "stream": true}')
            response = connection.getresponse()
            time.sleep(0.5)
            assert sent < 40  # what the sockets hold, and no more
            assert len(response.read()) > 64 << 20
            connection.close()

    def test_client_that_leaves_a_stream_ends_it_for_the_server(self, out: Path) -> None:
        def script(request: Received) -> Iterator[bytes]:
            yield self.HEAD
            for _ in range(10_000):
                yield chunk(self.events("more")[0])
                time.sleep(0.005)

        with Scripted(script) as server, Recorder(server.url, out) as recorder:
            with raw_socket(recorder.base_url) as client:
                body = b'{"prompt": "a", "stream": true}'
                client.sendall(
                    f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
                )
                client.sendall(body)
                assert client.recv(65536).startswith(b"HTTP/1.1 200")
            assert server.broken.wait(10)
            wait_for(lambda: recorder.counts.failed == 1)
        (line,) = lines(out)
        assert line["client_gone"] is True
        assert line["status"] == 200
        assert line["finish_reason"] is None


class TestEvidence:
    def test_each_prompt_of_a_batch_has_its_own_line_and_answer(self, out: Path, raw: Path) -> None:
        choices = [
            {"index": 2, "text": "third", "finish_reason": "length"},
            {"index": 0, "text": "  \n", "finish_reason": "stop"},
            {"index": 1, "text": None, "finish_reason": "stop"},
        ]
        usage = {"prompt_tokens": 9, "completion_tokens": 5}
        body = json.dumps({"choices": choices, "usage": usage}).encode()
        with Scripted(always(answer(body, JSON))) as server, Recorder(server.url, out) as recorder:
            for _ in range(2):
                prompts = ["问题 one", "two", "three", "four"]
                assert post(recorder.base_url, COMPLETIONS, {"prompt": prompts, "max_tokens": 4})[0] == 200
        counts = recorder.counts  # complete only now: a line is written after its answer was passed on
        assert (counts.seen, counts.finished, counts.failed) == (8, 6, 2)
        got = lines(out)
        assert [line["seq"] for line in got] == list(range(8))
        assert [(line["http_id"], line["index"]) for line in got[3:5]] == [(0, 3), (1, 0)]
        assert [line["attempt"] for line in got] == [1] * 4 + [2] * 4
        assert got[0]["prompt_sha256"] == sha("问题 one")
        assert [line["text_chars"] for line in got[:4]] == [3, 0, 5, None]
        assert [line["text_empty"] for line in got[:4]] == [True, True, False, None]
        assert [line["text_null"] for line in got[:4]] == [False, True, False, None]
        assert [line["finish_reason"] for line in got[:4]] == ["stop", "stop", "length", None]
        assert [line["error"] for line in got[:4]] == [None, None, None, "no choice for this prompt"]
        assert [line["usage"] for line in got[:4]] == [usage, None, None, None]
        assert [line["prompt_tokens"] for line in got[:4]] == [None] * 4
        assert lines(raw)[1]["response"] == json.loads(body)
        assert lines(raw)[1]["request"]["prompt"] == ["问题 one", "two", "three", "four"]

    def test_failed_then_repeated_request_shows_both(self, out: Path) -> None:
        replies = iter(
            [answer(b'{"error": {"message": "CUDA error"}}', status="500 X"), answer(completion("x"))]
        )
        with Scripted(lambda request: [next(replies)]) as server, Recorder(server.url, out) as recorder:
            for temperature in (0, 0, 1):
                replies = replies if temperature == 0 else iter([answer(completion("y"))])
                post(recorder.base_url, COMPLETIONS, {"prompt": "a", "temperature": temperature})
        assert [(line["attempt"], line["status"], line["error"]) for line in lines(out)] == [
            (1, 500, "HTTP 500: CUDA error"),
            (2, 200, None),
            (1, 200, None),
        ]

    def test_no_server_is_a_502_and_status_0(self, out: Path, raw: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        with Recorder(f"http://127.0.0.1:{port}", out) as recorder:
            status, body = post(recorder.base_url, COMPLETIONS, {"prompt": ["a", "b"]})
        assert status == 502
        assert str(port) in json.loads(body)["error"]["message"]
        assert [(line["status"], line["text_empty"]) for line in lines(out)] == [(0, None), (0, None)]
        assert "no answer from the server: ConnectionRefusedError" in lines(out)[0]["error"]
        assert lines(raw)[0]["response"] is None
        assert recorder.counts.failed == 2

    @pytest.mark.parametrize(
        "pieces",
        [
            (CLOSE,),
            (RESET,),
            (b"HTTP/1.1 200 OK\r\nContent-Le", CLOSE),
            (b"complete nonsense\r\n\r\n", CLOSE),
            (b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", CLOSE),
        ],
    )
    def test_server_that_breaks_off_before_its_answer_is_a_502_and_status_0(
        self, out: Path, pieces: tuple[bytes, ...]
    ) -> None:
        with Scripted(always(*pieces)) as server, Recorder(server.url, out) as recorder:
            assert post(recorder.base_url, COMPLETIONS, {"prompt": "a"})[0] == 502
            assert len(server.requests) == 1  # never asked a second time
        (line,) = lines(out)
        assert line["status"] == 0
        assert line["error"].startswith("no answer from the server: ")

    def test_server_that_breaks_off_in_its_answer_breaks_the_clients_too(self, out: Path) -> None:
        pieces = (b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{", CLOSE)
        with Scripted(always(*pieces)) as server, Recorder(server.url, out) as recorder:
            broken = pytest.raises(http.client.IncompleteRead)
            with broken:
                post(recorder.base_url, COMPLETIONS, {"prompt": "a"})
        (line,) = lines(out)
        assert line["status"] == 200
        assert line["error"] == "the server broke off its answer: it closed the connection"

    def test_client_that_leaves_is_on_file_and_frees_the_server(self, out: Path) -> None:
        arrived = threading.Event()

        def script(request: Received) -> Iterator[bytes]:
            arrived.set()
            for _ in range(2000):
                time.sleep(0.005)
                yield b""

        with Scripted(script) as server, Recorder(server.url, out) as recorder:
            with raw_socket(recorder.base_url) as client:
                body = b'{"prompt": "a"}'
                client.sendall(
                    f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
                )
                client.sendall(body)
                assert arrived.wait(10)
            assert server.broken.wait(10)
            wait_for(lambda: recorder.counts.failed == 1)
        (line,) = lines(out)
        assert (line["client_gone"], line["status"]) == (True, 0)
        assert line["error"] == "the client disconnected before the answer"

    def test_client_that_breaks_off_its_own_request(self, out: Path, raw: Path) -> None:
        with Scripted(always(answer(b""))) as server, Recorder(server.url, out) as recorder:
            with raw_socket(recorder.base_url) as client:
                client.sendall(
                    f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{{".encode()
                )
            wait_for(lambda: len(lines(raw)) == 1)
        assert lines(out) == []
        assert "while the request was still arriving" in lines(raw)[0]["error"]
        assert recorder.lost_evidence is None

    @pytest.mark.parametrize(
        ("sent", "what"),
        [
            (b"\x16\x03\x01 tls hello\r\n\r\n", "the first line"),
            (b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "a chunk's size"),
        ],
    )
    def test_client_that_speaks_no_http_is_cut_off_and_on_file(
        self, out: Path, raw: Path, sent: bytes, what: str
    ) -> None:
        with (
            Scripted(always(answer(b""))) as server,
            Recorder(server.url, out) as recorder,
            raw_socket(recorder.base_url) as client,
        ):
            client.sendall(sent)
            assert client.recv(100) in (
                b"",
                b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            )
        (line,) = lines(raw)
        assert what in line["error"]
        assert lines(out) == []

    def test_pipelined_requests_are_told_apart(self, out: Path) -> None:
        def script(request: Received) -> Iterable[bytes]:
            return [answer(completion(json.loads(request.body)["prompt"] + "!"))]

        one, two = (json.dumps({"prompt": text}).encode() for text in ("one", "two"))
        with (
            Scripted(script) as server,
            Recorder(server.url, out) as recorder,
            raw_socket(recorder.base_url) as client,
        ):
            for body in (one, two):
                head = f"POST {COMPLETIONS} HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
                client.sendall(head.encode() + body[:5])
                client.sendall(body[5:])
            got = b""
            while got.count(b"text_completion") < 2:
                got += client.recv(65536)
        assert [(line["prompt_sha256"], line["text_sha256"]) for line in lines(out)] == [
            (sha("one"), sha("one!")),
            (sha("two"), sha("two!")),
        ]

    def test_answer_before_the_request_is_whole(self, out: Path) -> None:
        with (
            socket.create_server(("127.0.0.1", 0)) as listener,
            Recorder(f"http://127.0.0.1:{listener.getsockname()[1]}", out) as recorder,
            raw_socket(recorder.base_url) as client,
        ):
            client.sendall(f"POST {COMPLETIONS} HTTP/1.1\r\nContent-Length: 99\r\n\r\n{{".encode())
            connection, _ = listener.accept()
            connection.sendall(answer(b"too long", status="413 Too Long"))
            assert client.recv(1000).startswith(b"HTTP/1.1 413")
            connection.close()
        assert lines(out)[0]["error"] == "HTTP 413: too long"

    def test_server_that_hangs_up_on_everybody(self, out: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:

            def hang_up() -> None:
                for _ in range(20):
                    listener.accept()[0].close()

            threading.Thread(target=hang_up, daemon=True).start()
            with Recorder(f"http://127.0.0.1:{listener.getsockname()[1]}", out) as recorder:
                for _ in range(20):
                    assert post(recorder.base_url, COMPLETIONS, {"prompt": "a"})[0] == 502
        assert [line["status"] for line in lines(out)] == [0] * 20

    def test_idle_connections_are_made_anew(self, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("harness.evidence.recorder.link._IDLE_S", 0.05)
        with (
            Scripted(always(answer(completion("x")), CLOSE)) as server,
            Recorder(server.url, out) as recorder,
        ):
            connection = connect(recorder.base_url)
            for number in range(3):  # the server closes after each answer, without a word
                connection.request("POST", COMPLETIONS, json.dumps({"prompt": f"p{number}"}))
                assert connection.getresponse().read() == completion("x")
                time.sleep(0.1)
            connection.close()
            assert len(server.requests) == 3
        assert [line["error"] for line in lines(out)] == [None] * 3

    def test_slow_upload_and_slow_answer_stay_on_one_connection(
        self, out: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("harness.evidence.recorder.link._IDLE_S", 0.1)

        def script(request: Received) -> Iterator[bytes]:
            time.sleep(0.2)
            yield answer(completion("x"))

        def slowly() -> Iterator[bytes]:
            for piece in (b'{"prompt"', b': "a"}'):
                time.sleep(0.2)
                yield piece

        with Scripted(script) as server, Recorder(server.url, out) as recorder:
            connection = connect(recorder.base_url)
            for _ in range(2):
                connection.request("POST", COMPLETIONS, slowly(), encode_chunked=True)
                assert connection.getresponse().read() == completion("x")
            connection.close()
            assert server.accepted == 1
        assert [line["error"] for line in lines(out)] == [None, None]

    @pytest.mark.parametrize(
        ("body", "problem"),
        [
            (b"{bad", "not JSON"),
            (b"\xff\xfe", "not JSON"),
            (b"[1]", "not a JSON object"),
            (b'{"max_tokens": 1}', "no prompt"),
            (b'{"prompt": "a", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "not JSON"),
        ],
    )
    def test_request_that_is_not_understood_is_still_one_failed_prompt(
        self, out: Path, body: bytes, problem: str
    ) -> None:
        with Scripted(always(answer(completion("x")))) as server, Recorder(server.url, out) as recorder:
            assert post(recorder.base_url, COMPLETIONS, body) == (200, completion("x"))
            assert server.requests[0].body == body
        (line,) = lines(out)
        assert problem in line["error"]
        assert line["prompt_sha256"] is None
        assert recorder.lost_evidence is None

    @pytest.mark.parametrize("body", [b"", b"<html>", b'"text"', b"[]", b"null", b'{"choices": 5}'])
    def test_200_that_is_no_answer_is_a_failure(self, out: Path, body: bytes) -> None:
        with Scripted(always(answer(body))) as server, Recorder(server.url, out) as recorder:
            assert post(recorder.base_url, COMPLETIONS, {"prompt": "a"}) == (200, body)
        assert lines(out)[0]["error"] in ("the answer is not JSON", "no choice for this prompt")

    def test_keys_are_never_written(self, out: Path, raw: Path) -> None:
        reply = answer(b'{"error": {"message": "Incorrect key sk-sesame-42"}}', status="401 No")
        with Scripted(always(reply)) as server, Recorder(server.url, out) as recorder:
            headers = {"Authorization": "Bearer sk-sesame-42", "X-Api-Key": "other-sesame-42"}
            body = {"prompt": "a", "api_key": "third-sesame-42"}
            post(recorder.base_url, COMPLETIONS + "?key=fourth-sesame-42", body, headers)
            assert server.requests[0].header("Authorization") == "Bearer sk-sesame-42"
        assert "sesame" not in out.read_text() + raw.read_text()
        assert lines(out)[0]["error"] == "HTTP 401: Incorrect key [redacted]"

    def test_hostile_text_stays_on_its_line(self, out: Path, raw: Path) -> None:
        text = 'a\n{"seq": 0}\r\x1b[2J\x00\u2028\ud800"'
        with Scripted(always(answer(completion(text)))) as server, Recorder(server.url, out) as recorder:
            post(recorder.base_url, COMPLETIONS, {"prompt": text})
        assert len(out.read_bytes().split(b"\n")) == len(raw.read_bytes().split(b"\n")) == 2
        assert lines(raw)[0]["response"]["choices"][0]["text"] == text
        assert lines(out)[0]["prompt_chars"] == len(text)
        assert b"\x1b" not in out.read_bytes() + raw.read_bytes()

    def test_many_at_once_keep_their_own_answers(self, out: Path) -> None:
        gate = threading.Barrier(256, timeout=30)

        def script(request: Received) -> Iterable[bytes]:
            gate.wait()  # all of them are in flight together
            return [answer(completion(json.loads(request.body)["prompt"] + "!"))]

        def ask(number: int) -> bool:
            status, body = post(recorder.base_url, COMPLETIONS, {"prompt": f"p{number}"})
            return (status, body) == (200, completion(f"p{number}!"))

        pool = concurrent.futures.ThreadPoolExecutor(256)
        with Scripted(script) as server, Recorder(server.url, out) as recorder, pool:
            assert all(pool.map(ask, range(256)))
        assert recorder.counts.finished == 256
        got = lines(out)
        assert sorted(line["seq"] for line in got) == list(range(256))
        asked = {sha(f"p{number}"): sha(f"p{number}!") for number in range(256)}
        assert {line["prompt_sha256"]: line["text_sha256"] for line in got} == asked


class TestLife:
    def test_full_disk_is_told_and_serving_goes_on(self, out: Path) -> None:
        with Scripted(always(answer(completion("x")))) as server, Recorder(server.url, out) as recorder:
            post(recorder.base_url, COMPLETIONS, {"prompt": "a"})
            wait_for(lambda: recorder.counts.finished == 1)
            assert recorder.lost_evidence is None
            assert recorder._journal is not None
            with Path("/dev/full").open("wb") as full:
                os.dup2(full.fileno(), recorder._journal._prompts._file)
            assert post(recorder.base_url, COMPLETIONS, {"prompt": "b"})[0] == 200
            wait_for(lambda: recorder.lost_evidence is not None)
            assert post(recorder.base_url, COMPLETIONS, {"prompt": "c"})[0] == 200
        assert recorder.lost_evidence is not None
        assert "No space left" in recorder.lost_evidence
        assert len(lines(out)) == 1  # what is there, is whole

    def test_a_bug_in_recording_is_told_too(self, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(journal, "prompt_lines", lambda *_: 1 / 0)
        with Scripted(always(answer(completion("x")))) as server, Recorder(server.url, out) as recorder:
            assert post(recorder.base_url, COMPLETIONS, {"prompt": "a"})[0] == 200
        assert "ZeroDivisionError" in str(recorder.lost_evidence)

    def test_proxy_that_dies_is_told_too(self, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        async def die(*_: object) -> None:
            raise RuntimeError("planted")

        monkeypatch.setattr("harness.evidence.recorder.proxy.Proxy.stop", die)
        with Recorder("http://127.0.0.1:9", out) as recorder:
            assert not recorder.lost_evidence
        assert "RuntimeError: planted" in str(recorder.lost_evidence)

    def test_evidence_is_never_overwritten(self, out: Path) -> None:
        out.write_text("earlier\n")
        with pytest.raises(HarnessError, match="earlier recording"), Recorder("http://127.0.0.1:9", out):
            pytest.fail("it recorded over the earlier evidence")
        assert out.read_text() == "earlier\n"

    def test_folder_that_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        recorder = Recorder("http://127.0.0.1:9", tmp_path / "file" / "requests.jsonl")
        with pytest.raises(HarnessError, match="cannot be created"):
            recorder.__enter__()

    def test_taken_port_is_named(self, out: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(HarnessError, match=str(port)) as caught:
                Recorder("http://127.0.0.1:9", out, port=port).__enter__()
        assert caught.value.code is Code.PORT_TAKEN
        assert not [thread for thread in threading.enumerate() if thread.name == "recorder"]

    def test_end_records_what_is_in_flight_and_gives_the_port_back(
        self, out: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("harness.evidence.recorder._GRACE_S", 0.2)
        arrived, go = threading.Event(), threading.Event()

        def script(request: Received) -> Iterator[bytes]:
            arrived.set()
            go.wait(10)
            yield answer(completion("late"))

        with Scripted(script) as server:
            recorder = Recorder(server.url, out)
            with recorder:
                port = int(recorder.base_url.rsplit(":", 1)[1])
                waiting = connect(recorder.base_url)
                waiting.request("POST", COMPLETIONS, b'{"prompt": "a"}')
                assert arrived.wait(10)
                idle = raw_socket(recorder.base_url)
                started = time.monotonic()
                recorder.close()
                assert time.monotonic() - started < 3
                recorder.close()
            go.set()
            with pytest.raises((ConnectionError, http.client.HTTPException)):
                waiting.getresponse()
            idle.close()
            waiting.close()
        (line,) = lines(out)
        assert line["error"] == "the recorder was closed before the answer"
        assert line["client_gone"] is False
        socket.create_server(("127.0.0.1", port)).close()
        assert not [thread for thread in threading.enumerate() if thread.name == "recorder"]
        assert recorder.lost_evidence is None

    def test_request_in_flight_may_finish_while_closing(self, out: Path) -> None:
        arrived = threading.Event()

        def script(request: Received) -> Iterator[bytes]:
            arrived.set()
            time.sleep(0.3)
            yield answer(completion("in time"))

        with Scripted(script) as server, concurrent.futures.ThreadPoolExecutor() as pool:
            with Recorder(server.url, out) as recorder:
                asked = pool.submit(post, recorder.base_url, COMPLETIONS, {"prompt": "a"})
                assert arrived.wait(10)
            assert asked.result(10) == (200, completion("in time"))
        assert lines(out)[0]["error"] is None

    def test_kill_loses_nothing_that_was_answered(self, out: Path) -> None:
        code = (
            "import sys, time, pathlib\n"
            "from harness.evidence.recorder import Recorder\n"
            "with Recorder(sys.argv[1], pathlib.Path(sys.argv[2])) as recorder:\n"
            "    print(recorder.base_url, flush=True)\n"
            "    time.sleep(60)\n"
        )
        with Scripted(always(answer(completion("x")))) as server:
            argv = [sys.executable, "-c", code, server.url, str(out)]
            with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                url = process.stdout.readline().strip()
                for number in range(50):
                    assert post(url, COMPLETIONS, {"prompt": f"p{number}"})[0] == 200
                # the line of an answer is written right after the answer
                wait_for(lambda: out.read_bytes().count(b"\n") == 50)
                os.kill(process.pid, signal.SIGKILL)
        assert [line["prompt_sha256"] for line in lines(out)] == [sha(f"p{n}") for n in range(50)]

    def test_importing_it_is_cheap(self) -> None:
        code = "import sys, harness.evidence.recorder; sys.exit('asyncio' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
