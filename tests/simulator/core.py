"""Runs the simulated engine without a server, and remembers what it said."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.simulator.answer_key import AnswerKey
from harness.simulator.core_faults import CoreFaults
from harness.simulator.language import Language
from harness.simulator.scheduler import Scheduler
from harness.simulator.tokenizer import ByteTokenizer
from harness.simulator.types import Done, Limits, Request, Token

TOKENIZER = ByteTokenizer()
MANY_PASSES = 100_000
# The lab's pool for pause and resume: eight requests of 257 + 512 tokens do not fit.
SMALL = Limits(
    max_total_token_num=4096,
    max_req_total_len=3072,
    page_size=16,
    hash_page=128,
    running_max_req_size=8,
    batch_max_tokens=1024,
    chunked_prefill_size=257,
    router_token_ratio=1.0,
)


def prompt(length: int, name: str = "") -> tuple[int, ...]:
    """Exactly this many tokens, starting with the name: another name shares nothing after it."""
    text = f"{name}. " + "There are some more words here to read. " * (length // 40 + 1)
    return TOKENIZER.encode(text, False)[:length]


@dataclass
class Heard:
    """What the observer was told."""

    events: list[tuple[str, int]] = field(default_factory=list)
    idles: list[tuple[int, int, int, int]] = field(default_factory=list)
    statuses: list[tuple[int, int, int, float, int]] = field(default_factory=list)

    def paused(self, req_id: int) -> None:
        self.events.append(("paused", req_id))

    def recovered(self, req_id: int) -> None:
        self.events.append(("recovered", req_id))

    def released(self, req_id: int) -> None:
        self.events.append(("released", req_id))

    def idle(self, refed: int, held: int, free: int, total: int) -> None:
        self.idles.append((refed, held, free, total))

    def status(self, running: int, waiting: int, paused: int, token_ratio: float, ema_out_len: int) -> None:
        self.statuses.append((running, waiting, paused, token_ratio, ema_out_len))

    def of(self, name: str) -> list[int]:
        return [req_id for event, req_id in self.events if event == name]


@dataclass
class Answer:
    tokens: list[Token] = field(default_factory=list)
    end: Done | None = None

    @property
    def ids(self) -> list[int]:
        return [token.id for token in self.tokens]

    @property
    def text(self) -> str:
        return "".join(token.text for token in self.tokens)

    @property
    def done(self) -> Done:
        assert self.end is not None, "the request has not ended"
        return self.end

    def take(self, what: Token | Done) -> None:
        assert self.end is None, "something came after Done"
        if isinstance(what, Done):
            self.end = what
        else:
            self.tokens.append(what)


class Engine:
    """A scheduler and its observer."""

    def __init__(
        self,
        limits: Limits,
        faults: CoreFaults | None = None,
        *,
        answers: AnswerKey | None = None,
        kv_type: str = "None",
        accept_mean: float | None = None,
    ) -> None:
        self.heard = Heard()
        self.scheduler = Scheduler(
            limits,
            Language(TOKENIZER, answers, kv_type=kv_type),
            self.heard,
            faults=faults,
            accept_mean=accept_mean,
        )
        self._next_id = 0

    @property
    def pool(self):  # type: ignore[no-untyped-def]
        return self.scheduler._memory.pool

    def add(
        self, ids: Sequence[int], max_new: int = 32, *, exactly: bool = True, **more: object
    ) -> tuple[Request, Answer]:
        """`exactly`: neither more nor fewer tokens, by min_new_tokens, as the pause check asks."""
        answer = Answer()
        request = Request(
            req_id=self._next_id,
            prompt=tuple(ids),
            max_new_tokens=max_new,
            emit=answer.take,
            min_new_tokens=max_new if exactly else 1,
            **more,  # type: ignore[arg-type]
        )
        self._next_id += 1
        self.scheduler.add(request)
        return request, answer

    def drain(self) -> float:
        seconds = 0.0
        for _ in range(MANY_PASSES):
            if not self.scheduler.busy:
                return seconds
            seconds += self.scheduler.step()
            self.check()
        raise AssertionError("the engine does not come to an end")

    def check(self) -> None:
        pool = self.pool
        running = self.scheduler._running
        assert min(pool.free, pool.owned, pool.tree.held, pool.tree.refed, pool.tree.evictable) >= 0
        assert pool.free + pool.owned + pool.tree.held == pool.total
        assert pool.owned == sum(each.owned for each in running)
        assert len(running) <= self.scheduler.limits.running_max_req_size

    def ask(self, ids: Sequence[int], max_new: int = 32, **more: object) -> Answer:
        """One request alone."""
        answer = self.add(ids, max_new, **more)[1]  # type: ignore[arg-type]
        self.drain()
        return answer

    def together(self, prompts: Sequence[Sequence[int]], max_new: int = 32) -> list[Answer]:
        answers = [self.add(ids, max_new)[1] for ids in prompts]
        self.drain()
        return answers

    def expect_outputs_of(self, tokens: int) -> None:
        """Set the output-length estimate."""
        self.scheduler._admission.estimate.tokens = tokens
