"""Runs the engine on the event loop, in simulated time, and breaks it where a fault says so."""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from harness.simulator.faults import Planted
from harness.simulator.log import Log
from harness.simulator.types import Done, Request, SimulatedEngine, Token

NAP_S = 0.002  # debts of time below this are not slept off at once: sleeping has a grain
BURST_S = 0.01  # the longest that passes may keep the loop from everything else


class Receiver(Protocol):
    """Where the output of one sequence goes."""

    def put(self, item: Token | Done) -> None: ...


class Breaker:
    """The faults that a new request sets off."""

    def __init__(self, planted: Planted, log: Log) -> None:
        self._planted = planted
        self._log = log
        self._fatal_logged = False

    def before_request(self) -> None:
        if self._planted.now("killed"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self._planted.now("fatal-line-while-serving") and not self._fatal_logged:
            self._fatal_logged = True
            default = "RuntimeError: CUDA error: an illegal memory access was encountered"
            self._log.line("ERROR", "model_rpc.py:201", self._planted.to("fatal-line-while-serving", default))


class Pump:
    """`last_token` is the monotonic time of the last token of any request."""

    def __init__(self, engine: SimulatedEngine, planted: Planted, log: Log, speed: float) -> None:
        self.engine = engine
        self.limits = engine.limits
        self.last_token = time.monotonic()
        self.before_request = Breaker(planted, log).before_request
        self._planted = planted
        self._log = log
        self._speed = speed
        self._work = asyncio.Event()
        self._emitted: list[Callable[[], None]] = []

    def add(self, request: Request) -> None:
        self.engine.add(request)
        self._work.set()

    def deliver(self, receiver: "Receiver", item: Token | Done) -> None:
        """Called from inside a pass: the receiver gets it when the time of the pass is over."""
        self.later(partial(receiver.put, item))

    def later(self, action: Callable[[], None]) -> None:
        """Called from inside a pass: done when the time of the pass is over."""
        self._emitted.append(action)

    def abort(self, request: Request) -> None:
        request.aborted = True

    async def run(self) -> None:
        """For ever; ends only by a fault or by being cancelled."""
        due = time.monotonic()
        while True:
            if not self.engine.busy:
                self._work.clear()
                await self._work.wait()
                due = max(due, time.monotonic())
            if self._planted.now("stall") or self._planted.now("router-killed"):
                return
            try:
                due += self._pass() * self._speed
            except Exception as error:  # noqa: BLE001 - as in the real server: logged, and nothing runs any more
                self._log.trace("impl.py:118", "infer loop has error:", error)
                return
            ahead = due - time.monotonic()
            await asyncio.sleep(ahead if ahead > NAP_S else 0)
            self._hand_out()

    def _pass(self) -> float:
        """Passes of the engine that take no real time are done several at once."""
        if self._planted.now("infer-thread-dead"):
            raise RuntimeError("planted failure")
        end = time.monotonic() + BURST_S
        seconds = self.engine.step()
        while not self._speed and self.engine.busy and time.monotonic() < end:
            seconds += self.engine.step()
        return seconds

    def _hand_out(self) -> None:
        for action in self._emitted:
            action()
        self._emitted.clear()
