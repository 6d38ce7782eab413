"""Reading a server's log while it is being written, whatever bytes it holds."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

LINE_LIMIT = 64 * 1024
_CHUNK = 1024 * 1024
_TAIL_LIMIT = 8 * 1024 * 1024

_ANSI = re.compile(
    r"\x1b(?:"
    r"\[[0-?]*[ -/]*[@-~]"  # colours, cursor movements
    r"|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)"  # titles, hyperlinks and other strings, when properly ended
    r"|[ -/]+[0-~]|[0-~])?"  # two- and three-byte escapes, and one that was cut off
)


class LogLine(NamedTuple):
    """A line as an editor numbers it, from 1. The updates of a progress bar, which are separated by bare
    carriage returns, are entries of their own with the same number."""

    number: int
    text: str


def clean(line: str) -> str:
    """The line without ANSI escapes, carriage returns at its ends and NULs. Carriage returns inside, where a
    progress bar was overwritten, become spaces: what stood before them is kept."""
    if "\x1b" in line:
        line = _ANSI.sub("", line)
    return line.replace("\0", "").rstrip("\n").strip("\r").replace("\r", " ")


class LogTail:
    """An incremental reader of a growing file. Holds nothing open; the file may appear later."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._restart(0)

    def read(self) -> list[LogLine]:
        """The lines that were completed since the last call, cleaned; none while the file does not exist.

        A file that was truncated or replaced is read anew from its line 1. Raises OSError when the file
        cannot be read.
        """
        found: list[LogLine] = []
        try:
            with self.path.open("rb") as file:
                status = os.fstat(file.fileno())
                if status.st_ino != self._inode or status.st_size < self._position:
                    self._restart(status.st_ino)
                file.seek(self._position)
                while chunk := file.read(_CHUNK):
                    self._position += len(chunk)
                    found += self._splitter.feed(chunk)
        except FileNotFoundError:
            return []
        return found

    def finish(self) -> list[LogLine]:
        """Like `read`, and the unfinished last line too: for a writer that has ended."""
        return [*self.read(), *self._splitter.finish()]

    def _restart(self, inode: int) -> None:
        self._inode = inode
        self._position = 0
        self._splitter = _Splitter()


def lines(path: Path) -> Iterator[LogLine]:
    """All lines of a file that grows no more, cleaned, in constant memory. Raises OSError."""
    splitter = _Splitter()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield from splitter.feed(chunk)
    yield from splitter.finish()


def tail(path: Path, n: int) -> list[str]:
    """The last `n` lines, cleaned, read from the end; of a progress bar only its last state. Empty when there
    is no such file."""
    if n <= 0:
        return []
    try:
        with path.open("rb") as file:
            data = _end_of(file.fileno(), n)
    except FileNotFoundError:
        return []
    data = data.replace(b"\0", b"")
    rows = data.removesuffix(b"\n").split(b"\n") if data else []
    return [_decode(row.rstrip(b"\r").split(b"\r")[-1]) for row in rows[-n:]]


def _end_of(descriptor: int, n: int) -> bytes:
    """Enough of the file's end to hold `n` lines, within a limit."""
    position = os.fstat(descriptor).st_size
    parts: list[bytes] = []
    size = newlines = 0
    while position > 0 and newlines <= n and size < _TAIL_LIMIT:
        step = min(position, LINE_LIMIT)
        position -= step
        part = os.pread(descriptor, step, position)
        parts.append(part)
        size += len(part)
        newlines += part.count(b"\n")
    return b"".join(reversed(parts))


class _Splitter:
    """Cuts a stream of bytes into lines; of a giant line only the beginning is kept. NULs count for nothing:
    a log that was emptied while its writer went on begins with as many of them as it had bytes."""

    def __init__(self) -> None:
        self._number = 1
        self._rest = b""
        self._lost = 0  # bytes of the unfinished line that were thrown away

    def feed(self, chunk: bytes) -> list[LogLine]:
        found: list[LogLine] = []
        *whole, rest = (self._rest + chunk.replace(b"\0", b"")).split(b"\n")
        for row in whole:
            *overwritten, last = row.removesuffix(b"\r").split(b"\r")
            found += self._overwritten(overwritten)
            found.append(self._line(last))
            self._number += 1
        # A CR at the very end is not yet decided: a line end may follow.
        if (cut := rest.rfind(b"\r", 0, -1)) >= 0:
            found += self._overwritten(rest[:cut].split(b"\r"))
            rest = rest[cut + 1 :]
        excess = len(rest) - LINE_LIMIT - 1
        if excess > 0:
            rest = rest[:LINE_LIMIT] + rest[-1:]
            self._lost += excess
        self._rest = rest
        return found

    def _overwritten(self, states: list[bytes]) -> list[LogLine]:
        return [line for line in map(self._line, states) if line.text]

    def finish(self) -> list[LogLine]:
        rest, self._rest = self._rest, b""
        return [self._line(rest)] if rest else []

    def _line(self, data: bytes) -> LogLine:
        lost, self._lost = self._lost + max(0, len(data) - LINE_LIMIT), 0
        return LogLine(self._number, _decode(data[:LINE_LIMIT], lost))


def _decode(data: bytes, lost: int = 0) -> str:
    lost += max(0, len(data) - LINE_LIMIT)
    text = clean(data[:LINE_LIMIT].decode(errors="replace"))
    return f"{text} [... {lost} bytes more]" if lost else text
