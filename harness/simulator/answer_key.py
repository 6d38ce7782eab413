"""Which documents the simulated model gets right, for each KV type."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Document:
    question: str
    answer: str  # the number after "####", as written


class AnswerKey:
    """A data set with a set accuracy per KV type and a set disagreement between two of them.

    Construction, for n documents. The first KV type of `accuracies` is the base: the documents are ordered by
    a hash of their question, and the first round(accuracy * n) are right. Every other KV type starts from the
    base and flips `lost` right documents to wrong and `gained` wrong ones to right, chosen by a hash of its
    name and the question. `gained - lost` is what its own accuracy asks for, so every accuracy holds exactly;
    `gained + lost` is the discordance, round(discordance * n) made possible: at least |gained - lost|, of the
    same parity, and no more than the documents that can flip. A KV type that `accuracies` does not name has
    the base's accuracy and the set discordance against the base.
    """

    def __init__(
        self, documents: Sequence[Document], accuracies: Mapping[str, float], discordance: float = 0.0
    ) -> None:
        """Raises ValueError for a share outside 0 to 1 or no accuracy at all."""
        shares = [*accuracies.values(), discordance]
        if not accuracies or any(not 0 <= share <= 1 for share in shares):
            raise ValueError("an answer key needs an accuracy per KV type, and shares between 0 and 1")
        self._documents = {_normal(document.question): document for document in documents}
        self._accuracies = dict(accuracies)
        self._discordance = discordance
        self._base = next(iter(accuracies))

    @classmethod
    def load(cls, path: Path, accuracies: Mapping[str, float], discordance: float = 0.0) -> "AnswerKey":
        """Reads JSON lines with `question` and `answer` ("... #### 42"). Raises OSError or ValueError."""
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
        if not all(isinstance(row, dict) and {"question", "answer"} <= row.keys() for row in rows):
            raise ValueError(f"{path}: every line needs a question and an answer")
        documents = [
            Document(str(row["question"]), str(row["answer"]).rpartition("####")[2].strip()) for row in rows
        ]
        return cls(documents, accuracies, discordance)

    def __len__(self) -> int:
        return len(self._documents)

    def document(self, question: str) -> Document | None:
        return self._documents.get(_normal(question))

    def right(self, kv_type: str) -> frozenset[str]:
        """The questions that this KV type gets right."""
        questions = self._ordered("")
        base = questions[: self._number_right(self._base)]
        if kv_type == self._base:
            return frozenset(self._text(question) for question in base)
        right = set(base)
        lost, gained = self._flips(len(base), self._number_right(kv_type))
        shuffled = self._ordered(kv_type)
        was_right = [question for question in shuffled if question in right]
        was_wrong = [question for question in shuffled if question not in right]
        right.difference_update(was_right[:lost])
        right.update(was_wrong[:gained])
        return frozenset(self._text(question) for question in right)

    def _flips(self, base: int, wanted: int) -> tuple[int, int]:
        """(lost, gained) with gained - lost == wanted - base and their sum close to the discordance."""
        gap = wanted - base
        total = max(round(self._discordance * len(self)), abs(gap))
        lost = (total - gap + 1) // 2  # an odd remainder is rounded up
        lost = min(lost, base, len(self) - base - gap)
        return lost, lost + gap

    def _number_right(self, kv_type: str) -> int:
        return round(self._accuracies.get(kv_type, self._accuracies[self._base]) * len(self))

    def _ordered(self, salt: str) -> list[str]:
        return sorted(self._documents, key=lambda question: _hash(salt, question))

    def _text(self, normal: str) -> str:
        return self._documents[normal].question


@dataclass(frozen=True, slots=True)
class Answers:
    """The key as one KV type answers it."""

    key: AnswerKey
    right: frozenset[str]

    @classmethod
    def of(cls, key: AnswerKey, kv_type: str) -> "Answers":
        return cls(key, key.right(kv_type))

    def number(self, question: str) -> str | None:
        """What the model answers, right or wrong; None for a question that is not in the key."""
        document = self.key.document(question)
        if document is None:
            return None
        return document.answer if document.question in self.right else _wrong(document)


def _wrong(document: Document) -> str:
    step = 1 + _hash("wrong", document.question)[0] % 9
    try:
        return str(int(document.answer.replace(",", "")) + step)
    except ValueError:
        return str(step)  # the right answer is no whole number, so any is wrong


def _normal(question: str) -> str:
    return " ".join(question.split())


def _hash(salt: str, text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "replace"), key=salt.encode()[:64], digest_size=16).digest()
