"""One sequence on its way out, and what planted faults do to it."""

import asyncio
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from harness.simulator.faults import Planted
from harness.simulator.tokenizer import Tokenizer
from harness.simulator.types import Done, Token

_FINAL_NUMBER = re.compile(r"(?<=####)(\s*)(-?\d[\d,]*)")
SWAP_WAIT_S = 0.5
LOOP = 8  # words of a degenerate answer


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished sequence. `text` is None only by a fault."""

    tokens: tuple[Token, ...]
    done: Done
    text: str | None

    @classmethod
    def of(cls, tokens: Iterable[Token], done: Done) -> "Answer":
        tokens = tuple(tokens)
        return cls(tokens, done, "".join(token.text for token in tokens))


@dataclass(slots=True, eq=False)
class Sequence:
    """What the engine emits for one sequence, in order; `news` is set whenever there is more."""

    on_token: Callable[[], None]
    tokens: list[Token] = field(default_factory=list)
    done: Done | None = None
    error: Exception | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def fail(self, error: Exception) -> None:
        """No more of it comes, and what came is no answer."""
        self.error = error
        self.news.set()

    def put(self, item: Token | Done) -> None:
        if isinstance(item, Done):
            self.done = item
        else:
            self.tokens.append(item)
            self.on_token()
        self.news.set()


class Distortion:
    """Applies the planted faults of finished answers."""

    NAMES = (
        "null-text",
        "empty-text",
        "zero-tokens",
        "swapped-answers",
        "half-right-after",
        "repeat-answers",
    )

    def __init__(self, planted: Planted, tokenizer: Tokenizer) -> None:
        self._planted = planted
        self._tokenizer = tokenizer
        self._waiting: tuple[Answer, asyncio.Future[Answer]] | None = None

    def aimed(self, key: str) -> tuple[str, ...]:
        """The faults that will strike the answer to this prompt, which has just come."""
        return tuple(
            name
            for name in self.NAMES
            if self._planted.strikes(name, key)
            and (name != "half-right-after" or self._planted.coin(name, key))
        )

    async def apply(self, answer: Answer, hit: tuple[str, ...], max_new_tokens: int) -> Answer:
        if "swapped-answers" in hit:
            answer = await self._swap(answer)
        if "half-right-after" in hit:
            answer = self._misjudged(answer)
        if "repeat-answers" in hit:
            answer = _repeated(answer, max_new_tokens)
        if "zero-tokens" in hit:
            answer = Answer((), replace(answer.done, reason="stop", generated=0), "")
        if "empty-text" in hit:
            answer = Answer(tuple(replace(token, text="") for token in answer.tokens), answer.done, "")
        if "null-text" in hit:
            answer = replace(answer, text=None)
        return answer

    async def _swap(self, mine: Answer) -> Answer:
        """Somebody else's answer, if another request ends at about the same time."""
        if self._waiting is not None:
            theirs, partner = self._waiting
            self._waiting = None
            if not partner.done():
                partner.set_result(mine)
                return theirs
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting = (mine, future)
        try:
            return await asyncio.wait_for(future, SWAP_WAIT_S)
        except TimeoutError:
            return mine
        finally:
            if self._waiting is not None and self._waiting[1] is future:
                self._waiting = None

    def _misjudged(self, answer: Answer) -> Answer:
        text = _FINAL_NUMBER.sub(lambda found: f"{found[1]}{_another(found[2])}", answer.text or "")
        ids = self._tokenizer.encode(text, False)
        stream, like = self._tokenizer.stream(), answer.tokens[0]
        tokens = [
            replace(like, id=one, text=stream.push(one), special=False, index=index)
            for index, one in enumerate(ids, 1)
        ]
        return Answer(tuple(tokens), replace(answer.done, generated=len(tokens)), text)


def _another(number: str) -> str:
    return str(int(number.replace(",", "")) + 7)


def _repeated(answer: Answer, max_new_tokens: int) -> Answer:
    """To the limit, instead of an end of its own. What another fault did to it stays: an answer that was cut
    or given up is as short as before, and what was damaged says something else, over and over."""
    tokens, ended = answer.tokens, answer.done.reason == "stop"
    damaged = next((at for at, token in enumerate(tokens) if token.damaged), len(tokens))
    sound, broken = tokens[:damaged][:LOOP], tokens[damaged:][:LOOP]
    size = max_new_tokens if ended else len(tokens)
    if not broken:
        damaged = size
    looped = [
        sound[at % len(sound)] if at < damaged else broken[(at - damaged) % len(broken)] for at in range(size)
    ]
    tokens = tuple(replace(token, index=at) for at, token in enumerate(looped, 1))
    reason = "length" if ended else answer.done.reason
    return Answer.of(tokens, replace(answer.done, reason=reason, generated=len(tokens)))
