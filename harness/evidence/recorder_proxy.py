"""The reverse proxy under the recorder: passes every request on as it is, and tells the journal.

Nothing is retried, decoded, re-encoded or held back. Connections to the server are not reused after two
idle seconds: servers close theirs after five, and a request that meets the closing would be lost.
"""

import asyncio
import logging
from collections.abc import Awaitable
from typing import Any, TypeVar

import aiohttp
from aiohttp import web
from yarl import URL

from harness.evidence.recorder_journal import Journal
from harness.evidence.recorder_lines import Body, Exchange

_HOP_BY_HOP = {
    *("connection", "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization"),
    *("te", "trailer", "transfer-encoding", "upgrade"),
}
# The proxy has read the whole body, so it answers an expectation itself; `Host` names the next hop.
_NOT_SENT_ON = {*_HOP_BY_HOP, "expect", "host"}
_KEY_HEADERS = ("Authorization", "X-Api-Key", "Api-Key")
_SHORTEST_SECRET = 8  # shorter ones are placeholders such as EMPTY, which also stand in honest text
_WHOLE_BODY = 1 << 20  # answers up to this size are passed on in one piece
_LONGEST_HEADER = 1 << 16
_IDLE_S = 2.0
_NO_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=None)
_Result = TypeVar("_Result")


class _ClientGone(Exception):
    """The client does not take its answer any more."""


class Proxy:
    """One listening socket in front of one upstream. All of it runs in one event loop."""

    def __init__(self, upstream: str, journal: Journal) -> None:
        self._upstream = upstream
        self._journal = journal
        self._requests: set[asyncio.Task[Any]] = set()
        self._closing = False

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port. Raises OSError where it is taken."""
        loop = asyncio.get_running_loop()
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_S)
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=_NO_TIMEOUT,
            auto_decompress=False,
            trust_env=False,
            skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent", "Content-Type"),
            max_line_size=_LONGEST_HEADER,
            max_field_size=_LONGEST_HEADER,
        )
        self._server = web.Server(
            self._handle,
            request_factory=_request,
            handler_cancellation=True,
            auto_decompress=False,
            access_log=None,
            logger=logging.Logger("recorder", logging.CRITICAL),  # what goes wrong stands in the journal
            max_line_size=_LONGEST_HEADER,
            max_field_size=_LONGEST_HEADER,
        )
        try:
            self._listener = await loop.create_server(self._server, host, port, backlog=1024)
        except OSError:
            await self._session.close()
            raise
        bound: int = self._listener.sockets[0].getsockname()[1]
        return bound

    async def stop(self, grace_s: float) -> None:
        """Take no more requests, give those in flight `grace_s`, then abort and record them."""
        self._closing = True
        self._listener.close()
        self._server.pre_shutdown()
        if self._requests:
            await asyncio.wait(self._requests, timeout=grace_s)
        for task in list(self._requests):
            task.cancel()
        if self._requests:
            await asyncio.wait(self._requests)
        await self._server.shutdown(timeout=0.1)
        await self._listener.wait_closed()
        await self._session.close()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task is not None
        self._requests.add(task)
        try:
            return await self._recorded(request)
        finally:
            self._requests.discard(task)

    async def _recorded(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            body = await _read(request)
        except asyncio.CancelledError:
            self._journal.unread(
                request.method, request.path, "the client broke off while sending its request"
            )
            raise
        except Exception as error:  # noqa: BLE001 - any way of not arriving whole
            self._journal.unread(request.method, request.path, f"the request cannot be read: {_words(error)}")
            return web.Response(status=400, text="recorder: the request cannot be read\n")
        encoding = request.headers.get("Content-Encoding", "")
        exchange = self._journal.begin(request.method, request.path, Body(body, encoding), _secrets(request))
        try:
            return await self._forward(request, body, exchange)
        except _ClientGone:
            self._aborted(exchange)
            return web.Response()  # goes nowhere
        except asyncio.CancelledError:
            self._aborted(exchange)
            raise
        except Exception as error:  # noqa: BLE001 - whatever happened, it must stand in the evidence
            return await self._refuse(request, exchange, error)
        finally:
            self._journal.finish(exchange)

    def _aborted(self, exchange: Exchange) -> None:
        if self._closing:
            exchange.error = exchange.error or "the recorder was closed before the answer"
        else:
            exchange.client_gone = True
            exchange.error = exchange.error or "the client disconnected before the answer"

    async def _forward(self, request: web.BaseRequest, body: bytes, exchange: Exchange) -> web.StreamResponse:
        answer = await self._session.request(
            request.method,
            URL(self._upstream + _target(request), encoded=True),
            data=body if request.body_exists else None,
            headers=_without(request.headers, _NOT_SENT_ON),
            allow_redirects=False,
        )
        exchange.encoding = answer.headers.get("Content-Encoding", "")
        exchange.streamed = answer.content_type == "text/event-stream"
        length = answer.content_length
        small = length is not None and length <= _WHOLE_BODY
        try:
            if small and not exchange.streamed and request.method != "HEAD":
                return await self._pass_whole(request, answer, exchange)
            return await self._pass_stream(request, answer, exchange)
        finally:
            answer.release()

    async def _pass_whole(
        self, request: web.BaseRequest, answer: aiohttp.ClientResponse, exchange: Exchange
    ) -> web.StreamResponse:
        body = await answer.read()
        exchange.status = answer.status
        exchange.add(body, self._journal.now_s())
        headers = _without(answer.headers, _HOP_BY_HOP)
        reply = web.Response(status=answer.status, reason=answer.reason, headers=headers, body=body)
        await _to_client(reply.prepare(request))
        await _to_client(reply.write_eof())
        return reply

    async def _pass_stream(
        self, request: web.BaseRequest, answer: aiohttp.ClientResponse, exchange: Exchange
    ) -> web.StreamResponse:
        headers = _without(answer.headers, _HOP_BY_HOP)
        reply = web.StreamResponse(status=answer.status, reason=answer.reason, headers=headers)
        exchange.status = answer.status
        await _to_client(reply.prepare(request))
        try:
            async for chunk in answer.content.iter_any():
                exchange.add(chunk, self._journal.now_s())
                await _to_client(reply.write(chunk))
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            exchange.error = f"the server broke off its answer: {_words(error)}"
            if request.transport is not None:
                request.transport.close()  # the client must see the break as it would without a proxy
            return reply
        await _to_client(reply.write_eof())
        return reply

    async def _refuse(
        self, request: web.BaseRequest, exchange: Exchange, error: Exception
    ) -> web.StreamResponse:
        exchange.status, exchange.streamed = 0, False
        exchange.chunks.clear()
        exchange.error = f"no answer from the server: {_words(error)}"
        message = f"recorder: no answer from {self._upstream}: {_words(error)}"
        body = {"error": {"message": message, "type": "upstream_error", "code": 502}}
        reply = web.json_response(body, status=502)
        try:
            await _to_client(reply.prepare(request))
            await _to_client(reply.write_eof())
        except _ClientGone:
            exchange.client_gone = True
        return reply


def _request(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=0)


async def _read(request: web.BaseRequest) -> bytes:
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # that was not yet the answer
    return await request.read()


async def _to_client(step: Awaitable[_Result]) -> _Result:
    try:
        return await step
    except ConnectionError as error:
        raise _ClientGone from error


def _target(request: web.BaseRequest) -> str:
    """Path and query exactly as they came; a client that takes us for a forward proxy sends a whole URL."""
    target = request.raw_path
    if target.startswith("/"):
        return target
    path = URL(target, encoded=True).raw_path_qs
    return path if path.startswith("/") else f"/{path}"  # never let it grow into the host or port before it


def _without(headers: Any, names: set[str]) -> list[tuple[str, str]]:
    """The headers but for `names` and those that belong to one connection by the sender's own word."""
    words = headers.get("Connection", "").lower().split(",")
    dropped = names.union(word.strip() for word in words)
    return [(name, value) for name, value in headers.items() if name.lower() not in dropped]


def _secrets(request: web.BaseRequest) -> tuple[str, ...]:
    values = (request.headers.get(name, "").split() for name in _KEY_HEADERS)
    return tuple(words[-1] for words in values if words and len(words[-1]) >= _SHORTEST_SECRET)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
