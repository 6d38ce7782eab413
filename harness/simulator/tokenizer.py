"""Text to token ids and back: the model's own tokenizer when it can be read, else a byte-level one.

The byte-level tokenizer is a real tokenizer in all that matters here: it adds a begin token on demand, knows
special tokens in the text, and one character may be several tokens.
"""

import codecs
import importlib
import importlib.util
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class TextStream:
    """Turns a stream of ids into pieces of text; holds back the bytes of an unfinished character."""

    def __init__(self, piece: Callable[[int, bool], str]) -> None:
        self._piece = piece

    def push(self, token_id: int) -> str:
        """The text that became complete with this id, possibly empty."""
        return self._piece(token_id, False)

    def push_last(self, token_id: int) -> str:
        """As `push`, for the last id: nothing is held back."""
        return self._piece(token_id, True)


class Tokenizer(ABC):
    """Ids are 0 to `vocab_size` - 1; `special_ids` are those that stand for no text of their own."""

    eos_id: int
    vocab_size: int
    special_ids: frozenset[int]

    @staticmethod
    def of(model_dir: Path) -> "Tokenizer":
        """The tokenizer of a model directory. Falls back to bytes if it has no `tokenizer.json` or the
        package `tokenizers` is not installed; never raises because of the directory's contents."""
        return _from_file(model_dir) or ByteTokenizer()

    @abstractmethod
    def encode(self, text: str, add_special_tokens: bool) -> tuple[int, ...]: ...

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """The text, special tokens included; bytes that form no character become U+FFFD."""

    @abstractmethod
    def stream(self) -> TextStream: ...

    def decode_one(self, token_id: int) -> str:
        return self.decode((token_id,))

    def count(self, text: str, add_special_tokens: bool = True) -> int:
        return len(self.encode(text, add_special_tokens))


SPECIALS = ("<|begin|>", "<|end|>", "<|im_start|>", "<|im_end|>")
_BEGIN, _END = 256, 257
_SPECIAL_ID = {text: 256 + number for number, text in enumerate(SPECIALS)}
_SPECIAL_BYTES = {256 + number: text.encode() for number, text in enumerate(SPECIALS)}
_SPLIT = re.compile("(" + "|".join(re.escape(text) for text in SPECIALS) + ")")


class ByteTokenizer(Tokenizer):
    """One token per UTF-8 byte, and four special tokens."""

    eos_id = _END
    vocab_size = 256 + len(SPECIALS)
    special_ids = frozenset(_SPECIAL_BYTES)

    def encode(self, text: str, add_special_tokens: bool) -> tuple[int, ...]:
        ids = [_BEGIN] if add_special_tokens else []
        for part in _SPLIT.split(text):
            if part in _SPECIAL_ID:
                ids.append(_SPECIAL_ID[part])
            else:
                # A lone surrogate (it can come in as a JSON escape) is no text; real servers replace it too.
                ids.extend(part.encode("utf-8", "replace"))
        return tuple(ids)

    def decode(self, ids: Iterable[int]) -> str:
        ids = tuple(ids)
        try:
            data = bytes(ids)
        except ValueError:
            data = b"".join(self._bytes(token_id) for token_id in ids)
        return data.decode("utf-8", "replace")

    def stream(self) -> TextStream:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return TextStream(lambda token_id, last: decoder.decode(self._bytes(token_id), last))

    def _bytes(self, token_id: int) -> bytes:
        if 0 <= token_id < 256:
            return bytes((token_id,))
        return _SPECIAL_BYTES.get(token_id, REPLACEMENT.encode())


_MOST_HELD = 32  # ids; what is still no character by then never becomes one


class FileTokenizer(Tokenizer):
    """A `tokenizer.json`, read by the package `tokenizers`."""

    def __init__(self, tokenizer: Any, eos_id: int) -> None:
        self._tokenizer = tokenizer
        self.eos_id = eos_id
        self.vocab_size = max(tokenizer.get_vocab_size(with_added_tokens=True), eos_id + 1)
        added = tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(number for number, token in added.items() if token.special)

    def encode(self, text: str, add_special_tokens: bool) -> tuple[int, ...]:
        clean = text.encode("utf-8", "replace").decode("utf-8")
        return tuple(self._tokenizer.encode(clean, add_special_tokens=add_special_tokens).ids)

    def decode(self, ids: Iterable[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def stream(self) -> TextStream:
        return TextStream(_Window(self.decode).piece)


class _Window:
    """Decodes the newest ids together with the few before them, and gives out what is new and complete."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._before: list[int] = []  # given out already; how an id reads may depend on its neighbour
        self._held: list[int] = []
        self._sent = 0  # characters of both lists' text that were given out

    def piece(self, token_id: int, last: bool) -> str:
        self._held.append(token_id)
        text = self._decode(self._before + self._held)
        complete = text if last or len(self._held) >= _MOST_HELD else text.rstrip(REPLACEMENT)
        piece = complete[self._sent :]
        self._sent = max(self._sent, len(complete))
        if len(complete) == len(text):
            self._before, self._held = self._held, []
            self._sent = len(self._decode(self._before))
        return piece


def _from_file(model_dir: Path) -> Tokenizer | None:
    path = model_dir / "tokenizer.json"
    if not path.is_file() or importlib.util.find_spec("tokenizers") is None:
        return None
    return _load(path)


@cache
def _load(path: Path) -> Tokenizer | None:
    package = importlib.import_module("tokenizers")
    try:
        tokenizer = package.Tokenizer.from_file(str(path))
    except Exception:  # noqa: BLE001 - the package raises bare Exception for any file that it cannot read
        return None
    eos = _eos_id(path.parent, tokenizer)
    return None if eos is None else FileTokenizer(tokenizer, eos)


def _eos_id(model_dir: Path, tokenizer: Any) -> int | None:
    for name in ("generation_config.json", "config.json"):
        value = _json(model_dir / name).get("eos_token_id")
        first = value[0] if isinstance(value, list) and value else value
        if isinstance(first, int):
            return first
    text = _json(model_dir / "tokenizer_config.json").get("eos_token")
    if isinstance(text, dict):
        text = text.get("content")
    found = tokenizer.token_to_id(text) if isinstance(text, str) else None
    return found if isinstance(found, int) else None


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
