"""What LightLLM's HTTP server does with one prompt: log it, count it, hand it to the engine, log its end."""

import asyncio
import itertools
import random
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from harness.simulator.answer import Answer, Distortion, Sequence
from harness.simulator.faults import Planted
from harness.simulator.log import Log
from harness.simulator.metrics import Metrics
from harness.simulator.pump import Receiver
from harness.simulator.request_lines import Timing, done_line, header
from harness.simulator.sampling import Sampling
from harness.simulator.start_args import longest_request
from harness.simulator.tokenizer import Tokenizer
from harness.simulator.types import Done, Limits, Request, Token

ID_STEP = 8  # the sequences of a request have the ids in between
CHARACTERS_PER_TOKEN = 8  # a text longer than this many per token of the limit is refused unread


class ServerBusy(Exception):
    """429."""


@dataclass(kw_only=True, slots=True, eq=False)
class Group:
    """One prompt on its way: its sequences have the request ids from `req_id` on."""

    req_id: int
    prompt: tuple[int, ...]
    faults: tuple[str, ...]  # that strike its answers
    max_new_tokens: int
    headers: Mapping[str, str]
    timing: Timing = field(default_factory=Timing)
    sequences: list[Sequence] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)


class Backend(Protocol):
    """What computes: the engine behind its pump, or the nodes of a master. `last_token`: monotonic time."""

    limits: Limits
    last_token: float

    def before_request(self) -> None: ...
    def add(self, request: Request) -> None: ...
    def deliver(self, receiver: Receiver, item: Token | Done) -> None: ...
    def abort(self, request: Request) -> None: ...


class Service:
    """Everything between HTTP and the engine. Lives on one event loop. `ids` are the numbers of requests."""

    def __init__(
        self,
        args: Mapping[str, Any],
        pump: Backend,
        tokenizer: Tokenizer,
        planted: Planted,
        log: Log,
        seed: int,
        ids: Iterator[int] | None = None,
    ) -> None:
        self.args = args
        self.tokenizer = tokenizer
        self.planted = planted
        self.metrics = Metrics()
        self.longest = longest_request(pump.limits)
        self.pump = pump
        self._log = log
        self._distortion = Distortion(planted, tokenizer)
        self._ids = ids or itertools.count(ID_STEP, ID_STEP)
        self._random = random.Random(seed)  # noqa: S311 - sampling

    def count(self, text: str, *, add_special_tokens: bool = True) -> int:
        return len(self.tokenizer.encode(text, add_special_tokens))

    async def complete(
        self, prompt: str | list[int], sampling: Sampling, headers: Mapping[str, str]
    ) -> tuple[Group, list[Answer]]:
        """All sequences, whole. Raises ValueError for a prompt that cannot be served, ServerBusy."""
        group = self._admit(prompt, sampling, headers)
        try:
            answers = [await self._whole(group, sequence) for sequence in group.sequences]
        except asyncio.CancelledError:
            self._abort(group)
            raise
        self._finish(group, answers)
        return group, answers

    async def stream(
        self, prompt: str | list[int], sampling: Sampling, headers: Mapping[str, str]
    ) -> tuple[Group, AsyncGenerator[Token | Done, None]]:
        """One sequence as it comes. Raises as `complete` does, before the first token."""
        group = self._admit(prompt, sampling, headers)
        return group, self._items(group)

    async def _items(self, group: Group) -> AsyncGenerator[Token | Done, None]:
        sequence, sent = group.sequences[0], 0
        try:
            if group.faults:
                answer = await self._whole(group, sequence)
                for token in answer.tokens:
                    yield token
                self._finish(group, [answer])
                yield answer.done
                return
            while True:
                await sequence.news.wait()
                sequence.news.clear()
                if sequence.error is not None:
                    raise sequence.error
                for token in sequence.tokens[sent:]:
                    sent += 1
                    yield token
                if sequence.done is not None and sent == len(sequence.tokens):
                    break
        except (asyncio.CancelledError, GeneratorExit):
            self._abort(group)
            raise
        self._finish(group, [Answer.of(sequence.tokens, sequence.done)])
        yield sequence.done

    def _admit(self, prompt: str | list[int], sampling: Sampling, headers: Mapping[str, str]) -> Group:
        req_id = next(self._ids)
        self.planted.requests += 1
        self.pump.before_request()
        self.metrics.count += 1
        key = prompt if isinstance(prompt, str) else repr(prompt)
        group = Group(
            req_id=req_id,
            prompt=(),
            faults=self._distortion.aimed(key),
            max_new_tokens=sampling.max_new_tokens,
            headers=headers,
        )
        self._log.line("INFO", "manager.py:538", f"received req {header(req_id, headers, group.timing)} ")
        if self.planted.strikes("busy-429", str(self.planted.requests)):
            raise ServerBusy("server is busy, please try again later.")
        if self.planted.strikes("error-500", str(self.planted.requests)):
            raise RuntimeError("planted failure")
        group.prompt = self._encode(prompt, sampling)
        self._fit(group)
        factor = self.planted.factor("cut-answers", 4) if self.planted.strikes("cut-answers", key) else 1
        most = max(1, int(group.max_new_tokens / factor))
        for index in range(sampling.n):
            self._start(group, index, most, sampling)
        return group

    def _encode(self, prompt: str | list[int], sampling: Sampling) -> tuple[int, ...]:
        if isinstance(prompt, str):
            if len(prompt) > self.args["max_req_total_len"] * CHARACTERS_PER_TOKEN:
                raise ValueError(
                    f"prompt text length {len(prompt)} is too long for max_req_total_len "
                    f"{self.args['max_req_total_len']}"
                )
            ids = self.tokenizer.encode(prompt, sampling.add_special_tokens)
        else:
            ids = tuple(prompt)
            if any(not isinstance(one, int) for one in ids):
                raise TypeError("prompt token ids must be integers")
            if any(not 0 <= one < self.tokenizer.vocab_size for one in ids):
                raise ValueError(f"a prompt token id is outside 0..{self.tokenizer.vocab_size - 1}")
        if not ids:
            raise ValueError("prompt is empty")
        return ids

    def _fit(self, group: Group) -> None:
        length = len(group.prompt)
        if length >= self.longest:
            raise ValueError(f"the input prompt token len {length} is too long, the limit is {self.longest}")
        if length + group.max_new_tokens > self.longest:
            room = self.longest - length
            self._log.line(
                "DEBUG",
                "manager.py:612",
                f"the input prompt token len {length} + max_new_tokens{group.max_new_tokens} > "
                f"{self.longest},so change max_new_tokens to {room}",
            )
            group.max_new_tokens = room

    def _start(self, group: Group, index: int, max_new_tokens: int, sampling: Sampling) -> None:
        sequence = Sequence(on_token=lambda: self._token(group))
        request = Request(
            req_id=group.req_id + index,
            prompt=group.prompt,
            max_new_tokens=max_new_tokens,
            emit=lambda item: self.pump.deliver(sequence, item),
            fail=sequence.fail,
            min_new_tokens=min(sampling.min_new_tokens, max_new_tokens),
            ignore_eos=sampling.ignore_eos,
            stop=sampling.stop,
            seed=self._salt(sampling, index),
            use_cache=sampling.use_cache and not self.args["disable_dynamic_prompt_cache"],
        )
        group.sequences.append(sequence)
        group.requests.append(request)
        if not index:
            self._to_router(group)
        self.pump.add(request)

    def _to_router(self, group: Group) -> None:
        cost = time.time() - group.timing.start
        text = f"router recive req id {group.req_id} cost time {cost:.6f} s"
        self._log.line("INFO", "manager.py:402", text)

    def _salt(self, sampling: Sampling, index: int) -> int:
        if sampling.greedy:
            return 0
        seed = sampling.seed if sampling.seed is not None else self._random.getrandbits(31)
        return 1 + (seed + index) % 2**31

    def _token(self, group: Group) -> None:
        group.timing.token()
        self.pump.last_token = time.monotonic()

    async def _whole(self, group: Group, sequence: Sequence) -> Answer:
        while sequence.done is None:
            await sequence.news.wait()
            sequence.news.clear()
            if sequence.error is not None:
                raise sequence.error
        answer = Answer.of(sequence.tokens, sequence.done)
        if not group.faults:
            return answer
        most = max(request.max_new_tokens for request in group.requests)
        return await self._distortion.apply(answer, group.faults, most)

    def _abort(self, group: Group) -> None:
        for request in group.requests:
            self.pump.abort(request)
        self.metrics.failure += 1
        self._log.line("WARNING", "manager.py:690", f"aborted group_request_id {group.req_id}")

    def _finish(self, group: Group, answers: list[Answer]) -> None:
        done = answers[0].done
        out = sum(answer.done.generated for answer in answers)
        self.metrics.add(len(group.prompt), out, done)
        self._log.line("INFO", "manager.py:745", self._done_line(group, out, done))
        self._log.line("DEBUG", "manager.py:771", f"httpserver release req_id {group.req_id}, index 0")

    def _done_line(self, group: Group, out: int, done: Done) -> str:
        front = header(group.req_id, group.headers, group.timing)
        return done_line(front, len(group.prompt), out, done, group.timing, self.args["mtp_step"])
