"""The client: which failures say that a server hangs, what no server can do to it by its answers, and how
many requests it lets run at once."""

import gzip
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from harness.codes import Code
from harness.engines import client as module
from harness.engines.client import Client, RequestFailed
from tests.servers.scripted import Received, Scripted, answer

MANY = 140  # more than httpx holds by itself


@pytest.mark.process
def test_only_an_answer_that_does_not_come_is_a_time_out() -> None:
    def silent(request: Received) -> Iterator[bytes]:
        threading.Event().wait(1.0)
        yield answer(b"{}")

    with (
        Scripted(silent) as server,
        Client(server.url, timeout_s=0.1) as client,
        pytest.raises(RequestFailed) as caught,
    ):
        client.get_json("/")
    assert caught.value.timed_out


@pytest.mark.parametrize(
    "kind", [httpx.ConnectTimeout, httpx.PoolTimeout, httpx.WriteTimeout, httpx.ConnectError]
)
def test_a_request_that_was_not_taken_says_nothing_of_the_scheduler(
    kind: type[httpx.TransportError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object, **__: object) -> httpx.Response:
        raise kind("planted")

    monkeypatch.setattr(httpx.Client, "stream", failing)
    with Client("http://127.0.0.1:9") as client, pytest.raises(RequestFailed) as caught:
        client.get_json("/")
    assert not caught.value.timed_out


@pytest.mark.process
def test_all_requests_are_in_the_server_at_once() -> None:
    together = threading.Barrier(MANY, timeout=20)

    def all_there(request: Received) -> Iterator[bytes]:
        together.wait()
        yield answer(b"{}")

    with (
        Scripted(all_there) as server,
        Client(server.url, timeout_s=30) as client,
        ThreadPoolExecutor(MANY) as pool,
    ):
        assert list(pool.map(lambda _: client.get_json("/"), range(MANY))) == [{}] * MANY


def failed(script: Callable[[Received], Iterator[bytes]], *, timeout_s: float = 20.0) -> RequestFailed:
    with (
        Scripted(script) as server,
        Client(server.url, timeout_s=timeout_s) as client,
        pytest.raises(RequestFailed) as caught,
    ):
        client.get_json("/")
    return caught.value


def once(whole: bytes) -> Callable[[Received], Iterator[bytes]]:
    return lambda _: iter([whole])


@pytest.mark.process
def test_an_answer_that_comes_by_drops_is_a_time_out() -> None:
    def dripping(request: Received) -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"
        for _ in range(1000):
            time.sleep(0.02)
            yield b" "

    began = time.monotonic()
    assert failed(dripping, timeout_s=0.3).timed_out
    assert time.monotonic() - began < 10  # all drops would take 20 s


@pytest.mark.process
def test_an_answer_without_end_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGEST", 1 << 20)

    def endless(request: Received) -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\n\r\n"
        yield from itertools.repeat(b"a" * 65536)

    error = failed(endless)
    assert (error.code, error.timed_out) == (Code.BAD_ANSWER, False)
    assert error.what.endswith("answered 200 with more than 1 MiB")


@pytest.mark.process
def test_nothing_compressed_is_asked_for_or_unpacked() -> None:
    bomb = answer(gzip.compress(b" " * 10_000_000 + b"{}"), "Content-Encoding: gzip")
    with Scripted(once(bomb)) as server, Client(server.url) as client:
        with pytest.raises(RequestFailed, match="not JSON"):
            client.get_json("/")
        assert server.requests[0].header("accept-encoding") == "identity"


@pytest.mark.process
@pytest.mark.parametrize(
    ("sent", "read"),
    [
        (rb"\ud83d", "\\ud83d"),
        (rb"\uDE00\uD83D", "\\uDE00\\uD83D"),
        (rb"\ud83d\ud83d\ude00", "\\ud83d\N{GRINNING FACE}"),
        (rb"\\ud83d", "\\ud83d"),
        (rb"\\\ud83d\"", '\\\\ud83d"'),
        (b"\xff\xed\xa0\x80", "\ufffd" * 4),
    ],
)
def test_half_a_character_is_told_as_text(sent: bytes, read: str) -> None:
    with Scripted(once(answer(b'{"text": "' + sent + b'"}'))) as server, Client(server.url) as client:
        assert client.get_json("/") == {"text": read}


@pytest.mark.process
@pytest.mark.parametrize("charset", ["zlib", "undefined", "idna", "rot13", "utf-16"])
@pytest.mark.parametrize("status", ["200 OK", "500 Oh"])
def test_a_charset_is_not_believed(charset: str, status: str) -> None:
    odd = answer(b"no \xff", f"Content-Type: text/plain; charset={charset}", status=status)
    assert failed(once(odd)).body == "no \ufffd"


@pytest.mark.process
def test_what_is_nested_too_deeply_is_no_json() -> None:
    assert "not JSON" in failed(once(answer(b"[" * 200_000 + b"]" * 200_000))).what
