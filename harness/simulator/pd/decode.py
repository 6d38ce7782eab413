"""The decode node: looks what it holds of a prompt, awaits the rest, and computes on from what arrived."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial

from harness.simulator.pd.asked import Asked, NodeParts
from harness.simulator.pd.lines import Piece
from harness.simulator.pd.link import Message
from harness.simulator.pd.receiver import Landing, Receiver
from harness.simulator.types import Arrived, Done, Request, Token

TRANSFER_S = 66.0  # without a piece


class Decode:
    """`handle` is given what the master says; `say` answers it. Implements `receiver.Landings`."""

    def __init__(self, parts: NodeParts, receiver: Receiver, say: Callable[..., None], end_id: int) -> None:
        """`end_id`: the token with which a request ends that failed."""
        self._parts = parts
        self._receiver = receiver
        self._say = say
        self._end_id = end_id
        self._landing: dict[int, _Landing] = {}
        self._running: dict[int, Asked] = {}

    def handle(self, message: Message) -> None:
        if message.kind == "plan":
            self._plan(Asked.of(message.fields), message["prefill"])
        elif message.kind == "abort":
            self._abort(message["req_id"])

    def find(self, request_id: int) -> Landing | None:
        return self._landing.get(request_id)

    def lost(self, agent: str) -> None:
        for landing in [each for each in self._landing.values() if each.prefill == agent]:
            landing.lost(f"connection to {agent} is lost")

    def _plan(self, asked: Asked, prefill: str) -> None:
        try:
            self._parts.accept(asked)
        except ValueError as error:
            self._say("failed", req_id=asked.req_id, error=str(error))
            return
        held, release = self._parts.engine.hold(asked.prompt)
        ready = held if self._parts.use_cache else 0
        if self._parts.planted.strikes("pd-no-transfer", asked.key):
            ready = len(asked.prompt) - 1
        where = {"host": self._receiver.host, "port": self._receiver.port, "agent": self._parts.agent}
        self._say("upkv", req_id=asked.req_id, params={**where, "ready": ready})
        if ready == len(asked.prompt) - 1:
            self._start(asked, None, 0, release)
        else:
            self._landing[asked.req_id] = _Landing(self, asked, prefill, release)

    def _start(self, asked: Asked, arrived: Arrived | None, cached: int, release: Callable[[], None]) -> None:
        """`cached`: prompt tokens that the other node had; this node's own count for what did not arrive."""
        held = [release]

        def emit(item: Token | Done) -> None:
            while held:  # the request itself uses what was held for it by now
                held.pop()()
            self._parts.pump.later(partial(self._heard, asked, item, cached if arrived else None))

        room = self._parts.longest - len(asked.prompt)
        options = {**asked.options, "max_new_tokens": min(asked.options["max_new_tokens"], room)}
        options["min_new_tokens"] = min(options["min_new_tokens"], options["max_new_tokens"])
        asked.request = Request(
            req_id=asked.req_id,
            prompt=asked.prompt,
            emit=emit,
            arrived=arrived,
            use_cache=self._parts.use_cache,
            **options,
        )
        self._running[asked.req_id] = asked
        self._parts.pump.add(asked.request)

    def _heard(self, asked: Asked, item: Token | Done, cached: int | None) -> None:
        if isinstance(item, Token):
            asked.timing.token()
            self._parts.pump.last_token = time.monotonic()
            told = item if cached is None else replace(item, prompt_cached=cached)
            self._say("token", req_id=asked.req_id, token=asdict(told))
            return
        self._running.pop(asked.req_id, None)
        self._parts.finish(asked, item)
        end = item if cached is None else replace(item, gpu_cached=cached, cpu_cached=0)
        self._say("done", req_id=asked.req_id, done=asdict(end))

    def _abort(self, req_id: int) -> None:
        if (landing := self._landing.pop(req_id, None)) is not None:
            landing.drop()
        elif (asked := self._running.get(req_id)) is not None and asked.request is not None:
            asked.request.aborted = True

    # Of the landings

    def landed(self, landing: "_Landing", arrived: Arrived, cached: int) -> None:
        del self._landing[landing.asked.req_id]
        self._start(landing.asked, arrived, cached, landing.release)

    def failed(self, landing: "_Landing") -> None:
        """The client gets an answer that ends in an error, with one token that is none."""
        req_id = landing.asked.req_id
        if self._landing.pop(req_id, None) is None:
            return
        landing.release()
        text = f"req_id: {req_id} forced to finished (reason=error), kv transfer error"
        self._parts.log.line("ERROR", "infer_batch.py:402", text)
        self._parts.metrics.failure += 1
        token = Token(
            id=self._end_id,
            text="",
            logprob=0.0,
            special=True,
            index=1,
            prompt_cached=0,
            mtp_accepted=0,
            mtp_verified=0,
        )
        done = Done(
            reason="error",
            generated=1,
            gpu_cached=0,
            cpu_cached=0,
            disk_cached=0,
            mtp_steps=0,
            mtp_accepted=0,
        )
        self._say("token", req_id=req_id, token=asdict(token))
        self._say("done", req_id=req_id, done=asdict(done))

    @property
    def parts(self) -> NodeParts:
        return self._parts


class _Landing:
    """One request whose KV is on its way."""

    def __init__(self, node: Decode, asked: Asked, prefill: str, release: Callable[[], None]) -> None:
        self.asked = asked
        self.prefill = prefill
        self.release = release
        self._node = node
        self._ids = list(asked.prompt)  # what never comes is computed here, without a word
        self._state: bytes | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._wait()

    def take(self, piece: Piece, payload: bytes, token: tuple[int, float, int] | None) -> None:
        language = self._node.parts.engine.language
        if piece.kind == "kv":
            ids = language.ids_of(payload)
            if len(ids) != piece.last - piece.first or piece.last > len(self._ids):
                raise ValueError(f"kv of {len(ids)} tokens for [{piece.first},{piece.last})")
            self._ids[piece.first : piece.last] = ids
        else:
            self._state = payload
        self._wait()
        if token is not None:
            self._unset()
            intact = not self._node.parts.hybrid or self._state == language.state(self._ids)
            arrived = Arrived(ids=tuple(self._ids), intact=intact, first=token[:2])
            self._node.landed(self, arrived, token[2])

    def lost(self, error: str) -> None:
        del error  # the transfer's own line tells it
        self._unset()
        self._node.failed(self)

    def drop(self) -> None:
        """Nobody waits for it any more."""
        self._unset()
        self.release()

    def _wait(self) -> None:
        self._unset()
        seconds = TRANSFER_S * self._node.parts.patience
        self._alarm = asyncio.get_running_loop().call_later(seconds, self.lost, "time out")

    def _unset(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
