"""Following Python tracebacks through a log in which several processes write at once.

A traceback is a block: a header, indented lines, and the exception. Chained exceptions belong to the block of
the first. What the scanner wants to know is only: is this line part of one, and does it name an exception?
"""

import re
from dataclasses import dataclass, field
from enum import Enum, auto

START = "Traceback (most recent call last):"
_HEADER = re.compile(rf"(?:^|: )[ |+]*(?:Exception Group )?{re.escape(START)}$")
_CHAIN = re.compile(
    r"^(?:During handling of the above exception, another exception occurred"
    r"|The above exception was the direct cause of the following exception):"
)
_GROUP_MARGIN = " |+-"
_MAX_OPEN = 64  # blocks that wait for an exception; one is left behind wherever a process dies while writing
_CONTINUED = 6  # lines after an exception that may still belong to its message
_NEARBY = 12  # lines after an exception in which another may be chained to it


def is_header(message: str) -> bool:
    """Whether a traceback begins here: alone, or after "what failed: ". Inside other text it is quoted."""
    return START in message and _HEADER.search(message.rstrip()) is not None


class Part(Enum):
    """What one line is to a traceback."""

    OUTSIDE = auto()
    BODY = auto()
    EXCEPTION = auto()
    CONTINUED = auto()  # the exception's message goes on


@dataclass(slots=True)
class Block:
    """One traceback with the exceptions chained to it.

    `excused`: it belongs to something harmless. `entry` is for the scanner: what it has noted for the block.
    """

    number: int
    excused: bool
    exception_at: int = 0
    entry: int | None = None
    reading: bool = True  # inside the indented lines, waiting for the exception
    chained: bool = False  # a chain marker was seen, the next traceback is part of this block
    text: str = ""


@dataclass(slots=True)
class Tracebacks:
    """The open blocks, one for each stream (a process, or a log record that repeats its prefix)."""

    exception: re.Pattern[str]
    open: dict[str, Block] = field(default_factory=dict)

    def start(self, stream: str, number: int, *, excused: bool) -> Block:
        """A header was read. It begins a block, or goes on with the one that announced it."""
        block = self.open.get(stream)
        if block is not None and block.chained:
            block.reading, block.chained = True, False
            return block
        block = Block(number, excused)
        self.open[stream] = block
        if len(self.open) > _MAX_OPEN:
            del self.open[next(iter(self.open))]
        return block

    def part(self, stream: str, number: int, message: str) -> tuple[Part, Block | None]:
        """What a line is to the open block of its stream. A line that cannot belong to it is OUTSIDE."""
        if not stream and message[:1].isspace():
            self._adopt(number)
        block = self.open.get(stream)
        if block is None:
            return Part.OUTSIDE, None
        if block.reading:
            return self._reading(block, number, message), block
        if _CHAIN.match(message):
            block.chained = True
            return Part.BODY, block
        if not message.strip():
            return Part.BODY, block
        if message[0].isspace() and self._continues(block, number, message):
            block.text = f"{block.text} {message.strip()}"
            return Part.CONTINUED, block
        # What is left is not its own; others may write in between, so that it ends by distance.
        if not block.chained and number - block.exception_at > _NEARBY:
            del self.open[stream]
        return Part.OUTSIDE, None

    def _adopt(self, number: int) -> None:
        """Some engines prefix only the first line of a record: the header carries a prefix, what follows
        it directly does not."""
        for stream, block in self.open.items():
            if stream and block.number == number - 1 and block.reading:
                self.open[""] = self.open.pop(stream)
                return

    @staticmethod
    def _continues(block: Block, number: int, message: str) -> bool:
        near = number - block.exception_at <= _CONTINUED
        return near and not message.lstrip().startswith(('File "', "^", "~"))

    def _reading(self, block: Block, number: int, message: str) -> Part:
        inner = message.lstrip(_GROUP_MARGIN) if message.lstrip()[:1] in ("|", "+") else message
        if self.exception.match(inner):
            block.exception_at, block.text = number, inner
            block.reading = inner is not message  # the margin of an exception group: more may follow
            return Part.EXCEPTION
        if not message.strip() or message[0].isspace():
            return Part.BODY
        # Not indented, no exception: another process wrote in between. The block stays open.
        return Part.OUTSIDE

    def unfinished(self) -> list[Block]:
        """Blocks whose exception was never written."""
        return [block for block in self.open.values() if block.reading and not block.exception_at]
