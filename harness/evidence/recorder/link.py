"""One client's connection and the one to the server that belongs to it.

Two connections that live and die together leave keep-alive, back-pressure, `Expect` and broken streams to
the two ends. What is said on them is only read (`talk.py`), not changed.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from harness.evidence.recorder.http import BadMessage
from harness.evidence.recorder.journal import Journal
from harness.evidence.recorder.sides import Side, words_of
from harness.evidence.recorder.talk import Talk

_IDLE_S = 2.0  # servers close idle connections after five seconds; a request that meets that would be lost

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
        self._wake = wake
        self._ended = ended
        self.client = Side(made=lambda: began(self), data=self._client_data, lost=self._client_lost)
        self._talk = Talk(
            journal,
            authority=authority,
            prefix=prefix,
            wake=wake,
            to_client=self.client.write,
            to_server=self._to_server,
        )
        self._server: Side | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._outbox: list[bytes] = []  # for the server, until it is connected
        self._refusal: str | None = None  # why there is no server for the requests that are waiting
        self._closing = False

    @property
    def busy(self) -> bool:
        return self._talk.busy

    def abort(self) -> None:
        """End it now; what is in flight is recorded as such."""
        self._closing = True
        self.client.abort()

    # --- the client ---

    def _client_data(self, _: Side, data: bytes) -> None:
        talk = self._talk
        if talk.blind:
            self._to_server(data)
            return
        if not talk.busy and not talk.receiving:
            self._leave_idle_server()
        try:
            talk.requests(data)
        except BadMessage as error:
            talk.reject(f"the client sent what is no HTTP: {error}")
            self.client.close()
        else:
            if self._refusal is not None and talk.busy and not talk.receiving:
                self._refuse(self._refusal)
        self._wake()

    def _client_lost(self, _: Side, __: Exception | None) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        if self._closing:
            self._talk.fail("the recorder was closed before the answer")
        else:
            self._talk.fail("the client disconnected before the answer", client_gone=True)
        if self._server is not None:
            self._server.abort()
        self._ended(self)

    # --- the server ---

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
        if self._server is not None and self._journal.now_s() - self._talk.quiet_since_s > _IDLE_S:
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

    def _server_data(self, side: Side, data: bytes) -> None:
        if side is not self._server:
            return
        if self._talk.blind:
            self.client.write(data)
            return
        try:
            self._talk.answers(data)
        except BadMessage as error:
            self._broken(f"it sent what is no HTTP: {error}")

    def _server_lost(self, side: Side, error: Exception | None) -> None:
        if side is not self._server:
            return
        self._server = None
        self.client.other = None
        if error is None:
            self._talk.server_ended()
        if self._talk.busy:
            self._broken("it closed the connection" if error is None else words_of(error))
        elif self._talk.server_closes or self._talk.blind:
            self.client.close()  # else it was idle: the next request makes a new one

    def _broken(self, why: str) -> None:
        """There is no server for the requests in flight, or not any more."""
        server, self._server = self._server, None
        if server is not None:
            server.abort()
        if self._talk.answering:
            self._talk.fail(f"the server broke off its answer: {why}")
            self.client.close()  # the client must see the break, as it would without a proxy
            return
        self._refusal = why
        if self._talk.busy and not self._talk.receiving:
            self._refuse(why)
        elif not self._talk.busy:
            self.client.close()

    def _refuse(self, why: str) -> None:
        self._talk.refuse(why)
        self.client.close()
