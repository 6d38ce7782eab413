"""What the two ends of a link say to each other: where requests and answers begin and end, which answer
belongs to which request, and how a request ends that gets none.

Bytes come in, bytes go out to whoever holds the connections; what is seen on the way goes into the journal.
"""

import json
import re
from collections import deque
from collections.abc import Callable
from typing import Final

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
from harness.evidence.recorder.sides import Turn, origin

_HOST: Final = re.compile(rb"(\r\nhost:)[^\r\n]*", re.IGNORECASE)
_SWITCHING_PROTOCOLS: Final = 101
_BAD_REQUEST: Final = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

Send = Callable[[bytes], None]


class Talk:
    """The state of one client's connection. `authority` and `prefix` are the server's host and path in a URL;
    `wake` is called when the journal has work."""

    def __init__(
        self,
        journal: Journal,
        *,
        authority: str,
        prefix: str,
        wake: Callable[[], None],
        to_client: Send,
        to_server: Send,
    ) -> None:
        self._journal = journal
        self._authority = b" " + authority.encode("latin-1")
        self._prefix = prefix
        self._wake = wake
        self._to_client = to_client
        self._to_server = to_server
        self._turns: deque[Turn] = deque()  # not yet answered
        self._incoming: Turn | None = None  # whose request is still arriving
        self._request_begin = b""  # of a head that is not whole yet
        self._answer: BodyReader | None = None  # of the first turn, while it is being passed on
        self._answer_begin = b""
        self.blind = False  # after a change of protocols: nothing is HTTP any more
        self.server_closes = False  # after this answer, as it said
        self.quiet_since_s = 0.0

    @property
    def busy(self) -> bool:
        """Whether a request has no answer yet."""
        return bool(self._turns)

    @property
    def receiving(self) -> bool:
        """Whether a request is still arriving."""
        return self._incoming is not None

    @property
    def answering(self) -> bool:
        """Whether an answer has begun and not ended."""
        return self._answer is not None

    # --- requests ---

    def requests(self, data: bytes) -> None:
        """What the client sent. Raises BadMessage, after all that came before it was passed on."""
        buffer = self._request_begin + data
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

    def _addressed(self, head: Head, raw: bytes) -> bytes:
        """The head as the server would get it directly: its own `Host`, and a path instead of a URL."""
        method, target, version = head.words
        path = origin(target)
        if self._prefix and path.startswith("/"):
            path = self._prefix + path
        if path != target:
            raw = f"{method} {path} {version}".encode("latin-1") + raw[raw.index(b"\r\n") :]
        return _HOST.sub(lambda match: match[1] + self._authority, raw, count=1)

    # --- answers ---

    def answers(self, data: bytes) -> None:
        """What the server sent. Raises BadMessage, after all that came before it was passed on."""
        buffer = self._answer_begin + data
        over: list[Turn] = []
        position = 0
        try:
            while position < len(buffer) and not self.blind:
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
            if self.blind:
                position = len(buffer)
            self._to_client(buffer[:position])
            self._answer_begin = buffer[position:]
            for turn in over:
                self._end(turn)

    def _begin_answer(self, turn: Turn, head: Head, status: int) -> BodyReader:
        reader = BodyReader(length=0, chunked=False)
        if status == _SWITCHING_PROTOCOLS:
            self.blind = True
        else:
            reader = answer_body(head, turn.method)
        exchange = turn.begin(self._journal)
        exchange.status = status
        exchange.encoding = head.fields.get("content-encoding", "")
        exchange.streamed = head.fields.get("content-type", "").lower().startswith("text/event-stream")
        self.server_closes = reader.ends_with_connection or not head.keeps_alive
        return reader

    def server_ended(self) -> None:
        """The server closed its connection properly: the end of an answer that has no other."""
        if self._answer is not None and self._answer.ends_with_connection:
            self._answer = None
            self._end(self._turns.popleft())

    # --- how turns end without an answer ---

    def reject(self, why: str) -> None:
        """The client sent what is no HTTP."""
        if not self._turns:
            self._to_client(_BAD_REQUEST)
        if self._incoming is None:
            self._journal.unread("", "", why)
        self.fail(why)

    def refuse(self, why: str) -> None:
        """Answer the first request in the server's stead, once it is whole; the others get nothing."""
        turn = self._turns.popleft()
        turn.begin(self._journal).error = f"no answer from the server: {why}"
        message = f"recorder: no answer from {self._authority.decode('latin-1').strip()}: {why}"
        body = json.dumps({"error": {"message": message, "type": "upstream_error", "code": 502}}).encode()
        head = (
            f"HTTP/1.1 502 Bad Gateway\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        )
        self._to_client(
            f"{head}Connection: close\r\n\r\n".encode() + (b"" if turn.method == "HEAD" else body)
        )
        self._end(turn)
        self.fail(f"no answer from the server: {why}")

    def fail(self, error: str, *, client_gone: bool = False) -> None:
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
        self.quiet_since_s = exchange.finished_s
        self._wake()
