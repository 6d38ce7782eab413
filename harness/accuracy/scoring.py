"""GSM8K scoring, recomputed from the raw response alone.

The rules are those of lm-eval's `gsm8k` task, down to the habits of its array library, so that a score which
differs from the evaluator's means a changed file or a changed extractor, never a rounding of ours. Tests hold
the two side by side on arbitrary text.
"""

import re
from collections.abc import Callable
from typing import Final

STRICT: Final = "strict-match"
FLEXIBLE: Final = "flexible-extract"
FILTERS: Final = (STRICT, FLEXIBLE)
INVALID: Final = "[invalid]"

_STRICT_ANSWER = re.compile(r"#### (-?[0-9.,]+)")
_ANY_NUMBER = re.compile(r"-?[$0-9.,]{2,}|-?[0-9]+")
_NUMBER_CHARACTERS = re.compile(r"[-$0-9.,]+")
_LAST_DOT = re.compile(r"\.$")

_TAIL = 16  # characters at the end whose earlier occurrences propose a period
_LOOP_CHARS = 64  # a loop shorter than this may be honest ("1+1+1+1=4", "0.333333")
_LOOP_REPEATS = 4
_MAX_PERIODS = 32
_GRAM = 8  # words
_MIN_GRAMS = 32


def extract(response: str, filter_name: str) -> str:
    """The answer that a filter reads out of a response, or `[invalid]`.

    `strict-match` takes the first number behind `#### `; `flexible-extract` the last thing in the text that
    looks like a number. Raises KeyError for any other filter.
    """
    return _EXTRACTORS[filter_name](response)


def _strict(response: str) -> str:
    match = _STRICT_ANSWER.search(response)
    return match[1] if match else INVALID


def _flexible(response: str) -> str:
    # A match never leaves a run of number characters, so the last one is sought run by run from the end:
    # ten times quicker than matching all the text before it.
    for run in _NUMBER_CHARACTERS.finditer(response[::-1]):
        numbers = _ANY_NUMBER.findall(run[0][::-1])
        if numbers:
            return str(numbers[-1])
    return INVALID


_EXTRACTORS: Final[dict[str, Callable[[str], str]]] = {STRICT: _strict, FLEXIBLE: _flexible}


def normalise(text: str) -> str:
    """What two answers are compared as: no commas, no dollars, only what follows the last `#### `, no final
    dot, lower case."""
    # The evaluator keeps its strings in fixed-width arrays: trailing NULs vanish between the steps, and
    # lower-casing cannot make a text longer than it was.
    text = text.replace(",", "").rstrip("\0").replace("$", "").rstrip("\0")
    text = text.rpartition("#### ")[2].rstrip("\0")
    text = _LAST_DOT.sub("", text)
    return text.rstrip("\0").lower()[: len(text)].rstrip("\0")


def score(extracted: str, target: str) -> bool:
    """Whether an extracted answer is the target's (a gold solution that ends in `#### N`)."""
    return normalise(extracted) == normalise(target)


def has_final_number(response: str) -> bool:
    """Whether the response states a final answer the way the task asks for: `#### ` and digits."""
    return any(character.isdigit() for character in _strict(response))


def is_degenerate(response: str) -> bool:
    """Whether the text loops: one character only, an end that repeats with a fixed period, or mostly word
    sequences that were there before."""
    text = response.strip()
    if len(text) >= _TAIL // 2 and len(set(text)) == 1:
        return True
    return _ends_in_a_loop(text) or _repeats_itself(text)


def _ends_in_a_loop(text: str) -> bool:
    """At least four periods, at least 64 characters, wherever in its period the text was cut."""
    size = len(text)
    if size < _LOOP_CHARS:
        return False
    tail = text[-_TAIL:]
    found = size - _TAIL
    for _ in range(_MAX_PERIODS):
        found = text.rfind(tail, 0, found + _TAIL - 1)
        if found < 0:
            return False
        period = size - _TAIL - found
        span = max(_LOOP_REPEATS * period, _LOOP_CHARS)
        if span > size:
            return False
        if text[size - span + period :] == text[size - span : size - period]:
            return True
    return False


def _repeats_itself(text: str) -> bool:
    """More than half of the text's word 8-grams occurred before."""
    words = text.split()
    count = len(words) - _GRAM + 1
    if count < _MIN_GRAMS or len(set(words[:count])) * 2 >= count:  # each new word starts a new 8-gram
        return False
    distinct = len(set(zip(*(words[offset:] for offset in range(_GRAM)), strict=False)))
    return distinct * 2 < count
