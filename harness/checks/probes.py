"""What the `smoke` check asks: short questions, and texts to go on with, that any model ends by itself."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["chat", "completion"]


@dataclass(frozen=True, slots=True)
class Probe:
    """One question. A completion ends at one of the `stop` texts, as a line of a few-shot prompt does: a text
    has no other end that all models agree on."""

    kind: Kind
    name: str
    prompt: str
    stop: tuple[str, ...] = ()


PROBES = (
    Probe("chat", "greeting", "Say hello to me in one short sentence."),
    Probe("chat", "sum", "What is 2 + 3? Answer with the number only."),
    Probe("chat", "capital", "What is the capital of Italy? Answer in one sentence."),
    Probe("chat", "difference", "What is 9 - 4? Answer with the number only."),
    Probe(
        "completion",
        "word problem",
        "Question: Tom has 3 apples and buys 4 more. How many apples has he?\nAnswer: 3 + 4 = 7\n\n"
        "Question: Ann has 5 pens and buys 2 more. How many pens has she?\nAnswer: 5 + 2 = 7\n\n"
        "Question: Max has 6 books and buys 3 more. How many books has he?\nAnswer:",
        ("\n\n", "Question:"),
    ),
    Probe(
        "completion",
        "capitals",
        "France: Paris\nSpain: Madrid\nPortugal: Lisbon\nAustria: Vienna\nItaly:",
        ("\n",),
    ),
    Probe(
        "completion",
        "opposites",
        "hot - cold\nbig - small\nfast - slow\nlight - dark\nup -",
        ("\n",),
    ),
    Probe(
        "completion",
        "sentence",
        "Write each sentence on a line of its own.\nThe sun rises in the east.\nThe sun sets in the",
        ("\n", "."),
    ),
)
