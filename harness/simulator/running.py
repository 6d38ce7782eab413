"""A request in the engine: what is computed of it, what it owns, and how it produces its tokens."""

from array import array
from dataclasses import dataclass, field

from harness.simulator.cache import Node
from harness.simulator.language import Language, Speech
from harness.simulator.tokenizer import TextStream
from harness.simulator.types import Done, FinishReason, Request, Token


@dataclass(kw_only=True, slots=True, eq=False)
class Running:
    """`ids` are prompt and output; the first `computed` of them are in the pool: `shared` in the prefix
    tree, below `node`, and the rest in the `owned` tokens. All but the last id are computed while decoding.
    """

    request: Request
    speech: Speech
    stream: TextStream
    ids: "array[int]"
    eos: int
    special: frozenset[int]
    max_new: int
    computed: int = 0
    shared: int = 0
    owned: int = 0
    node: Node | None = None
    generated: int = 0
    gpu_cached: int = 0
    cpu_cached: int = 0
    cpu_copied: int = 0
    mtp_steps: int = 0
    mtp_verified: int = 0
    mtp_accepted: int = 0
    accepts: bool = True
    ended: FinishReason | None = None
    _tail: str = field(default="")

    @classmethod
    def of(cls, request: Request, language: Language, max_new: int) -> "Running":
        arrived = request.arrived
        speech = language.begin(arrived.ids if arrived else request.prompt, request.seed)
        if arrived and not arrived.intact:
            speech.corrupt(b"state")
        return cls(
            request=request,
            speech=speech,
            stream=language.tokenizer.stream(),
            ids=array("I", request.prompt),
            eos=language.tokenizer.eos_id,
            special=language.tokenizer.special_ids,
            max_new=max_new,
        )

    @property
    def prompt_length(self) -> int:
        return len(self.request.prompt)

    @property
    def remaining(self) -> int:
        """Ids that are known and not computed yet."""
        return len(self.ids) - self.computed

    @property
    def decoding(self) -> bool:
        return self.generated > 0 and len(self.ids) - self.computed == 1

    @property
    def lands(self) -> bool:
        """Its prompt is not to be computed here: another node did."""
        return self.request.arrived is not None and not self.generated

    @property
    def cached(self) -> int:
        return self.gpu_cached + self.cpu_cached

    def key(self, tokens: int) -> bytes:
        return self.ids[:tokens].tobytes()

    def generate(self) -> None:
        """The next token. Sets `ended` when it is the last."""
        request = self.request
        index = self.generated + 1
        may_stop = not request.ignore_eos and index >= request.min_new_tokens
        token, logprob = self.speech.next(may_stop)
        if self.lands and request.arrived:
            token, logprob = request.arrived.first
        self.ids.append(token)
        self.generated = index
        is_end = may_stop and token == self.eos
        last = is_end or index >= self.max_new
        text = "" if is_end else self.stream.push_last(token) if last else self.stream.push(token)
        if is_end or (request.stop and self._stops(text)):
            self.ended = "stop"
        elif last:
            self.ended = "length"
        request.emit(
            Token(
                id=token,
                text=text,
                logprob=logprob,
                special=token in self.special or token == self.eos,
                index=index,
                prompt_cached=self.cached,
                mtp_accepted=self.mtp_accepted,
                mtp_verified=self.mtp_verified,
                damaged=self.speech.damaged,
            )
        )

    def _stops(self, text: str) -> bool:
        """Whether a stop sequence ends in this piece of text. It stays in the output."""
        self._tail += text
        longest = max(map(len, self.request.stop))
        found = any(stop and stop in self._tail for stop in self.request.stop)
        self._tail = self._tail[-longest:]
        return found

    def done(self, reason: FinishReason) -> Done:
        return Done(
            reason=reason,
            generated=self.generated,
            gpu_cached=self.gpu_cached,
            cpu_cached=self.cpu_cached,
            cpu_copied=self.cpu_copied,
            disk_cached=0,
            mtp_steps=self.mtp_steps,
            mtp_accepted=self.mtp_accepted,
        )
