"""What the simulated model says: readable, and a pure function of the whole context.

Every next word is chosen by a hash of all ids before it, salted by KV type and seed. So a changed, lost or
swapped context changes the output, and what else is in the batch never does.
"""

import hashlib
import re
from array import array
from collections.abc import Sequence

from harness.simulator.answer_key import AnswerKey, Answers
from harness.simulator.tokenizer import Tokenizer

_WORD_TEXT = """
a about after all also and answer any are as at away back be because before between big both but by call
can come day did do down each early end even every few find first for from gave get give good great half
has have here home house how if in into it just keep kind know last left less light like line little
long look make many may more most move much must name near need new next no not now number of off old on
once one only open or other our out over own page part people place plan point put read right road round
same say school see set she short show side small so some still stop such take tell than that the their
them then there these they thing think this time to together too town tree turn two under until up us
use very walk want was water way we well went were what when where which while white who why will with
word work world would write year you
"""
WORDS = tuple(_WORD_TEXT.split())

# Log-probabilities by one byte of the hash: mostly near 0, with a tail, as greedy decoding has.
_LOGPROBS = tuple(-0.0005 - 2.5 * (byte / 255) ** 4 for byte in range(256))

_MARKERS = re.compile(r"(?:\s|<[^<>]{1,40}>|\[/?[A-Z_]+\]|assistant|model)*")
_PROMPT_END_IDS = 8192  # enough for the last question in any tokenizer
_SENTENCE_WORDS = 9


class Language:
    """The model. Stateless: each request has its own `Speech`."""

    def __init__(
        self, tokenizer: Tokenizer, answers: AnswerKey | None, *, kv_type: str, model_seed: int = 0
    ) -> None:
        """`kv_type` picks the column of the answer key and salts the wording, as another precision would."""
        self.tokenizer = tokenizer
        self._answers = None if answers is None else Answers.of(answers, kv_type)
        self._salt = f"{kv_type}/{model_seed}".encode()
        self._words = [tokenizer.encode(" " + word, False) for word in WORDS]
        self._full_stop = tokenizer.encode(".", False)

    def begin(self, prompt: Sequence[int], seed: int = 0) -> "Speech":
        """`seed` 0 is greedy decoding."""
        context = hashlib.blake2b(self._salt, digest_size=32)
        context.update(f"/{seed}/".encode())
        context.update(array("I", prompt).tobytes())
        closing = self._full_stop
        number = self._answer(prompt)
        if number is not None:
            closing = self.tokenizer.encode(f".\n#### {number}", False)
        return Speech(context, self._words, self._full_stop, closing, self.tokenizer.eos_id)

    def kv(self, ids: Sequence[int]) -> bytes:
        """What is in the KV cache for these ids; a model of another KV type cannot read it."""
        return self._masked(array("I", ids).tobytes())

    def ids_of(self, kv: bytes) -> tuple[int, ...]:
        """The ids that this KV stands for. Raises ValueError for a length that no KV has."""
        return tuple(one % self.tokenizer.vocab_size for one in array("I", self._masked(kv)))

    def state(self, ids: Sequence[int]) -> bytes:
        """The state of linear attention after these ids."""
        return hashlib.blake2b(self._salt + array("I", ids).tobytes(), digest_size=32).digest()

    def _masked(self, data: bytes) -> bytes:
        mask = hashlib.blake2b(self._salt, digest_size=32).digest() * (len(data) // 32 + 1)
        number = int.from_bytes(data, "little") ^ int.from_bytes(mask[: len(data)], "little")
        return number.to_bytes(len(data), "little")

    def _answer(self, prompt: Sequence[int]) -> str | None:
        if self._answers is None:
            return None
        question = last_question(self.tokenizer.decode(prompt[-_PROMPT_END_IDS:]))
        return None if question is None else self._answers.number(question)


def last_question(prompt: str) -> str | None:
    """The question of a prompt that ends in "Question: ...\\nAnswer:", chat markers after it aside."""
    end = prompt.rfind("\nAnswer:")
    if end < 0 or not _MARKERS.fullmatch(prompt, end + len("\nAnswer:")):
        return None
    start = prompt.rfind("Question:", 0, end)
    return None if start < 0 else prompt[start + len("Question:") : end].strip()


class Speech:
    """One request's generation. Say what follows with `next`, one token at a time."""

    __slots__ = (
        "_closing", "_context", "_digest", "_eos", "_full_stop", "_length", "_pending", "_position", "_said",
        "_sentence", "_words", "damaged",
    )  # fmt: skip

    def __init__(
        self,
        context: "hashlib.blake2b",
        words: Sequence[tuple[int, ...]],
        full_stop: tuple[int, ...],
        closing: tuple[int, ...],
        eos: int,
    ) -> None:
        self._context = context
        self._words = words
        self._full_stop = full_stop
        self._closing: tuple[int, ...] | None = closing
        self._eos = eos
        self.damaged = False
        self._digest = context.digest()
        self._pending: tuple[int, ...] = ()
        self._position = 0  # in pending
        self._said = 0
        self._sentence = 0  # words in it so far
        # The closing comes after at most 175 tokens, so that all ends within 200.
        self._length = 20 + int.from_bytes(self._digest[:4], "little") % 156 - min(len(closing), 19)

    @property
    def number(self) -> int:
        """64 bits that only the context so far decides."""
        return int.from_bytes(self._digest[8:16], "little")

    def next(self, may_stop: bool) -> tuple[int, float]:
        """The next token and its log-probability. The end token comes only where `may_stop`."""
        if self._position == len(self._pending):
            if self._closing is None and may_stop:
                return self._eos, _LOGPROBS[self._digest[0]]
            self._think()
        token = self._pending[self._position]
        self._position += 1
        self._said += 1
        return token, _LOGPROBS[self._digest[self._position % 32]]

    def corrupt(self, what: bytes) -> None:
        """The context is damaged: everything after this differs."""
        self.damaged = True
        self._context.update(b"\0damaged\0" + what)
        self._pending, self._position = (), 0

    def _think(self) -> None:
        self._digest = self._context.digest()
        if self._closing is not None and self._said >= self._length:
            self._say(self._closing)
            self._closing, self._sentence = None, 0
        elif self._sentence >= _SENTENCE_WORDS:
            self._say(self._full_stop)
            self._sentence = 0
        else:
            self._say(self._words[int.from_bytes(self._digest[:8], "little") % len(self._words)])
            self._sentence += 1

    def _say(self, ids: tuple[int, ...]) -> None:
        self._pending, self._position = ids, 0
        self._context.update(array("I", ids).tobytes())
