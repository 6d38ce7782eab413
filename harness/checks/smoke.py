"""Does it talk at all: a handful of chat and completion probes, each of which must end by itself.

No answer may be empty, loop, or run into its limit of tokens; how many must end by themselves is the
stop-rate gate, `min_natural_stop`. Says nothing about accuracy.

Answers are not streamed: `request_s` limits a whole answer, and a slow server cannot be told from one that
hangs. So it should be long against what `max_tokens` take.
"""

import json
import time
from functools import partial
from pathlib import Path

from pydantic import BaseModel, Field, ValidationError

from harness.accuracy.scoring import is_degenerate
from harness.checks import legs
from harness.checks.base import Begun, CheckContext
from harness.checks.exchange import Line
from harness.checks.functional import FunctionalCheck
from harness.checks.probes import PROBES, Kind, Probe
from harness.checks.prompts import MOST_TOKENS
from harness.engines import openai_dialect
from harness.engines.client import Client
from harness.engines.openai_dialect import Said
from harness.engines.watched import watched
from harness.errors import HarnessError, TargetError
from harness.evidence.files import open_regular, write_atomic
from harness.evidence.fingerprint import Fingerprint
from harness.evidence.record import CheckResult
from harness.findings import Code, Finding
from harness.scenario.model import Frozen, Seconds

ANSWERS = "probes.jsonl"
BROKEN = ("abort", "error")
SHOWN = 80  # characters of an answer in a finding


class SmokeParams(Frozen):
    """Parameters of the `smoke` check."""

    chat: bool = Field(True, description="ask the chat probes (/v1/chat/completions)")
    completions: bool = Field(True, description="ask the completion probes (/v1/completions)")
    max_tokens: int = Field(
        256, ge=1, le=MOST_TOKENS, description="by when an answer must have ended by itself"
    )
    min_natural_stop: float = Field(
        1.0, ge=0, le=1, description="share of the answers that must end by themselves"
    )
    request_s: Seconds = Field(600, description="time limit of one request, its whole answer")

    @property
    def probes(self) -> tuple[Probe, ...]:
        wanted = {"chat": self.chat, "completion": self.completions}
        return tuple(probe for probe in PROBES if wanted[probe.kind])


class ProbeAnswer(Line):
    """One probe and its answer; with an `error` there was none."""

    kind: Kind
    name: str
    prompt: str
    stop: list[str]
    max_tokens: int
    latency_s: float
    error: str | None = None
    text: str = ""
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None

    @property
    def where(self) -> str:
        return f"{ANSWERS} ({self.kind} `{self.name}`)"


class Smoke(FunctionalCheck):
    """See the module's docstring."""

    kind = "smoke"
    params: type[BaseModel] = SmokeParams

    def problems(self, params: SmokeParams) -> list[str]:
        return [] if params.probes else ["chat and completions are both off: nothing would be asked"]

    def collect(self, params: SmokeParams, context: CheckContext, begun: Begun | None) -> None:
        del begun
        answers: list[ProbeAnswer] = []
        with Client(context.base_url, timeout_s=params.request_s) as client:
            for probe in params.probes:
                ask = partial(_asked, client, context.served_name, probe, params.max_tokens)
                answers.append(watched(ask, context.pulse))
                lines = "".join(answer.model_dump_json() + "\n" for answer in answers)
                write_atomic(context.folder / ANSWERS, lines)
                if answers[-1].latency_s > params.request_s:
                    what = f"no whole answer to a probe within {params.request_s:g} s: nothing more is asked"
                    raise TargetError(what, evidence=str(context.server_log), code=Code.STALLED)
                context.pulse()
                context.progress(len(answers), len(params.probes))

    def judge(self, params: SmokeParams, folder: Path) -> CheckResult:
        try:
            answers = _load(folder / ANSWERS)
        except HarnessError as error:
            return legs.missing_evidence(error, folder)
        findings = _missing(params, answers) + _otherwise(params, answers)
        for answer in answers:
            findings += _one(answer)
        answered = [answer for answer in answers if _sound(answer)]
        looping = sum(is_degenerate(answer.text) for answer in answered)
        if looping:
            message = f"{looping} of {len(answered)} answers loop: none may"
            findings.append(Finding(code=Code.BAD_ANSWER, message=message, where=ANSWERS))
        stopped = sum(answer.finish_reason == "stop" for answer in answered)
        rate = stopped / len(answered) if answered else None
        if rate is not None and rate < params.min_natural_stop:
            message = (
                f"{stopped} of {len(answered)} answers ended by themselves ({rate:.0%}), "
                f"{params.min_natural_stop:.0%} must"
            )
            findings.append(Finding(code=Code.STOP_RATE, message=message, where=ANSWERS))
        metrics = {"probes": len(answers), "answered": len(answered), "degenerate": looping}
        told = f"{stopped} of {len(answers)} ended by themselves"
        return legs.result(findings, {**metrics, "natural_stop_rate": rate}, told)

    def fingerprint(self, params: SmokeParams, folder: Path) -> Fingerprint:
        del folder
        return {"chat": params.chat, "completions": params.completions, "max_tokens": params.max_tokens}


def _asked(client: Client, model: str, probe: Probe, max_tokens: int) -> ProbeAnswer:
    began = time.monotonic()
    error, said = None, Said(text="", finish_reason=None, prompt_tokens=None, completion_tokens=None)
    try:
        if probe.kind == "chat":
            said = openai_dialect.chat(client, model, probe.prompt, max_tokens=max_tokens)
        else:
            said = openai_dialect.complete(
                client, model, probe.prompt, max_tokens=max_tokens, stop=probe.stop
            )
    except TargetError as problem:  # evidence too: the other probes are asked all the same
        error = problem.what
    return ProbeAnswer(
        kind=probe.kind,
        name=probe.name,
        prompt=probe.prompt,
        stop=list(probe.stop),
        max_tokens=max_tokens,
        latency_s=time.monotonic() - began,
        error=error,
        text=said.text,
        finish_reason=said.finish_reason,
        prompt_tokens=said.prompt_tokens,
        completion_tokens=said.completion_tokens,
    )


def _load(path: Path) -> list[ProbeAnswer]:
    try:
        with open_regular(path) as file:
            return [ProbeAnswer.model_validate(json.loads(line)) for line in file]
    except (OSError, ValueError, ValidationError) as error:
        what = f"the answers of the probes are missing or broken: {str(error).splitlines()[0]}"
        raise HarnessError(what, evidence=str(path), code=Code.EVIDENCE_MISSING) from error


def _missing(params: SmokeParams, answers: list[ProbeAnswer]) -> list[Finding]:
    there = {(answer.kind, answer.name) for answer in answers}
    return [
        Finding(
            code=Code.EVIDENCE_MISSING,
            message=f"the {probe.kind} probe `{probe.name}` was not asked, or its answer is gone",
            where=ANSWERS,
        )
        for probe in params.probes
        if (probe.kind, probe.name) not in there
    ]


def _otherwise(params: SmokeParams, answers: list[ProbeAnswer]) -> list[Finding]:
    """Answers that are not of these parameters, or there twice: they would count in the share."""
    wanted = {(probe.kind, probe.name) for probe in params.probes}
    found = []
    for answer in answers:
        if (answer.kind, answer.name) in wanted and answer.max_tokens == params.max_tokens:
            wanted.remove((answer.kind, answer.name))
            continue
        message = f"the {answer.kind} probe `{answer.name}` was asked twice, or not as the parameters say"
        found.append(Finding(code=Code.NOT_EXERCISED, message=message, where=answer.where))
    return found


def _sound(answer: ProbeAnswer) -> bool:
    return answer.error is None and answer.finish_reason not in (None, *BROKEN)


def _one(answer: ProbeAnswer) -> list[Finding]:
    name = f"{answer.kind} `{answer.name}`"
    shown = repr(answer.text[-SHOWN:])
    if answer.error is not None:
        found = [(Code.REQUEST_FAILED, answer.error)]
    elif answer.finish_reason is None:
        found = [(Code.EVIDENCE_MISSING, "the server gave no finish reason: whether it stopped is unknown")]
    elif answer.finish_reason in BROKEN:
        found = [(Code.BAD_ANSWER, f"finish reason {answer.finish_reason}, reported with HTTP 200")]
    else:
        found = []
        if not answer.text.strip():
            found.append((Code.BAD_ANSWER, "the answer is empty"))
        elif answer.completion_tokens is not None and not 0 < answer.completion_tokens <= answer.max_tokens:
            message = f"{answer.completion_tokens} tokens were counted for the answer {shown}"
            found.append((Code.BAD_ANSWER, message))
        if is_degenerate(answer.text):
            found.append((Code.DEGENERATE, f"the answer loops: ... {shown}"))
        if answer.finish_reason != "stop":
            message = (
                f"it did not end within {answer.max_tokens} tokens ({answer.finish_reason}): ... {shown}"
            )
            found.append((Code.TRUNCATED, message))
    return [Finding(code=code, message=f"{name}: {text}", where=answer.where) for code, text in found]
