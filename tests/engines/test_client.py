"""The client: which failures say that a server hangs, and how many requests it lets run at once."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

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

    monkeypatch.setattr(httpx.Client, "request", failing)
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
