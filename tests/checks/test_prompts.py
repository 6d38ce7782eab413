"""Prompts of exactly so many tokens, and the same prompt asked of another server."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer, models

from harness.checks.prompts import MOST_BYTES, PromptMaker, tokenizer_problem
from harness.errors import HarnessError
from tests.checks.small_pool import byte_tokenizer


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


def test_a_tokenizer_that_makes_prompts(tmp_path: Path) -> None:
    byte_tokenizer(tmp_path)
    assert tokenizer_problem(tmp_path, server_tells=False) == ""


@pytest.mark.parametrize("vocabulary", [{}, {"[UNK]": 0}])
def test_a_tokenizer_that_tells_no_texts_apart(tmp_path: Path, vocabulary: dict[str, int]) -> None:
    made = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token="[UNK]" if vocabulary else None))
    made.save(str(tmp_path / "tokenizer.json"))
    assert "does not tell texts apart" in tokenizer_problem(tmp_path, server_tells=True)


def test_a_file_that_is_too_long_for_a_tokenizer_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "tokenizer.json").open("wb") as file:
        file.truncate(MOST_BYTES + (2 << 20))
    assert "has 258 MiB, and none needs more than 256" in tokenizer_problem(tmp_path, server_tells=True)
