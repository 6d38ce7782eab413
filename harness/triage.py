"""`harness triage LOG`: what an engineer would say about a server's log."""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, islice
from pathlib import Path
from typing import Any

from harness.engines import ENGINES
from harness.engines.grammar import LogGrammar
from harness.errors import ConfigError
from harness.host.logs import LogLine, lines
from harness.logscan import FatalLine, LogScanner, Phase
from harness.logscan.advice import ADVICE
from harness.report.text import safe, seconds, table

GRAMMARS: dict[str, LogGrammar] = {name: engine.grammar for name, engine in sorted(ENGINES.items())}

HEAD = 5000  # lines that the engine is recognised by
LEAP_YEAR = 2000  # stands in for a year that the log does not tell, so that 29 February exists
SHOWN = 6  # consequences that are printed


@dataclass(frozen=True, kw_only=True, slots=True)
class TriageReport:
    """What one log says. `fatal` has the most telling cause first; `benign` counts noise by kind."""

    path: Path
    engine: str
    looks_like: str | None
    lines: int
    ready_line: int | None
    claimed_ready_line: int | None
    stopping_line: int | None
    phases: tuple[Phase, ...]
    fatal: tuple[FatalLine, ...]
    benign: Mapping[str, int]
    last_progress: str

    @property
    def ready(self) -> bool:
        """Whether the server became ready, and on a port of its own."""
        return self.ready_line is not None

    @property
    def exit_code(self) -> int:
        """0 when it became ready with nothing fatal, else 1."""
        return 0 if self.ready and not self.fatal else 1

    def to_json(self) -> dict[str, Any]:
        """The stable shape for scripts. A phase's `time` is as the log writes it, None where it has none."""
        return {
            "engine": self.engine,
            "ready": self.ready,
            "phases": [{"name": p.name, "line": p.line, "time": p.time} for p in self.phases],
            "fatal": [{"line": f.line, "text": f.text, "cause": f.cause} for f in self.fatal],
        }

    def render(self) -> str:
        """The same for people, in plain text."""
        parts = [
            [f"{safe(str(self.path))}: {self.engine} log, {self.lines} lines", self._headline()],
            self._cause(),
            self._phase_table(),
            self._noise(),
        ]
        return "\n\n".join("\n".join(part) for part in parts if part)

    def _headline(self) -> str:
        stopped = f"; a stop was asked for in line {self.stopping_line}" if self.stopping_line else ""
        if self.fatal:
            first = self.fatal[0]
            after = self.ready_line is not None and first.line > self.ready_line
            when = "became ready, then failed" if after else "failed"
            if not self.ready:
                when = "never became ready"
            return f"{when}: {safe(first.cause)}"
        if self.ready:
            return f"became ready, nothing fatal{stopped}"
        return f"never became ready, and no failure is named{stopped}"

    def _cause(self) -> list[str]:
        if not self.fatal:
            return [] if self.ready else self._silence()
        first, *others = self.fatal
        rest = sorted(others, key=lambda fatal: fatal.line)
        found = [f"cause      line {first.line}: {safe(first.text)}"]
        if first.cause in ADVICE:
            found.append(f"what to do {ADVICE[first.cause]}")
        if self.claimed_ready_line is not None and not self.ready:
            found.append(
                f"beware     line {self.claimed_ready_line} says that it is ready; but what answered its "
                "warm-up, and answers on that port now, is another server"
            )
        found += [f"also       line {f.line}: {safe(f.cause, 80)}: {safe(f.text, 160)}" for f in rest[:SHOWN]]
        if len(rest) > SHOWN:
            found.append(f"           … and {len(rest) - SHOWN} more that follow from it")
        return found

    def _silence(self) -> list[str]:
        if not self.lines:
            return ["the log is empty: the process died before it wrote, or wrote elsewhere"]
        reached = (
            f"during `{self.phases[-1].name}` (line {self.phases[-1].line})" if self.phases else "at once"
        )
        found = [f"stopped    {reached}, at line {self.lines}"]
        if self.last_progress:
            found.append(f"progress   last seen: {safe(self.last_progress, 160)}")
        if self.stopping_line is None:
            found.append(
                "what to do if the process lives, it hangs or still loads: see whether one of its children "
                "is gone; "
                "if it is dead, its exit code tells the signal, and `dmesg` whether the kernel killed it"
            )
        return found

    def _phase_table(self) -> list[str]:
        if not self.phases:
            return ["phases     none of this engine's was seen"]
        rows = [["phase", "line", "time", "after"]]
        before: float | None = None
        for phase in self.phases:
            now = clock(phase.time) if phase.time else None
            took = now - before if now is not None and before is not None and now >= before else None
            rows.append([phase.name, str(phase.line), phase.time or "-", seconds(took)])
            before = now if now is not None else before
        return table(rows, right=frozenset({1, 3}))

    def _noise(self) -> list[str]:
        found = []
        if self.benign:
            kinds = ", ".join(f"{label} {n}" for label, n in sorted(self.benign.items(), key=lambda i: -i[1]))
            found.append(f"left out   {sum(self.benign.values())} benign lines: {kinds}")
        if self.looks_like not in (None, self.engine):
            found.append(f"beware     read as {self.engine}, but it looks like {self.looks_like}'s log")
        return found


def triage(path: Path, engine: str | None = None) -> TriageReport:
    """Read a whole log, of any size, in constant memory. `-` is standard input.

    Raises ConfigError when there is no such file, when `engine` is no engine, or when none is given and the
    first lines do not tell which one wrote the log.
    """
    if engine is not None and engine not in GRAMMARS:
        raise _no_such_engine(engine)
    source = _open(STDIN if str(path) == "-" else path)
    try:
        head = list(islice(source, HEAD))
        looks_like = recognise(line.text for line in head)
        name = engine or looks_like
        if name is None:
            raise _unrecognised(path, empty=not head)
        scanner = LogScanner(GRAMMARS[name])
        for number, text in chain(head, source):
            scanner.feed(number, text)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", fix="check its permissions") from error
    scanner.close()
    return _report(path, name, looks_like, scanner)


def recognise(texts: Iterable[str]) -> str | None:
    """The engine that most of these lines look like; None when no line looks like any."""
    hits = dict.fromkeys(GRAMMARS, 0)
    for text in texts:
        for name, grammar in GRAMMARS.items():
            hits[name] += grammar.detect.search(text[:2000]) is not None
    best = max(hits, key=lambda name: hits[name])
    return best if hits[best] else None


STDIN = Path("/dev/stdin")
_CLOCK = re.compile(
    r"(?:(?:(?P<year>\d{4})-)?(?P<month>\d\d)-(?P<day>\d\d) (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)"
    r"|(?P<minutes>\d+)\.(?P<sec>\d\d)\.(?P<ms>\d{3})\.(?P<us>\d{3}))$"
)


def clock(time: str) -> float | None:
    """Seconds from some origin, for differences within one log; None for an unknown form or no real date.

    Without a year, a difference over the end of a year is negative.
    """
    match = _CLOCK.match(time)
    if match is None:
        return None
    part = {name: int(text) for name, text in match.groupdict().items() if text is not None}
    if "minutes" in part:
        return part["minutes"] * 60 + part["sec"] + part["ms"] / 1e3 + part["us"] / 1e6
    year = part.pop("year", LEAP_YEAR)
    try:
        day = datetime(year, part["month"], part["day"], tzinfo=UTC)
    except ValueError:
        return None
    return day.timestamp() + part["h"] * 3600 + part["m"] * 60 + part["s"]


def _open(path: Path) -> Iterator[LogLine]:
    if path.is_dir():
        inside = ", ".join(sorted(p.name for p in path.glob("*.log"))[:8])
        hint = f"name one of its logs: {inside}" if inside else "name a log file"
        raise ConfigError(f"{path} is a directory", fix=hint)
    if not path.exists():
        raise ConfigError(
            f"there is no file {path}", fix="check the path; a run's logs are runs/<run>/<lane>/"
        )
    if path.is_char_device() and path != STDIN:  # a device such as /dev/zero never ends
        raise ConfigError(f"{path} is a device, not a log", fix="name a file, or pipe the log into `-`")
    return lines(path)


def _no_such_engine(name: str) -> ConfigError:
    near = difflib.get_close_matches(name.lower(), GRAMMARS, 1, 0.5)
    fix = f"did you mean `{near[0]}`? " if near else ""
    return ConfigError(f"no engine is called `{name}`", fix=f"{fix}engines: {', '.join(GRAMMARS)}")


def _unrecognised(path: Path, *, empty: bool) -> ConfigError:
    what = f"{path} is empty" if empty else f"{path} does not look like the log of a known engine"
    return ConfigError(what, fix=f"say which server wrote it: --engine {'|'.join(GRAMMARS)}")


def _report(path: Path, engine: str, looks_like: str | None, scanner: LogScanner) -> TriageReport:
    return TriageReport(
        path=path,
        engine=engine,
        looks_like=looks_like,
        lines=scanner.lines,
        ready_line=scanner.ready_line,
        claimed_ready_line=scanner.claimed_ready_line,
        stopping_line=scanner.stopping_line,
        phases=tuple(scanner.phases),
        fatal=tuple(scanner.causes()),
        benign=dict(scanner.benign),
        last_progress=scanner.last_progress_text,
    )
