"""One client's connection and the one to the server that belongs to it.

Two connections that live and die together leave keep-alive, back-pressure, `Expect` and broken streams to
the two ends. What is only read here, not changed: where requests and answers begin and end.
"""

import asyncio
import json
import re
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from harness.evidence.recorder.http import (
    BadMessage,
    BodyReader,
    Head,
    answer_body,
    read_head,
    request_body,
    status_of,
)
from harness.evidence.recorder.journal import Journal
from harness.evidence.recorder.sides import Side, Turn, origin, words_of

_IDLE_S = 2.0  # servers close idle connections after five seconds; a request that meets that would be lost
_HOST = re.compile(rb"(\r\nhost:)[^\r\n]*", re.IGNORECASE)
_SWITCHING_PROTOCOLS = 101

Dial = Callable[[asyncio.Protocol], Coroutine[Any, Any, None]]


class Link:
    """A client's connection, `client`, and the server's, which is made with the first request.

    `authority` and `prefix` are the server's host and path in a URL. `wake` is called when the journal has
    work, `began` and `ended` when the client's connection is there and when it is gone.
    """

    def __init__(
        self,
        journal: Journal,
        *,
        dial: Dial,
        authority: str,
        prefix: str,
        wake: Callable[[], None],
        began: Callable[["Link"], None],
        ended: Callable[["Link"], None],
    ) -> None:
        self._journal = journal
        self._dial = dial
        self._authority = b" " + authority.encode("latin-1")
        self._prefix = prefix
        self._wake = wake
        self._ended = ended
        self.client = Side(made=lambda: began(self), data=self._client_data, lost=self._client_lost)
        self._server: Side | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._outbox: list[bytes] = []  # for the server, until it is connected
        self._turns: deque[Turn] = deque()  # not yet answered
        self._incoming: Turn | None = None  # whose request is still arriving
        self._request_begin = b""  # of a head that is not whole yet
        self._answer: BodyReader | None = None  # of the first turn, while it is being passed on
        self._answer_begin = b""
        self._server_closes = False
        self._refusal: str | None = None  # why there is no server for the requests that are waiting
        self._blind = False  # after a change of protocols
        self._closing = False
        self._quiet_since_s = 0.0

    @property
    def busy(self) -> bool:
        return bool(self._turns)

    def abort(self) -> None:
        """End it now; what is in flight is recorded as such."""
        self._closing = True
        self.client.abort()

    # --- what the client sends ---

    def _client_data(self, _: Side, data: bytes) -> None:
        if self._blind:
            self._to_server(data)
            return
        try:
            self._read_requests(self._request_begin + data)
        except BadMessage as error:
            why = f"the client sent what is no HTTP: {error}"
            if not self._turns:
                self.client.write(
                    b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                )
            if self._incoming is None:
                self._journal.unread("", "", why)
            self._fail(why)
            self.client.close()
        self._wake()

    def _read_requests(self, buffer: bytes) -> None:
        out: list[bytes] = []
        whole: list[Turn] = []
        position = 0
        try:
            while position < len(buffer):
                if self._incoming is None:
                    head = read_head(buffer, position)
                    if head is None:
                        break
                    self._incoming = Turn(head, request_body(head))
                    if not self._turns:
                        self._leave_idle_server()
                    self._turns.append(self._incoming)
                    out.append(self._addressed(head, buffer[position : position + head.size]))
                    position += head.size
                turn = self._incoming
                content, used = turn.reader.feed(buffer[position:])
                turn.body.append(content)
                out.append(buffer[position : position + used])
                position += used
                if turn.reader.done:
                    self._incoming = None
                    whole.append(turn)
        finally:
            self._request_begin = buffer[position:]
            self._to_server(b"".join(out))
            for turn in whole:
                turn.begin(self._journal)
        if self._refusal is not None and self._incoming is None and whole:
            self._refuse(self._refusal)

    def _addressed(self, head: Head, raw: bytes) -> bytes:
        """The head as the server would get it directly: its own `Host`, and a path instead of a URL."""
        method, target, version = head.words
        path = origin(target)
        if self._prefix and path.startswith("/"):
            path = self._prefix + path
        if path != target:
            raw = f"{method} {path} {version}".encode("latin-1") + raw[raw.index(b"\r\n") :]
        return _HOST.sub(lambda match: match[1] + self._authority, raw, count=1)

    def _to_server(self, data: bytes) -> None:
        if not data or self._refusal is not None:
            return
        if self._server is not None:
            self._server.write(data)
            return
        self._outbox.append(data)
        if self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())

    def _leave_idle_server(self) -> None:
        if self._server is not None and self._journal.now_s() - self._quiet_since_s > _IDLE_S:
            self._server.close()
            self._server = None

    async def _connect(self) -> None:
        side = Side(data=self._server_data, lost=self._server_lost)
        side.other = self.client
        try:
            await self._dial(side)
        except Exception as error:  # noqa: BLE001 - whatever keeps us from the server, the client must hear
            self._broken(words_of(error))
            return
        finally:
            self._connecting = None
        if side.transport is None:
            self._broken("it closed the connection")
            return
        self._server = side
        self.client.other = side
        side.write(b"".join(self._outbox))
        self._outbox.clear()

    def _client_lost(self, _: Side, __: Exception | None) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        if self._closing:
            self._fail("the recorder was closed before the answer")
        else:
            self._fail("the client disconnected before the answer", client_gone=True)
        if self._server is not None:
            self._server.abort()
        self._ended(self)

    # --- what the server sends ---

    def _server_data(self, side: Side, data: bytes) -> None:
        if side is not self._server:
            return
        if self._blind:
            self.client.write(data)
            return
        try:
            self._read_answers(self._answer_begin + data)
        except BadMessage as error:
            self._broken(f"it sent what is no HTTP: {error}")

    def _read_answers(self, buffer: bytes) -> None:
        over: list[Turn] = []
        position = 0
        try:
            while position < len(buffer) and not self._blind:
                if not self._turns:
                    raise BadMessage("an answer that nobody asked for")
                turn = self._turns[0]
                if self._answer is None:
                    head = read_head(buffer, position)
                    if head is None:
                        break
                    status = status_of(head)
                    if 100 <= status < 200 and status != _SWITCHING_PROTOCOLS:
                        position += head.size
                        continue
                    self._answer = self._begin_answer(turn, head, status)
                    position += head.size
                content, used = self._answer.feed(buffer[position:])
                position += used
                turn.begin(self._journal).add(content, self._journal.now_s())
                if self._answer.done:
                    self._answer = None
                    over.append(self._turns.popleft())
        finally:
            if self._blind:
                position = len(buffer)
            self.client.write(buffer[:position])
            self._answer_begin = buffer[position:]
            for turn in over:
                self._end(turn)

    def _begin_answer(self, turn: Turn, head: Head, status: int) -> BodyReader:
        reader = BodyReader(length=0, chunked=False)
        if status == _SWITCHING_PROTOCOLS:
            self._blind = True
        else:
            reader = answer_body(head, turn.method)
        exchange = turn.begin(self._journal)
        exchange.status = status
        exchange.encoding = head.fields.get("content-encoding", "")
        exchange.streamed = head.fields.get("content-type", "").lower().startswith("text/event-stream")
        self._server_closes = reader.ends_with_connection or not head.keeps_alive
        return reader

    def _server_lost(self, side: Side, error: Exception | None) -> None:
        if side is not self._server:
            return
        self._server = None
        self.client.other = None
        if self._answer is not None and self._answer.ends_with_connection and error is None:
            self._answer = None
            self._end(self._turns.popleft())
        if self._turns:
            self._broken("it closed the connection" if error is None else words_of(error))
        elif self._server_closes or self._blind:
            self.client.close()  # else it was idle: the next request makes a new one

    # --- how turns end ---

    def _broken(self, why: str) -> None:
        """There is no server for the requests in flight, or not any more."""
        server, self._server = self._server, None
        if server is not None:
            server.abort()
        if self._answer is not None:
            self._fail(f"the server broke off its answer: {why}")
            self.client.close()  # the client must see the break, as it would without a proxy
            return
        self._refusal = why
        if self._turns and self._incoming is None:
            self._refuse(why)
        elif not self._turns:
            self.client.close()

    def _refuse(self, why: str) -> None:
        """Answer the first request in the server's stead, once it is whole."""
        turn = self._turns.popleft()
        turn.begin(self._journal).error = f"no answer from the server: {why}"
        message = f"recorder: no answer from {self._authority.decode('latin-1').strip()}: {why}"
        body = json.dumps({"error": {"message": message, "type": "upstream_error", "code": 502}}).encode()
        head = (
            f"HTTP/1.1 502 Bad Gateway\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        )
        self.client.write(
            f"{head}Connection: close\r\n\r\n".encode() + (b"" if turn.method == "HEAD" else body)
        )
        self._end(turn)
        self._fail(f"no answer from the server: {why}")
        self.client.close()

    def _fail(self, error: str, *, client_gone: bool = False) -> None:
        """All that is in flight ends like this."""
        self._answer = None
        for turn in self._turns:
            if turn is self._incoming and turn.exchange is None:
                self._journal.unread(turn.method, turn.path, f"{error}, while the request was still arriving")
                continue
            exchange = turn.begin(self._journal)
            exchange.error = exchange.error or error
            exchange.client_gone = client_gone
            self._end(turn)
        self._incoming = None
        self._turns.clear()

    def _end(self, turn: Turn) -> None:
        exchange = turn.begin(self._journal)
        self._journal.finish(exchange)
        self._quiet_since_s = exchange.finished_s
        self._wake()
