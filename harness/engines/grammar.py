"""How an engine's log is read: which lines mean what."""

import re
from dataclasses import dataclass
from functools import cache


@cache
def _compiled(text: str) -> re.Pattern[str]:
    return re.compile(text)


@dataclass(frozen=True, slots=True)
class LogRule:
    """A line that means something: `label` is a phase name or, for a fatal rule, the cause in words. The
    pattern is compiled when a log is read: most commands read none, and hundreds take a tenth of a second."""

    label: str
    text: str

    @property
    def pattern(self) -> re.Pattern[str]:
        return _compiled(self.text)


@dataclass(frozen=True, kw_only=True, slots=True)
class LogGrammar:
    """How to read one engine's log. Patterns are searched in lines stripped of ANSI colour and CR.

    `fatal` rules stand from the most to the least telling cause. `benign` matches a line (or the last line
    of a traceback) that looks fatal and is not. `timestamp` has a group `ts`; None where lines carry none.
    `detect` tells this engine's log from another's.
    """

    ready: re.Pattern[str]
    phases: tuple[LogRule, ...]
    progress: re.Pattern[str]
    fatal: tuple[LogRule, ...]
    benign: tuple[LogRule, ...]
    detect: re.Pattern[str]
    timestamp: re.Pattern[str] | None = None
