"""Prompts of exactly so many tokens, different in every run, so that cold is cold.

A prompt begins with a nonce and goes on with plain sentences of varied words: predictable text hides damage
to the KV cache, since the model would say the same without it.
"""

import random
import uuid
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from harness.checks.base import CheckContext
from harness.engines.client import Client
from harness.errors import HarnessError
from harness.host.paths import is_file, is_folder

_TEXT = """
harbour ledger copper orchard signal winter carpenter violet tunnel barley compass engine market silver
lantern river gravel teacher anchor meadow cotton bridge window pepper circle granite ferry captain maple
quarry basket thunder mirror planet saddle timber velvet canyon beacon chapel walnut summit ribbon marble
"""
_WORDS = _TEXT.split()
MOST_TOKENS = 262_144  # longer prompts are a slip of the pen
MOST_BYTES = 256 << 20  # of a tokenizer's file, which is read whole
_SAMPLES = ("The harbour keeper sold 12 barrels of salt.", "A violet lantern hung over the 7 old bridges.")
_NUMBERS = range(2, 98)
_ROUGH = 2  # words asked for per token wanted: every tokenizer has longer words than that


class PromptMaker:
    """Called with n, a fresh prompt of exactly n tokens: ids, or text for a server `as_text`. `tokenize`
    gives the token ids of a text without special tokens, `untokenize` the text of ids, where that exists.
    `can_avoid_cache`: the server can be told to leave its cache aside.
    """

    def __init__(
        self,
        tokenize: Callable[[str], tuple[int, ...]],
        untokenize: Callable[[tuple[int, ...]], str] | None = None,
        *,
        as_text: bool = False,
        can_avoid_cache: bool = True,
        seed: int | None = None,
    ) -> None:
        self.as_text = as_text
        self.can_avoid_cache = can_avoid_cache
        self._tokenize = tokenize
        self._untokenize = untokenize
        self._random = random.Random(seed)  # noqa: S311 - words, not secrets

    def __call__(self, tokens: int) -> tuple[int, ...] | str:
        return self.text(tokens) if self.as_text else self.ids(tokens)

    def ids(self, tokens: int) -> tuple[int, ...]:
        """Token ids; the first few are this prompt's own, so that it shares no page with another."""
        made = self._tokenize(self._story(tokens))
        if len(made) < tokens:
            raise HarnessError(f"a text of {len(made)} tokens was made where {tokens} were wanted")
        return made[:tokens]

    def text(self, tokens: int) -> str:
        """A text that has exactly so many tokens. Raises HarnessError where none is found: not every cut of
        tokens is a text that is cut the same again."""
        if self._untokenize is None:
            raise HarnessError("this model's tokenizer cannot turn ids into text")
        for _ in range(50):
            text = self._untokenize(self.ids(tokens))
            if len(self._tokenize(text)) == tokens:
                return text
        raise HarnessError(f"no text of exactly {tokens} tokens was found")

    def again(self, prompt: Sequence[int] | str) -> tuple[int, ...] | str:
        """A prompt that another server was asked, in the form that this one takes. Raises HarnessError where
        the ids are no text that is cut into them again."""
        if isinstance(prompt, str) or not self.as_text:
            return prompt if isinstance(prompt, str) else tuple(prompt)
        text = self._untokenize(tuple(prompt)) if self._untokenize else ""
        if self._tokenize(text) != tuple(prompt):
            what = f"a prompt of {len(prompt)} token ids is no text, and this server takes text alone"
            raise HarnessError(what, fix="ask the reference anew: not every cut of tokens can be said")
        return text

    def _story(self, tokens: int) -> str:
        sentences = [f"{uuid.UUID(int=self._random.getrandbits(128)).hex} is the number of this document."]
        words = 0
        while words < tokens * _ROUGH:
            one, other, third = self._random.sample(_WORDS, 3)
            count, price = self._random.choice(_NUMBERS), self._random.choice(_NUMBERS)
            sentences.append(
                f"The {one} keeper sold {count} {other} boxes for {price} coins near the old {third}, "
                f"and counted {count} again."
            )
            words += 16
        return " ".join(sentences)


def maker_for(context: CheckContext) -> PromptMaker:
    """With the tokenizer of the model's directory, else the server's own. A P/D master takes text alone, and
    neither it nor a router (SGLang's drops the request's salt) can leave the nodes' caches aside. Raises
    HarnessError where nobody tells token ids."""
    role = context.servers[-1].role if context.servers else ""
    master = role == "master"
    file = Path(context.model_path) / "tokenizer.json"
    if file.is_file():
        tokenizer = _from_file(file)
        return PromptMaker(
            lambda text: tuple(tokenizer.encode(text, add_special_tokens=False).ids),
            lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False)),
            as_text=master,
            can_avoid_cache=role not in ("master", "router"),
        )

    def ask(text: str) -> tuple[int, ...]:
        with Client(context.base_url) as client:
            ids = context.engine.tokenize(client, text)
        if ids is None:
            raise HarnessError(
                f"no tokenizer: {file} is not there, and this server does not tell token ids",
                cause="only model directories in the Hugging Face form carry one",
                fix="copy the model's tokenizer.json into its directory",
            )
        return ids

    ask("a")
    return PromptMaker(ask)


def tokenizer_problem(folder: Path, *, server_tells: bool) -> str:
    """Why no prompts could be made for the model in this directory; empty where they can, or where it is
    none. `server_tells`: the server tells token ids, where the directory has no tokenizer."""
    file = folder / "tokenizer.json"
    if not is_file(file):
        missing = is_folder(folder) and not server_tells
        return f"its prompts need {file}, which is not there; copy the model's into it" if missing else ""
    try:
        tokenizer = _from_file(file)
    except HarnessError as error:
        return f"{error.what}; copy the model's into its place"
    return (
        ""
        if _tells_apart(tokenizer)
        else f"{file} does not tell texts apart; copy the model's into its place"
    )


def _tells_apart(tokenizer: Any) -> bool:
    try:
        one, other = (tokenizer.encode(text, add_special_tokens=False).ids for text in _SAMPLES)
    except Exception:  # noqa: BLE001 - the library raises nothing narrower
        return False
    return len(one) > 1 < len(other) and one != other


@lru_cache
def _from_file(file: Path) -> Any:
    """Raises HarnessError where it is none."""
    from tokenizers import Tokenizer  # a third of a second that most commands should not pay

    if (size := file.stat().st_size) > MOST_BYTES:
        what = f"the tokenizer {file} has {size >> 20} MiB, and none needs more than {MOST_BYTES >> 20}"
        raise HarnessError(what)
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise HarnessError(f"the tokenizer {file} cannot be read: {error}") from error
