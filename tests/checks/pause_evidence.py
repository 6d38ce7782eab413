"""Hand-made evidence of `pause-resume`: what a sound run of it leaves, to be spoilt by a test."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from harness.checks.exchange import EXCHANGES, FACTS, MARKS, Exchange, Facts, Mark
from harness.checks.pause_proof import AFTER, BEFORE, SERIAL, STRESS, as_notes
from harness.checks.pause_resume import (
    END,
    SHORT,
    SHORT_OUTPUT,
    SHORT_PROMPT,
    PauseResumeParams,
)
from harness.engines import ENGINES
from harness.engines.base import CachedTokens, LogFacts, Pausing, RequestFacts
from harness.scenario.model import Scalar

PARAMS = PauseResumeParams(input_tokens=10, output_tokens=6, concurrency=4, reference="large")
CONTROL_PARAMS = PARAMS.model_copy(update={"reference": None, "expect": "none"})
CAPACITY, ROLE, COUNTER = 40, "normal", "n"
START_LINE, END_LINE = 100, 200  # of the log, when the long requests began and had all been answered


@dataclass
class Evidence:
    """Of one lane. `requests` is what the log says of the long requests by case, `told` of the whole log."""

    exchanges: list[Exchange]
    requests: dict[str, RequestFacts]
    pausing: Pausing
    notes: dict[str, Scalar | None] = field(default_factory=dict)
    pool_lost: int | None = 0
    estimate: int | None = 3
    pauses: tuple[int, ...] = ()
    counted: tuple[float, float] | None = None

    def change(self, leg: str, case: str, **values: Any) -> None:
        """Replace fields of one answer."""
        for at, exchange in enumerate(self.exchanges):
            if (exchange.leg, exchange.case) == (leg, case):
                self.exchanges[at] = exchange.model_copy(update=values)

    def change_all(self, leg: str, **values: Any) -> None:
        for exchange in list(self.exchanges):
            if exchange.leg == leg:
                self.change(leg, exchange.case, **values)

    def log(self, case: str, *, paused: tuple[int, ...], recovered: tuple[int, ...]) -> None:
        self.requests[case] = replace(self.requests[case], paused=paused, recovered=recovered)

    def never_paused(self) -> None:
        for case in self.requests:
            self.log(case, paused=(), recovered=())

    def write(self, folder: Path) -> Path:
        """The check's folder in a lane's."""
        folder.mkdir(parents=True)
        counters = self.counted or ()
        marks = [
            Mark(
                label=label, at_s=1.0, lines={ROLE: line}, counters=dict(zip([COUNTER], values, strict=False))
            )
            for label, line, values in (
                (BEFORE, START_LINE, counters[:1]),
                (AFTER, END_LINE, counters[1:]),
                (END, 300, counters[1:]),
            )
        ]
        if self.counted is not None:
            marks = [mark.model_copy(update={"counters": mark.counters | {"other": 1.0}}) for mark in marks]
        told = LogFacts(
            requests={f"long-{case}": facts for case, facts in self.requests.items()}
            | {f"alone-{case}": RequestFacts(line=250) for case in self.requests},
            pauses=self.pauses,
            pool_lost=self.pool_lost,
            output_estimate=self.estimate,
        )
        notes = {**as_notes(self.pausing), "role": ROLE, "kv_tokens": CAPACITY, **self.notes}
        _write(folder / EXCHANGES, self.exchanges)
        _write(folder / MARKS, marks)
        _write(folder / FACTS, [Facts(log={ROLE: told}, notes=notes)])
        return folder


def lightllm(*, paused: bool = True) -> Evidence:
    """Two of four requests paused, one of them twice."""
    made = _answers(Pausing(word="pause", logs_requests=True, estimates=True, hint="look here"))
    made.notes["output_estimate"] = 3
    if paused:
        made.log("1", paused=(120,), recovered=(130,))
        made.log("3", paused=(121, 140), recovered=(131, 150))
    return made


def counting(engine: str = "", *, paused: bool = True) -> Evidence:
    """An engine whose log names no request; `engine` takes its own words."""
    pausing = ENGINES[engine].pausing if engine else Pausing(word="preemption", counter=COUNTER)
    assert pausing is not None
    made = _answers(replace(pausing, counter=COUNTER))
    made.counted = (2, 5) if paused else (2, 2)
    made.requests, made.pool_lost = {}, None
    return made


def _answers(pausing: Pausing) -> Evidence:
    exchanges = [_exchange(0, SHORT, "0", 9)]
    exchanges += [_exchange(1 + number, STRESS, str(number), number) for number in range(4)]
    exchanges += [_exchange(5 + number, SERIAL, str(number), number) for number in range(4)]
    return Evidence(exchanges, {str(case): RequestFacts(line=110) for case in range(4)}, pausing)


def _exchange(seq: int, leg: str, case: str, seed: int) -> Exchange:
    name = {STRESS: "long", SERIAL: "alone"}.get(leg, leg)
    tokens, output = (SHORT_PROMPT, SHORT_OUTPUT) if leg == SHORT else (10, 6)
    return Exchange(
        seq=seq,
        leg=leg,
        case=case,
        request_id=f"{name}-{case}",
        prompt=list(range(seed, seed + tokens)),
        asked_tokens=tokens,
        max_tokens=output,
        min_tokens=output,
        use_cache=leg != SERIAL,
        started_s=0.1 * seq,
        latency_s=1.0,
        text="some words",
        ids=[seed * 10 + at for at in range(output)],
        logprobs=[-0.5] * output,
        finish_reason="length",
        prompt_tokens=tokens,
        completion_tokens=output,
        cached=CachedTokens(total=0),
    )


def _write(path: Path, lines: "list[Any]") -> None:
    path.write_text("".join(_json(line) + "\n" for line in lines), encoding="utf-8")


def _json(line: BaseModel | Mapping[str, Any]) -> str:
    assert isinstance(line, BaseModel)
    return line.model_dump_json()
