"""The reverse proxy under the recorder: a connection to the server for each connection of a client.

Bytes are passed on in the same turn of the event loop in which they arrive, and are not touched but for the
`Host` of a request, so the server sees what it would see without a proxy. The journal's work waits for a
quiet moment. Nothing is retried, decoded, re-encoded or held back.
"""

import asyncio
from collections.abc import Callable
from urllib.parse import urlsplit

from harness.evidence.recorder_journal import Journal
from harness.evidence.recorder_link import Link

_LAG_S = 0.003  # a burst of answers goes out before the first of them is written down
_STEPS = 4  # of the journal's work at a time, lest an answer waits for it
_POLL_S = 0.01


class Proxy:
    """One listening socket in front of one upstream. All of it runs in one event loop."""

    def __init__(self, upstream: str, journal: Journal) -> None:
        self._upstream = upstream
        self._journal = journal
        self._links: set[Link] = set()
        self._working = False

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port. Raises OSError where it is taken, ValueError for a bad upstream."""
        loop = asyncio.get_running_loop()
        parts = urlsplit(self._upstream)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"the upstream must be http://host:port, not {self._upstream!r}")
        secure = parts.scheme == "https"
        place = (parts.hostname, parts.port or (443 if secure else 80))

        async def dial(side: Callable[[], asyncio.Protocol]) -> None:
            await loop.create_connection(side, *place, ssl=secure or None)

        def link() -> asyncio.Protocol:
            made = Link(self._journal, dial, parts.netloc.rpartition("@")[2], parts.path, self)
            self._links.add(made)
            return made.client

        self._listener = await loop.create_server(link, host, port, backlog=1024)
        bound: int = self._listener.sockets[0].getsockname()[1]
        return bound
