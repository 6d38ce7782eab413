"""The engine: admits, prefills in chunks, decodes, pauses and recovers, by LightLLM's rules."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.simulator.admission import Admission
from harness.simulator.core_faults import CoreFaults
from harness.simulator.language import Language
from harness.simulator.memory import Memory
from harness.simulator.running import Running
from harness.simulator.speculation import Acceptance
from harness.simulator.types import FinishReason, Limits, Observer, Request

PAUSES_PER_PASS = 2
RECOVER_EVERY = 100  # passes; the status is told as often


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """Simulated seconds. A pass takes `step` plus its parts; a pass that only waits takes `idle`."""

    step: float = 0.008
    prefill_token: float = 40e-6
    decode_request: float = 100e-6
    copied_token: float = 2e-6
    idle: float = 0.001


class Scheduler:
    """Implements `SimulatedEngine`."""

    def __init__(
        self,
        limits: Limits,
        language: Language,
        observer: Observer,
        *,
        faults: CoreFaults | None = None,
        speed: Speed | None = None,
        accept_mean: float | None = None,
    ) -> None:
        """`accept_mean`: tokens per decode step with `mtp_step` drafted ones; about 2.2 of 3 if not given.

        Raises ValueError for limits that do not fit each other.
        """
        if not 1 <= limits.chunked_prefill_size <= limits.batch_max_tokens:
            raise ValueError("chunked_prefill_size must be at least 1 and at most batch_max_tokens")
        self.limits = limits
        self.language = language
        self._observer = observer
        self._faults = faults or CoreFaults()
        self._speed = speed or Speed()
        self._acceptance = Acceptance(limits.mtp_step, accept_mean)
        self._memory = Memory(limits, self._faults)
        self._admission = Admission(limits, self._faults)
        self._waiting: deque[Request] = deque()
        self._running: list[Running] = []
        self._paused: list[Running] = []
        self._passes = 0

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._running or self._paused)

    def add(self, request: Request) -> None:
        """Raises ValueError for an empty prompt or ids that cannot be any."""
        if not request.prompt or min(request.prompt) < 0 or max(request.prompt) >= 2**32:
            raise ValueError(f"request {request.req_id} has no prompt, or ids that no tokenizer gives")
        self._waiting.append(request)

    def step(self) -> float:
        if not self.busy:
            return 0.0
        self._passes += 1
        self._drop_aborted()
        copied = 0
        if self._passes % RECOVER_EVERY == 0:
            copied = self._recover()
            self._report()
        if not self._paused:
            copied += self._admit()
        ready = self._ready()
        if not ready:
            return self._speed.idle
        return self._run(ready) + copied * self._speed.copied_token

    def hold(self, prompt: Sequence[int]) -> tuple[int, Callable[[], None]]:
        """How much of a prompt is in the pool; it stays there until the function is called, once."""
        return self._memory.hold(prompt)

    def load(self) -> tuple[float, float, float]:
        pool = self._memory.pool
        present = self._running + self._paused
        most = sum(each.prompt_length + each.max_new for each in present)
        most += sum(len(each.prompt) + self._admission.max_new(each) for each in self._waiting)
        expected = self._admission.peak(present, self._crowded)
        return pool.used / pool.total, most / pool.total, expected / pool.total

    def _admit(self) -> int:
        """Start waiting requests in order while they fit; the first always starts in an empty engine.
        Returns tokens copied from the CPU tier."""
        copied = chunks = 0
        while self._waiting and len(self._running) < self.limits.running_max_req_size:
            request = self._waiting[0]
            chunks += self._admission.first_chunk(request)
            fits = chunks <= self.limits.batch_max_tokens
            if self._running and not (fits and self._admission.fits(request, self._running, self._crowded)):
                break
            self._waiting.popleft()
            running = Running.of(request, self.language, self._admission.max_new(request))
            copied += self._memory.enter(running)
            self._running.append(running)
        return copied

    @property
    def _crowded(self) -> bool:
        pool = self._memory.pool
        return pool.used / pool.total >= self.limits.router_token_ratio

    def _ready(self) -> list[tuple[Running, int]]:
        """The requests that this pass works on, and the tokens that it computes for each.

        One that needs more than the pool can give waits; at most two of these are paused, and never the
        last one running: two that just fill the pool would recover and pause together for ever.
        """
        available = self._memory.pool.available
        budget = self.limits.batch_max_tokens
        ready: list[tuple[Running, int]] = []
        short: list[Running] = []
        for running in self._running:
            tokens = self._tokens(running)
            cost = 0 if running.decoding or running.lands else tokens
            if cost > budget:
                continue
            room = self._memory.room(running, self._headroom(running, tokens))
            if room > available:
                short.append(running)
                continue
            available -= room
            budget -= cost
            ready.append((running, tokens))
        for running in short[: min(PAUSES_PER_PASS, len(self._running) - 1)]:
            self._pause(running)
        return ready

    def _tokens(self, running: Running) -> int:
        if running.decoding:
            return 1
        most = running.remaining if running.lands else self.limits.chunked_prefill_size
        return min(running.remaining, most)

    def _headroom(self, running: Running, tokens: int) -> int:
        if running.decoding and self.limits.mtp_step:
            return (self.limits.mtp_step + 1) * 2
        return tokens

    def _run(self, ready: list[tuple[Running, int]]) -> float:
        seconds = self._speed.step
        for running, tokens in ready:
            if running.decoding:
                seconds += self._speed.decode_request
                self._decode(running)
            else:
                each = self._speed.copied_token if running.lands else self._speed.prefill_token
                seconds += tokens * each
                self._prefill(running, tokens)
        for running, _ in ready:
            if running.ended is not None:
                self._finish(running, running.ended)
        return seconds

    def _prefill(self, running: Running, tokens: int) -> None:
        self._memory.grow(running, tokens)
        running.computed += tokens
        if running.request.progress is not None:
            running.request.progress(running.computed)
        if running.remaining == 0:
            running.generate()

    def _decode(self, running: Running) -> None:
        """One step: the last token is computed and gives the next; accepted drafted tokens follow."""
        accepted = 0
        if self.limits.mtp_step:
            running.mtp_steps += 1
            running.mtp_verified += self.limits.mtp_step
            if running.accepts:
                accepted = self._acceptance.accepted(running.speech.number + running.generated)
        self._memory.grow(running, 1 + accepted)
        running.computed += 1
        running.generate()
        for _ in range(accepted):
            if running.ended is not None:
                break
            running.computed += 1
            running.mtp_accepted += 1
            running.generate()

    # Pausing

    def _pause(self, running: Running) -> None:
        self._running.remove(running)
        self._memory.leave(running)
        self._paused.append(running)
        self._observer.paused(running.request.req_id)

    def _recover(self) -> int:
        """Resume, in order, each paused request whose whole length fits; it is prefilled again."""
        copied = 0
        promised = 0
        for running in tuple(self._paused):
            if self._faults.loses_paused:
                self._finish(running, "abort")
                continue
            need = self._memory.pool.pages(len(running.ids))
            if need > self._memory.pool.available - promised:
                continue
            copied += self._resume(running)
            promised += self._memory.room(running, running.remaining)
        return copied

    def _resume(self, running: Running) -> int:
        self._paused.remove(running)
        self._running.append(running)
        if self._faults.resume_corrupts:
            running.speech.corrupt(b"resume")
        if self._faults.shortens_paused:
            running.max_new = running.generated + max(1, (running.max_new - running.generated) // 2)
        self._observer.recovered(running.request.req_id)
        return self._memory.enter(running)

    # Ends

    def _drop_aborted(self) -> None:
        for running in (*self._running, *self._paused):
            if running.request.aborted:
                self._finish(running, "abort")
        for request in [each for each in self._waiting if each.aborted]:
            self._waiting.remove(request)
            request.emit(Running.of(request, self.language, 1).done("abort"))
            self._observer.released(request.req_id)

    def _finish(self, running: Running, reason: FinishReason) -> None:
        (self._running if running in self._running else self._paused).remove(running)
        self._memory.end(running)
        self._admission.estimate.update(running.generated)
        running.request.emit(running.done(reason))
        self._observer.released(running.request.req_id)
        if not self._running and not self._paused and not self._memory.holds:
            pool = self._memory.pool
            self._observer.idle(pool.tree.refed, pool.tree.held, pool.free, pool.total)

    def _report(self) -> None:
        pool = self._memory.pool
        self._observer.status(
            len(self._running),
            len(self._waiting),
            len(self._paused),
            pool.used / pool.total,
            self._admission.estimate.tokens,
        )
