"""The evidence of a functional check: every request with its answer, in the order asked.

`exchanges.jsonl` has one line per request, `marks.jsonl` one per moment that a check wants to find again (a
line of each log, and the server's counters then), `facts.json` what each server's log said since the first
mark. Judges read these and nothing else.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from harness.engines.base import AcceptCounters, CachedTokens, LogFacts, RequestFacts
from harness.errors import HarnessError
from harness.evidence.files import open_regular, read_bytes
from harness.findings import Code
from harness.scenario.model import Scalar

EXCHANGES, MARKS, FACTS = "exchanges.jsonl", "marks.jsonl", "facts.json"
SKIPPED = "skipped"  # name of the note that says why the check cannot be made of this server


class Line(BaseModel):
    """Base of evidence lines."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


LARGEST = 2**31  # of token ids and counts: whatever reaches it is no such number
Count = Annotated[int, Field(ge=0, lt=LARGEST)]
Told = TypeVar("Told", CachedTokens, AcceptCounters)


def _counts(told: Told) -> Told:
    """Accepted tokens below 0 can be told, and are judged: a release that miscounts speculates wrongly."""
    lowest = 0 if isinstance(told, CachedTokens) else -LARGEST
    found = asdict(told).items()
    wrong = [name for name, value in found if value is not None and not lowest <= value < LARGEST]
    if wrong:
        raise ValueError(f"{', '.join(wrong)}: no count")
    return told


class Exchange(Line):
    """One request and its answer. `leg` is the part of the check (`cold`, `warm`, `control`), `case` what is
    compared across legs (`2304`). `prompt` are token ids, or text where the server takes no ids. An `error`
    is set where there was no sound answer; then the answer's fields are empty. Times in seconds; `started_s`
    since the check began."""

    seq: int
    leg: str
    case: str
    request_id: str
    prompt: list[int] | str
    asked_tokens: int
    max_tokens: int
    min_tokens: int = 0
    use_cache: bool = True
    started_s: float
    latency_s: float = Field(0.0, ge=0)
    first_token_s: float | None = None
    error: str | None = None
    text: str = ""
    ids: list[Count] = Field(default_factory=list)
    logprobs: list[float] = Field(default_factory=list)
    finish_reason: str = ""
    prompt_tokens: Count = 0
    completion_tokens: Count = 0
    cached: Annotated[CachedTokens, AfterValidator(_counts)] = CachedTokens()
    accept: Annotated[AcceptCounters, AfterValidator(_counts)] | None = None
    pauses: Count | None = None

    @property
    def where(self) -> str:
        return f"{EXCHANGES}:{self.seq + 1} (request {self.request_id})"


class Mark(Line):
    """A moment: the last line of each server's log by role, and the entry server's counters."""

    label: str
    at_s: float
    lines: dict[str, int]
    counters: dict[str, float]


class Facts(Line):
    """What is known of the servers besides their answers, by role."""

    log: dict[str, LogFacts] = Field(default_factory=dict)
    config: dict[str, dict[str, Scalar | None]] = Field(default_factory=dict)
    notes: dict[str, Scalar | None] = Field(default_factory=dict)  # what the check computed before it asked


@dataclass(frozen=True, slots=True)
class Evidence:
    """All of a check's folder."""

    exchanges: tuple[Exchange, ...]
    marks: Mapping[str, Mark]
    facts: Facts

    def leg(self, leg: str) -> dict[str, Exchange]:
        """By case; of a case that was asked twice in one leg, the last."""
        return {exchange.case: exchange for exchange in self.exchanges if exchange.leg == leg}

    def told(self, exchange: Exchange, role: str | None = None) -> RequestFacts:
        """What the log says of this request; empty where it says nothing. `role` names the server."""
        logs = [self.facts.log[role]] if role in self.facts.log else self.facts.log.values()
        found = (log.requests.get(exchange.request_id) for log in logs)
        return next((facts for facts in found if facts is not None), RequestFacts())

    def cached(self, exchange: Exchange) -> CachedTokens:
        """By tier where the log or the answer tells; the answer's total stands."""
        told, answered = self.told(exchange).cached, exchange.cached
        return CachedTokens(
            total=answered.total if answered.total is not None else told.total,
            device=answered.device if answered.device is not None else told.device,
            host=answered.host if answered.host is not None else told.host,
            storage=answered.storage if answered.storage is not None else told.storage,
        )

    def most_cached(self, exchange: Exchange) -> int | None:
        """The most that the answer or the log tells, of all tiers or of one; None where neither tells."""
        both = (exchange.cached, self.told(exchange).cached)
        told = [size for one in both for size in (one.total, one.device, one.host, one.storage)]
        return max((size for size in told if size is not None), default=None)


def load_evidence(folder: Path) -> Evidence:
    """Raises HarnessError (EVIDENCE_MISSING) when a file is not there or broken."""
    try:
        exchanges = tuple(Exchange.model_validate_json(line) for line in _lines(folder / EXCHANGES))
        marks = [Mark.model_validate_json(line) for line in _lines(folder / MARKS)]
        facts = Facts.model_validate_json(read_bytes(folder / FACTS))
        _in_order(marks)
    except (OSError, ValueError, ValidationError) as error:
        raise HarnessError(
            f"the check's own evidence is missing or broken: {str(error).splitlines()[0]}",
            cause="the check was cut short, or a file was changed",
            evidence=str(folder),
            code=Code.EVIDENCE_MISSING,
        ) from error
    return Evidence(exchanges, {mark.label: mark for mark in marks}, facts)


def _in_order(marks: list[Mark]) -> None:
    """Raises ValueError where moments are told twice, or the log's lines went backwards: what happened
    between two of them cannot be told then."""
    if len({mark.label for mark in marks}) != len(marks):
        raise ValueError(f"{MARKS} has a moment twice")
    for before, after in pairwise(marks):
        if before.lines.keys() != after.lines.keys() or any(
            line > after.lines[role] for role, line in before.lines.items()
        ):
            raise ValueError(f"{MARKS}: the logs' lines go back from {before.label!r} to {after.label!r}")


def _lines(path: Path) -> Iterator[bytes]:
    with open_regular(path) as file:
        yield from file
