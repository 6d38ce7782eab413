"""Text to ids and back."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.simulator.tokenizer import ByteTokenizer, FileTokenizer, TextStream, Tokenizer, _load

TOKENIZER = ByteTokenizer()
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


def stream(stream: TextStream, ids: tuple[int, ...]) -> list[str]:
    return [*(stream.push(token_id) for token_id in ids[:-1]), *(stream.push_last(i) for i in ids[-1:])]


@given(TEXT)
def test_text_comes_back(text: str) -> None:
    ids = TOKENIZER.encode(text, False)
    assert TOKENIZER.decode(ids) == text
    assert "".join(stream(TOKENIZER.stream(), ids)) == text


@given(st.lists(st.integers(0, TOKENIZER.vocab_size - 1)))
def test_any_ids_stream_as_they_decode(ids: list[int]) -> None:
    pieces = stream(TOKENIZER.stream(), tuple(ids))
    assert "".join(pieces) == TOKENIZER.decode(ids)
    "".join(pieces).encode()


def test_an_unfinished_character_is_held_back() -> None:
    pieces = stream(TOKENIZER.stream(), TOKENIZER.encode("a€b", False))
    assert pieces == ["a", "", "", "€", "b"]
    assert stream(TOKENIZER.stream(), TOKENIZER.encode("€", False)[:2]) == ["", "\ufffd"]


def test_special_tokens() -> None:
    plain = TOKENIZER.encode("hello", False)
    assert TOKENIZER.count("hello", add_special_tokens=False) == 5
    assert TOKENIZER.count("hello") == 6
    assert TOKENIZER.encode("hello", True)[1:] == plain
    chat = TOKENIZER.encode("<|im_start|>user\nhi<|im_end|>", False)
    assert len(chat) == 9
    assert TOKENIZER.decode(chat) == "<|im_start|>user\nhi<|im_end|>"
    assert {chat[0], chat[-1], TOKENIZER.eos_id} <= TOKENIZER.special_ids
    assert TOKENIZER.vocab_size > max(TOKENIZER.special_ids)


def test_odd_input_is_replaced_not_refused() -> None:
    assert TOKENIZER.decode(TOKENIZER.encode("\ud800", False)) == "?"
    assert TOKENIZER.decode_one(99_999) == "\ufffd"


@pytest.mark.parametrize("content", [None, "", "{}", "not json"])
def test_a_directory_without_a_readable_tokenizer_means_bytes(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    assert isinstance(Tokenizer.of(tmp_path), ByteTokenizer)


class Pieces:
    """A stand-in for the `tokenizers` package's: two bytes per id, so characters break across ids."""

    def encode(self, text: str, add_special_tokens: bool) -> Any:
        data = text.encode()
        ids = [int.from_bytes(b"\1" + data[at : at + 2]) for at in range(0, len(data), 2)]
        return SimpleNamespace(ids=[0, *ids] if add_special_tokens else ids)

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        assert not skip_special_tokens
        data = b"".join(i.to_bytes(3).lstrip(b"\0")[1:] for i in ids)
        return data.decode("utf-8", "replace")

    def get_vocab_size(self, with_added_tokens: bool) -> int:
        return 1 << 17

    def get_added_tokens_decoder(self) -> dict[int, Any]:
        return {0: SimpleNamespace(special=True)}

    def token_to_id(self, text: str) -> int | None:
        return 7 if text == "<end>" else None

    @classmethod
    def from_file(cls, path: str) -> "Pieces":
        if Path(path).read_text() == "bad":
            raise Exception("expected value at line 1")  # noqa: TRY002 - as the package does
        return cls()


@given(TEXT)
def test_a_file_tokenizer_streams_what_it_decodes(text: str) -> None:
    tokenizer = FileTokenizer(Pieces(), 7)
    ids = tokenizer.encode(text, False)
    pieces = stream(tokenizer.stream(), ids)
    assert "".join(pieces) == tokenizer.decode(ids) == text


@pytest.mark.parametrize(
    ("files", "eos"),
    [
        ({"generation_config.json": {"eos_token_id": [3, 4]}}, 3),
        ({"config.json": {"eos_token_id": 5}}, 5),
        ({"tokenizer_config.json": {"eos_token": {"content": "<end>"}}}, 7),
        ({"generation_config.json": {}, "tokenizer_config.json": {"eos_token": "<end>"}}, 7),
        ({}, None),
    ],
)
def test_the_end_token_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, Any], eos: int | None
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", SimpleNamespace(Tokenizer=Pieces))
    path = tmp_path / "tokenizer.json"
    path.write_text("good")
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    found = _load(path)
    assert (found and found.eos_id) == eos


def test_an_unreadable_file_is_no_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", SimpleNamespace(Tokenizer=Pieces))
    (tmp_path / "tokenizer.json").write_text("bad")
    assert _load(tmp_path / "tokenizer.json") is None
