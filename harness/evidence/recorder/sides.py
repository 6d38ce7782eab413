"""The pieces of a link: one of its two connections, and one request with its answer."""

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from harness.evidence.recorder.http import BodyReader, Head
from harness.evidence.recorder.journal import Journal
from harness.evidence.recorder.lines import Body, Exchange

_KEY_HEADERS = ("authorization", "x-api-key", "api-key")
_SHORTEST_SECRET = 8  # shorter ones are placeholders such as EMPTY, which also stand in honest text


@dataclass(slots=True)
class Turn:
    """One request of the client and the answer to it. `exchange` is there once the request is whole, or an
    answer came before that."""

    head: Head
    reader: BodyReader
    body: list[bytes] = field(default_factory=list)
    exchange: Exchange | None = None

    @property
    def method(self) -> str:
        return self.head.words[0]

    @property
    def path(self) -> str:
        return origin(self.head.words[1]).partition("?")[0]

    def begin(self, journal: Journal) -> Exchange:
        """The exchange; `begun` in the journal when it is asked for first."""
        if self.exchange is None:
            fields = self.head.fields
            body = Body(b"".join(self.body), fields.get("content-encoding", ""))
            self.exchange = journal.begin(self.method, self.path, body, _secrets(fields))
        return self.exchange


class Side(asyncio.Protocol):
    """One of the two connections of a link; tells the link what happens to it."""

    def __init__(
        self,
        *,
        made: Callable[[], None] | None = None,
        data: Callable[["Side", bytes], None],
        lost: Callable[["Side", Exception | None], None],
    ) -> None:
        self._made = made
        self._data = data
        self._lost = lost
        self.transport: asyncio.Transport | None = None
        self.other: Side | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if self._made is not None:
            self._made()

    def data_received(self, data: bytes) -> None:
        self._data(self, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.resume_writing()
        self._lost(self, exc)

    def pause_writing(self) -> None:
        """This side takes no more for now: the other one need not be read."""
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

    def write(self, data: bytes) -> None:
        if data and self.transport is not None:
            self.transport.write(data)

    def close(self) -> None:
        """After what is written has been sent."""
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """Now, whatever has not been sent."""
        if self.transport is not None:
            self.transport.abort()


def origin(target: str) -> str:
    """The path of a target; a client that takes us for a forward proxy sends a whole URL."""
    return re.sub(r"^https?://[^/?#]*", "", target, flags=re.IGNORECASE) or "/"


def _secrets(fields: Mapping[str, str]) -> tuple[str, ...]:
    values = (fields.get(name, "").split() for name in _KEY_HEADERS)
    return tuple(words[-1] for words in values if words and len(words[-1]) >= _SHORTEST_SECRET)


def words_of(error: Exception) -> str:
    """An error in a few words."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
