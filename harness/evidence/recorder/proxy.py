"""The reverse proxy under the recorder: a connection to the server for each connection of a client.

Bytes are passed on in the same turn of the event loop in which they arrive, and are not touched but for the
`Host` of a request, so the server sees what it would see without a proxy. The journal's work waits for a
quiet moment. Nothing is retried, decoded, re-encoded or held back.
"""

import asyncio
from typing import Any
from urllib.parse import urlsplit

from harness.evidence.recorder.journal import Journal
from harness.evidence.recorder.link import Link

_LAG_S = 0.003  # a burst of answers goes out before the first of them is written down
_STEPS = 4  # of the journal's work at a time, lest an answer waits for it
_POLL_S = 0.01


class Proxy:
    """One listening socket in front of one upstream. All of it runs in one event loop."""

    def __init__(self, upstream: str, journal: Journal, gate: asyncio.Event) -> None:
        """Requests wait for the gate; until it is set, nothing is sent to the server."""
        self._upstream = urlsplit(upstream)
        self._journal = journal
        self._gate = gate
        self._links: set[Link] = set()
        self._working = False

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port. Raises OSError where it is taken."""
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._on_bug)
        self._listener = await self._loop.create_server(self._link, host, port, backlog=1024)
        bound: int = self._listener.sockets[0].getsockname()[1]
        return bound

    async def stop(self, grace_s: float) -> None:
        """Take no more connections, give the requests in flight `grace_s`, then abort and record them."""
        self._listener.close()
        deadline = self._loop.time() + (grace_s if self._gate.is_set() else 0)
        await asyncio.sleep(_POLL_S)  # for a connection that was accepted just now
        while any(link.busy for link in self._links) and self._loop.time() < deadline:
            await asyncio.sleep(_POLL_S)
        while self._links:
            for link in list(self._links):
                link.abort()
            await asyncio.sleep(0)
        while self._journal.work(_STEPS):
            pass

    def _link(self) -> asyncio.Protocol:
        link = Link(
            self._journal,
            dial=self._dial,
            authority=self._upstream.netloc.rpartition("@")[2],
            prefix=self._upstream.path,
            wake=self._wake,
            began=self._links.add,
            ended=self._links.discard,
        )
        return link.client

    async def _dial(self, side: asyncio.Protocol) -> None:
        await self._gate.wait()
        secure = self._upstream.scheme == "https"
        port = self._upstream.port or (443 if secure else 80)
        await self._loop.create_connection(
            lambda: side, self._upstream.hostname or "", port, ssl=secure or None
        )

    def _wake(self) -> None:
        if not self._working:
            self._working = True
            self._loop.call_later(_LAG_S, self._work)

    def _work(self) -> None:
        if self._journal.work(max(_STEPS, self._journal.backlog // 8)):
            self._loop.call_soon(self._work)
        else:
            self._working = False

    def _on_bug(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Called by the event loop for what nobody caught: a request may have gone by unrecorded."""
        self._journal.lose(f"{context.get('message')}: {context.get('exception')!r}")
