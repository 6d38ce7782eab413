"""The end of a log without what says nothing: repetitions, and the bodies of tracebacks."""

import re
from collections.abc import Sequence

from harness.engines.grammar import LogGrammar
from harness.logscan.tracebacks import is_header

MAX_LINES = 3
LINES_READ = 60  # of the log's end, to find them in
_RANK = re.compile(r"^\[?rank\d+\]?: ?")
_RULE = re.compile(r"^[\W_]+$")  # dashes, stars, carets
_CHAINED = re.compile(r"^(?:During handling of|The above exception was)\b.*:$")


def last_words(lines: Sequence[str], grammar: LogGrammar, told: str) -> list[str]:
    """The last few lines, in their order, that say something which neither `told` nor a later one of them
    does, numbers aside. None where there is no such line."""
    known = [_key(told)] if told else []
    found: list[str] = []
    for line in reversed(lines):
        message = _message(line, grammar)
        if message[:1].isspace() or is_header(message) or _RULE.match(message) or _CHAINED.match(message):
            continue
        key = _key(message)
        if key and not any(key in other or other in key for other in known):
            known.append(key)
            found.append(line)
        if len(found) == MAX_LINES:
            break
    return found[::-1]


def _message(line: str, grammar: LogGrammar) -> str:
    text = _RANK.sub("", line)
    stamp = grammar.timestamp.match(text) if grammar.timestamp else None
    return text[stamp.end() :] if stamp else text


def _key(text: str) -> str:
    return " ".join(re.sub(r"\d+", "", text).split())
