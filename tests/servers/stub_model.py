"""The stub's model: a tokenizer that can be undone, and answers that depend on the prompt alone."""

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers.stub_faults import Faults, fraction

VOCABULARY = 256 + 256 * 256
_WORDS = ("stone", "river", "lamp", "green", "seven", "often", "under", "bread", "glass", "window", "paper")
_LOOP = " and so it goes on"


def encode(text: str) -> list[int]:
    """Two bytes make a token; an odd one at the end makes one of its own."""
    data = text.encode("utf-8", "surrogatepass")
    pairs = [256 + 256 * data[i] + data[i + 1] for i in range(0, len(data) - 1, 2)]
    return pairs + ([data[-1]] if len(data) % 2 else [])


def decode(ids: Sequence[int]) -> bytes:
    """The bytes of these tokens; one that does not exist is a question mark."""
    return b"".join(map(_piece, ids))


def _piece(number: int) -> bytes:
    if not 0 <= number < VOCABULARY:
        return b"?"
    return bytes([number]) if number < 256 else bytes(divmod(number - 256, 256))


@dataclass(frozen=True)
class Generated:
    """One generation. `text` is None where a fault took it."""

    prompt_ids: list[int]
    ids: list[int]
    text: str | None
    stop_type: str  # llama.cpp's words: limit, eos, word
    stopping_word: str
    cached: int

    @property
    def finish_reason(self) -> str:
        return "length" if self.stop_type == "limit" else "stop"


class Model:
    """Answers prompts. With an answer key (JSONL of `question` and `answer`, as GSM8K has it) it answers the
    last question of the prompt, rightly for a share `accuracy` of the questions."""

    def __init__(self, faults: Faults, key: str | None, accuracy: float, slots: int) -> None:
        self._faults = faults
        self._accuracy = accuracy
        self._gold: dict[str, str] = {}
        self._recent: deque[list[int]] = deque(maxlen=slots)
        if key:
            with Path(key).open(encoding="utf-8") as lines:
                for line in lines:
                    item = json.loads(line)
                    self._gold[item["question"].strip()] = item["answer"].rpartition("####")[2].strip()

    def is_asked(self, prompt: str) -> bool:
        """Whether this prompt is what the faults of answers are for: not a warm-up, where there is a key."""
        return not self._gold or _question(prompt) in self._gold

    def generate(self, prompt: str | list[int], settings: dict[str, Any], limit: int) -> Generated:
        """`limit` below 0 means none."""
        text = prompt if isinstance(prompt, str) else decode(prompt).decode("utf-8", "replace")
        prompt_ids = encode(prompt) if isinstance(prompt, str) else prompt
        cached = self._cached(prompt_ids) if settings.get("cache_prompt", True) else 0
        answer, stop_type, word = self._answer(text), "eos", ""
        asked = self.is_asked(text)
        if asked and self._faults.hits("loop-answers", text):
            answer = _LOOP * 400
        if asked and self._faults.hits("cut-answers", text):
            answer, stop_type = answer[: len(answer) // 2], "limit"
        for stop in _stops(settings):
            if stop in answer:
                answer, stop_type, word = answer.partition(stop)[0], "word", stop
        ids = encode(answer)
        if settings.get("ignore_eos") and 0 <= len(ids) < limit:
            ids = (ids * (limit // max(1, len(ids)) + 1))[:limit]
        if 0 <= limit <= len(ids):
            ids, stop_type, word = ids[:limit], "limit", ""
        shown: str | None = decode(ids).decode("utf-8", "replace")
        if asked and self._faults.hits("empty-answers", text):
            shown = ""
        if asked and self._faults.hits("null-answers", text):
            shown = None
        return Generated(prompt_ids, ids, shown, stop_type, word, cached)

    def _answer(self, prompt: str) -> str:
        question = _question(prompt)
        gold = self._gold.get(question)
        if gold is not None:
            right = fraction("right" + question) < self._accuracy
            number = gold if right else str(int(float(gold.replace(",", ""))) + 1)
            return f" Counting all of it together gives {number}.\n#### {number}"
        dice = (fraction(f"{prompt}{place}") for place in range(4 + int(8 * fraction(prompt))))
        return "".join(f" {_WORDS[int(die * len(_WORDS))]}" for die in dice) + "."

    def _cached(self, ids: list[int]) -> int:
        """Length of the longest prefix shared with a recent prompt; the last token is always computed."""
        best = max((_common(ids, other) for other in list(self._recent)), default=0)
        self._recent.append(ids)
        return max(0, min(best, len(ids) - 1))


def _question(prompt: str) -> str:
    return prompt.rpartition("Question:")[2].partition("\nAnswer:")[0].strip()


def _stops(settings: dict[str, Any]) -> list[str]:
    stop = settings.get("stop") or []
    return [stop] if isinstance(stop, str) else [word for word in stop if word]


def _common(one: list[int], other: list[int]) -> int:
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low
