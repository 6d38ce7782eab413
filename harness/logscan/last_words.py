"""The end of a log without what says nothing: repetitions, and the bodies of tracebacks."""

import re
from collections.abc import Sequence

from harness.engines.grammar import LogGrammar
from harness.logscan.tracebacks import is_header

MAX_LINES = 3
LINES_READ = 60  # of the log's end, to find them in
_RANK = re.compile(r"^\[?rank\d+\]?: ?")
_WORD = re.compile(r"[^\W\d_]+")  # a progress bar has the same from beginning to end
_CHAINED = re.compile(r"^(?:During handling of|The above exception was)\b.*:$")


def last_words(lines: Sequence[str], grammar: LogGrammar, told: str) -> list[str]:
    """The last few lines, in their order, that say something which a later one of them does not, numbers
    aside; only those after the last that says what is `told` anyway. None where there is no such line."""
    cause = _words(told)
    known: set[str] = set()
    found: list[str] = []
    for line in reversed(lines):
        message = _message(line, grammar)
        if message[:1].isspace() or is_header(message) or _CHAINED.match(message):
            continue
        words = _words(message)
        if cause and words and (words in cause or cause in words):
            break
        if words and words not in known:
            known.add(words)
            found.append(line)
        if len(found) == MAX_LINES:
            break
    return found[::-1]


def _message(line: str, grammar: LogGrammar) -> str:
    text = _RANK.sub("", line)
    stamp = grammar.timestamp.match(text) if grammar.timestamp else None
    return text[stamp.end() :] if stamp else text


def _words(text: str) -> str:
    return " ".join(_WORD.findall(text))
