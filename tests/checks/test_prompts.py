"""Prompts of exactly so many tokens, and the same prompt asked of another server."""

import pytest

from harness.checks.prompts import PromptMaker
from harness.errors import HarnessError


def cut(text: str) -> tuple[int, ...]:
    """A tokenizer that knows one long word: `ab` is a token of its own."""
    return tuple(map(ord, text.replace("ab", "\x01")))


def join(ids: tuple[int, ...]) -> str:
    return "".join(map(chr, ids)).replace("\x01", "ab")


def test_exact_length_and_never_the_same() -> None:
    maker = PromptMaker(cut, join)
    first, second = maker(50), maker(50)
    assert len(first) == len(second) == 50
    assert first[:8] != second[:8]


def test_text_of_exactly_so_many_tokens() -> None:
    text = PromptMaker(cut, join, as_text=True)(50)
    assert isinstance(text, str)
    assert len(cut(text)) == 50


def test_a_prompt_that_another_server_was_asked() -> None:
    ids, text = PromptMaker(cut, join), PromptMaker(cut, join, as_text=True)
    assert ids.again([1, 99]) == (1, 99)
    assert ids.again("abc") == "abc"
    assert text.again("abc") == "abc"
    assert text.again([1, 99]) == "abc"


@pytest.mark.parametrize("untokenize", [join, None])
def test_ids_that_are_no_text(untokenize: object) -> None:
    maker = PromptMaker(cut, join if untokenize else None, as_text=True)
    with pytest.raises(HarnessError, match="2 token ids is no text"):
        maker.again([97, 98])  # a, b: as a text they are one token
