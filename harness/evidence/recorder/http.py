"""Just enough of HTTP/1.1 to find where messages begin and end in a byte stream, in any pieces.

Pure. The proxy passes the bytes on as they are; this only tells it what they mean.
"""

import re
from dataclasses import dataclass

HEAD_LIMIT = 256 << 10  # bytes of one message's head
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_SIZE = re.compile(rb"[0-9A-Fa-f]{1,15}")
_BODILESS = (204, 304)


class BadMessage(Exception):
    """This is no HTTP; the text says what is wrong."""


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a message: the three words of its first line, and its fields by lower-case name. Repeated
    fields are joined by commas. `size` is its length in bytes, the empty line included."""

    words: tuple[str, str, str]
    fields: dict[str, str]
    size: int

    @property
    def keeps_alive(self) -> bool:
        """Whether the sender of this answer will take another request on this connection."""
        word = self.fields.get("connection", "").lower()
        return "close" not in word and (self.words[0] != "HTTP/1.0" or "keep-alive" in word)


def read_head(buffer: bytes, start: int = 0) -> Head | None:
    """The head that begins at `start`, None while it is not whole. Raises BadMessage."""
    end = buffer.find(b"\r\n\r\n", start)
    if end < 0:
        if len(buffer) - start > HEAD_LIMIT:
            raise BadMessage(f"the head is longer than {HEAD_LIMIT} bytes")
        return None
    first, *lines = buffer[start:end].decode("latin-1").split("\r\n")
    words = first.split(" ", 2)
    if len(words) < 2 or not words[0]:
        raise BadMessage(f"the first line is {first[:80]!r}")
    fields: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not _TOKEN.fullmatch(name):
            raise BadMessage(f"a field is {line[:80]!r}")
        name = name.lower()
        value = value.strip(" \t")
        fields[name] = f"{fields[name]}, {value}" if name in fields else value
    return Head((words[0], words[1], words[2] if len(words) > 2 else ""), fields, end + 4 - start)


class BodyReader:
    """Reads one body out of a stream. Its end is told by a length, by chunks, or (both None and False) by the
    end of the connection."""

    def __init__(self, *, length: int | None, chunked: bool) -> None:
        self._length = length
        self._chunked = chunked
        self._left = 0  # of the current chunk
        self._line = b""  # the begin of a line that is not whole yet
        self._expects = "size"
        self.done = length == 0

    @property
    def ends_with_connection(self) -> bool:
        return self._length is None and not self._chunked

    def feed(self, data: bytes) -> tuple[bytes, int]:
        """What `data` adds to the content, and how many of its bytes belong to this body.

        Raises BadMessage."""
        if self._chunked:
            return self._feed_chunks(data)
        if self._length is None:
            return data, len(data)
        piece = data[: self._length]
        self._length -= len(piece)
        self.done = self._length == 0
        return piece, len(piece)

    def _feed_chunks(self, data: bytes) -> tuple[bytes, int]:
        content: list[bytes] = []
        position = 0
        while position < len(data) and not self.done:
            if self._left:
                content.append(data[position : position + self._left])
                position += len(content[-1])
                self._left -= len(content[-1])
                continue
            end = data.find(b"\n", position)
            self._line += data[position:] if end < 0 else data[position:end]
            if len(self._line) > HEAD_LIMIT:
                raise BadMessage("a line between chunks has no end")
            position = len(data) if end < 0 else end + 1
            if end >= 0:
                line, self._line = self._line.removesuffix(b"\r"), b""
                self._take_line(line)
        return b"".join(content), position

    def _take_line(self, line: bytes) -> None:
        if self._expects == "size":
            size = line.partition(b";")[0].strip()
            if not _SIZE.fullmatch(size):
                raise BadMessage(f"a chunk's size is {line[:40]!r}")
            self._left = int(size, 16)
            self._expects = "end of chunk" if self._left else "trailer"
        elif self._expects == "end of chunk":
            if line:
                raise BadMessage("a chunk is longer than it said")
            self._expects = "size"
        elif not line:
            self.done = True


def request_body(head: Head) -> BodyReader:
    """The body of a request. Raises BadMessage, also where its first line is none."""
    method, _, version = head.words
    if not _TOKEN.fullmatch(method) or not version.startswith("HTTP/1."):
        raise BadMessage(f"the first line is {' '.join(head.words)[:80]!r}")
    return _framed(head) or BodyReader(length=0, chunked=False)


def answer_body(head: Head, method: str) -> BodyReader:
    """The body of an answer to a request of this method. Raises BadMessage."""
    if method == "HEAD" or status_of(head) in _BODILESS:
        return BodyReader(length=0, chunked=False)
    return _framed(head) or BodyReader(length=None, chunked=False)


def status_of(head: Head) -> int:
    """The status of an answer. Raises BadMessage where it is none."""
    version, status, _ = head.words
    if not version.startswith("HTTP/1.") or not re.fullmatch(r"[1-9][0-9]{2}", status):
        raise BadMessage(f"the first line is {' '.join(head.words)[:80]!r}")
    return int(status)


def _framed(head: Head) -> BodyReader | None:
    coding, length = head.fields.get("transfer-encoding"), head.fields.get("content-length")
    if coding is not None:
        if length is not None or coding.lower() != "chunked":
            raise BadMessage(f"Transfer-Encoding {coding[:40]!r}, Content-Length {str(length)[:40]!r}")
        return BodyReader(length=None, chunked=True)
    if length is None:
        return None
    lengths = {part.strip() for part in length.split(",")}
    if len(lengths) > 1 or not re.fullmatch(r"[0-9]{1,18}", length := lengths.pop()):
        raise BadMessage(f"Content-Length {length[:40]!r}")
    return BodyReader(length=int(length), chunked=False)
