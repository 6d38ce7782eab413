"""Reading a server's log, line by line, while it grows: phases, readiness, progress, and why it failed.

Conventions of a grammar, beside those of `LogGrammar` itself (`harness.engines.log_rules` has the words):

- the whole match of `timestamp` is a line's prefix, cut off to see how the message is indented;
- patterns are anchored with `^`, except `progress` and `detect`;
- the phase `stopping` means that a stop was asked for: nothing after it is a failure, and the first phase
  of the grammar, seen again after it, begins a new life of the server in the same file;
- the rule `unexpected exception` has its rank in `fatal` like any other, and is asked only about the last
  line of a traceback. Rules after it name consequences;
- a benign rule whose label ends in `(with its traceback)` covers the traceback that follows.

`ready` means that the server said so and did not fail to bind its port: a server that lost its port to
another one may well have warmed itself up against that other one.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from harness.engines.grammar import LogGrammar, LogRule
from harness.engines.log_rules import AND_TRACEBACK, PORT_IN_USE, STOPPING, UNEXPECTED, any_of
from harness.host.logs import clean
from harness.logscan.tracebacks import START, Block, Part, Tracebacks, is_header

READY = "ready"
CUT_OFF = "traceback without its end"
AFTER_STOP = "after a stop was asked for"
MAX_TEXT = 500  # characters of evidence kept of a line
MAX_SCANNED = 8192  # characters of a line that are looked at
MAX_FATAL = 500  # fatal lines kept; a crash loop may write thousands
EXCUSE_DISTANCE = 3  # lines between a benign header and its traceback

_RANK = re.compile(r"^\[?rank\d+\]?: ?")
_QUIET = re.compile(r"\b(?:DEBUG|INFO)\b")  # a traceback logged at these levels is somebody's text
_VOLATILE = re.compile(r"\d\d:\d\d:\d\d|:\d+(?=\])")


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase reached, the line that shows it, and the last time the log had named by then."""

    name: str
    line: int
    time: str | None = None


@dataclass(frozen=True, slots=True)
class FatalLine:
    """A line that shows a failure. `cause` is in words; `text` is the line, cleaned and cut."""

    line: int
    text: str
    cause: str


@dataclass(frozen=True, slots=True)
class _Entry:
    rank: int
    fatal: FatalLine


class LogScanner:
    """Feed it every line of a log in order; look at it at any time.

    `progress_count` grows with each line that shows work being done before the server is ready.
    """

    def __init__(self, grammar: LogGrammar) -> None:
        self.grammar = grammar
        self.lines = 0
        self.progress_count = 0
        self.last_progress_line: int | None = None
        self.last_progress_text = ""
        self.last_time: str | None = None
        self.stopping_line: int | None = None
        self.benign: Counter[str] = Counter()
        self.fatal_count = 0
        self._phases: dict[str, Phase] = {}
        self._entries: list[_Entry | None] = []
        self._excuse: tuple[int, str] = (-EXCUSE_DISTANCE, "")
        self._any_rule = any_of([*grammar.phases, *grammar.fatal, *grammar.benign], grammar.ready)
        self._unexpected = next(
            (rank, rule.pattern) for rank, rule in enumerate(grammar.fatal) if rule.label == UNEXPECTED
        )
        self._tracebacks = Tracebacks(self._unexpected[1])

    # what is known

    @property
    def ready_line(self) -> int | None:
        """The line in which the server became ready; None if it never did, or if its port was taken."""
        phase = self._phases.get(READY)
        if phase is None or any(entry.cause == PORT_IN_USE for entry in self.fatal):
            return None
        return phase.line

    @property
    def claimed_ready_line(self) -> int | None:
        """The line in which the server said that it is ready, true or not."""
        phase = self._phases.get(READY)
        return phase.line if phase else None

    @property
    def phases(self) -> list[Phase]:
        """Phases in the order in which they were first reached; `ready` is the last word on readiness."""
        ready = self.ready_line
        return [phase for phase in self._phases.values() if phase.name != READY or ready is not None]

    @property
    def fatal(self) -> list[FatalLine]:
        """Failures in the order of the log; the same failure told again (by each rank, say) stands once."""
        return _distinct(entry.fatal for entry in self._entries if entry is not None)

    def causes(self) -> list[FatalLine]:
        """Failures, the most telling first; equally telling ones in the order of the log."""
        entries = sorted(
            (entry for entry in self._entries if entry is not None), key=lambda e: (e.rank, e.fatal.line)
        )
        return _distinct(entry.fatal for entry in entries)

    # reading

    def feed(self, number: int, line: str) -> None:
        """Read the line with this number (1 is the first); raw or cleaned, any text will do."""
        self.lines = number
        for drawn in line.rstrip("\r\n").split("\r"):  # a progress bar is drawn over itself
            self._read(number, clean(drawn)[:MAX_SCANNED])

    def close(self) -> None:
        """The log has ended. A traceback whose exception was never written is a failure too, the least
        telling one, unless its first line says already what failed."""
        noted = {fatal.line for fatal in self.fatal}
        for block in self._tracebacks.unfinished():
            if not block.excused and block.number not in noted:
                self._note(block.number, START, len(self.grammar.fatal))
        self._tracebacks.open.clear()

    def _read(self, number: int, text: str) -> None:
        rank = _RANK.match(text)
        if rank:
            text = text[rank.end() :]
        prefix = rank.group() if rank else ""
        stamp = self.grammar.timestamp.match(text) if self.grammar.timestamp else None
        if stamp:
            prefix += stamp.group()
            self.last_time = stamp.groupdict().get("ts") or self.last_time
        message = text[stamp.end() :] if stamp else text
        if self._tracebacks.open and self._in_traceback(prefix, number, message):
            return
        if is_header(message) and not _QUIET.search(prefix) and self._starts_excused(prefix, number, text):
            return
        if self._any_rule.match(text):
            self._judge(number, text, prefix)
        if READY not in self._phases and self.grammar.progress.search(text):
            self.progress_count += 1
            self.last_progress_line, self.last_progress_text = number, text[:MAX_TEXT].strip()

    def _judge(self, number: int, text: str, prefix: str) -> None:
        if self._is_benign(text):
            if self._covers_traceback(text):
                self._excuse = (number, _source(prefix))
            return
        for phase in self.grammar.phases:
            if phase.pattern.match(text):
                self._reach(phase.label, number)
        if self.grammar.ready.match(text):
            self._reach(READY, number)
        for rank, fatal in enumerate(self.grammar.fatal):
            if fatal.label != UNEXPECTED and fatal.pattern.match(text):
                self._note(number, text, rank)
                return

    def _reach(self, name: str, number: int) -> None:
        if name == STOPPING and self.stopping_line is None:
            self.stopping_line = number
        if name == self.grammar.phases[0].label and self.stopping_line is not None:
            self._begin_again()
        self._phases.setdefault(name, Phase(name, number, self.last_time))

    def _begin_again(self) -> None:
        """The server was stopped and started again into the same file: its last life is what counts."""
        self.stopping_line = None
        self._phases.clear()
        self._entries.clear()
        self.fatal_count = 0

    # tracebacks

    def _starts_excused(self, prefix: str, number: int, text: str) -> bool:
        """Open the block of a traceback. True when its header, this line or one before, is benign."""
        at, source = self._excuse
        same_writer = number - at <= EXCUSE_DISTANCE and source == _source(prefix)
        excused = self._covers_traceback(text) or (same_writer if prefix else number - at <= 1)
        return self._tracebacks.start(prefix, number, excused=excused).excused

    def _in_traceback(self, stream: str, number: int, message: str) -> bool:
        part, block = self._tracebacks.part(stream, number, message)
        if block is None or part is Part.OUTSIDE:
            return False
        if part in (Part.EXCEPTION, Part.CONTINUED) and not block.excused:
            self._exception(block, number, part)
        return True

    def _exception(self, block: Block, number: int, part: Part) -> None:
        """An exception of a block, or more of its message: keep what tells most about why it came to this."""
        if self._is_benign(block.text):
            block.excused = True
            if block.entry is not None:
                self._entries[block.entry] = None
            return
        rank = self._rank(block.text)
        known = self._entries[block.entry] if block.entry is not None else None
        if known is None or block.entry is None:
            if part is Part.EXCEPTION:
                block.entry = self._note(number, block.text, rank)
            return
        longer = part is Part.CONTINUED and known.fatal.line == block.exception_at
        if rank < known.rank or (longer and rank == known.rank):
            self._entries[block.entry] = self._entry(block.exception_at, block.text, rank)

    def _rank(self, exception: str) -> int:
        for rank, rule in enumerate(self.grammar.fatal):
            if rule.label != UNEXPECTED and rule.pattern.match(exception):
                return rank
        return self._unexpected[0]

    # benign

    def _is_benign(self, text: str) -> bool:
        rule = _first(self.grammar.benign, text)
        if rule is not None:
            self.benign[rule.label.removesuffix(AND_TRACEBACK)] += 1
        return rule is not None

    def _covers_traceback(self, text: str) -> bool:
        rule = _first(self.grammar.benign, text)
        return rule is not None and rule.label.endswith(AND_TRACEBACK)

    # noting

    def _note(self, number: int, text: str, rank: int) -> int | None:
        if self.stopping_line is not None:
            self.benign[AFTER_STOP] += 1
            return None
        self.fatal_count += 1
        if len(self._entries) >= MAX_FATAL:
            return None
        self._entries.append(self._entry(number, text, rank))
        return len(self._entries) - 1

    def _entry(self, number: int, text: str, rank: int) -> _Entry:
        text = text.strip()[:MAX_TEXT]
        cause = self.grammar.fatal[rank].label if rank < len(self.grammar.fatal) else CUT_OFF
        if cause == UNEXPECTED:
            cause = f"{UNEXPECTED}: {text}"
        return _Entry(rank, FatalLine(number, text, cause))


def _first(rules: tuple[LogRule, ...], text: str) -> LogRule | None:
    return next((rule for rule in rules if rule.pattern.match(text)), None)


def _source(prefix: str) -> str:
    """The writer of a prefix: what stays the same when its clock and its line number go on."""
    return _VOLATILE.sub("", prefix)


def _distinct(fatal: Iterable[FatalLine]) -> list[FatalLine]:
    """Without repetitions of the same cause in the same words, numbers aside."""
    seen: dict[tuple[str, str], FatalLine] = {}
    for entry in fatal:
        key = (entry.cause, re.sub(r"\d+", "", entry.text))
        seen.setdefault(key, entry)
    return list(seen.values())
