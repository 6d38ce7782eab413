"""Pausing for want of KV cache: requests put aside and taken up again must end as if nothing had happened.

Long requests that together need more than the cache holds are asked at once; then each of them alone, with
the cache put aside, as the reference. In that order: so the long ones are cold, whatever the references leave
in the prefix cache, and still go through it when they are taken up again, as in production.

The control is the same load in a large pool (`expect: none`, in another lane): no pause may be seen there. Of
a lane that speculates, drafts must be accepted under load as they are alone.
"""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

from harness.checks import drift, legs, phases
from harness.checks.acceptance import ACCEPT_SHARE, accept_length
from harness.checks.asking import Ask, Asker
from harness.checks.base import Begun, CheckContext, WithReference, reference_folder
from harness.checks.drift import Compared, drifted
from harness.checks.exchange import Evidence, load_evidence
from harness.checks.functional import FunctionalCheck
from harness.checks.monotony import monotonous
from harness.checks.pause_control import CONTROL, STANDARD, with_control
from harness.checks.pause_proof import (
    AFTER,
    BEFORE,
    SERIAL,
    STRESS,
    Proof,
    as_notes,
    from_notes,
    prove,
    role_of,
)
from harness.checks.pause_room import Room, read_room
from harness.checks.planned import Planned, as_planned, sizes
from harness.checks.prompts import MOST_TOKENS, PromptMaker, maker_for
from harness.errors import HarnessError, TargetError
from harness.evidence.fingerprint import Fingerprint
from harness.evidence.record import CheckResult
from harness.findings import Code, Finding
from harness.scenario.model import Seconds

SHORT, END = "short", "end"
MOST_WARMUPS = 100_000  # more are a slip of the pen
SHORT_PROMPT, SHORT_OUTPUT, SHORT_BATCH = 32, 64, 4  # tokens, tokens, requests between two looks at the log


class PauseResumeParams(WithReference):
    """Parameters of the `pause-resume` check."""

    input_tokens: int = Field(257, ge=2, le=MOST_TOKENS, description="prompt length of the long requests")
    output_tokens: int = Field(512, ge=2, le=MOST_TOKENS, description="tokens that each of them generates")
    concurrency: int = Field(8, ge=2, le=1024, description="long requests asked at once")
    expect: Literal["pause", "none"] = Field(
        "pause", description="`none`: the control, the same load in a pool that holds it"
    )
    max_warmups: int = Field(
        96,
        ge=0,
        le=MOST_WARMUPS,
        description="short requests asked at most, to lower the scheduler's estimate of outputs",
    )
    request_s: Seconds = Field(600, description="time limit of one request")

    @property
    def cases(self) -> tuple[str, ...]:
        return tuple(map(str, range(self.concurrency)))


class PauseResume(FunctionalCheck):
    """See the module's docstring."""

    kind = "pause-resume"
    params: type[BaseModel] = PauseResumeParams

    def requests(self, params: PauseResumeParams) -> list[tuple[int, int]]:
        return [(params.input_tokens, params.output_tokens)]

    def collect(self, params: PauseResumeParams, context: CheckContext, begun: Begun | None) -> None:
        del begun
        with Asker(context, timeout_s=params.request_s) as asker:
            pausing = context.engine.pausing
            if pausing is None:
                asker.skip(f"{context.engine.name} never puts a running request aside for want of KV cache")
                return
            maker = maker_for(context)
            prompts = _prompts(params, context.folder, maker)
            total = 2 * params.concurrency
            asker.note(**as_notes(pausing), role=context.servers[-1].role, kv_tokens=_capacity(context))
            if pausing.estimates:
                _lower_estimate(asker, maker, params, context)
            asker.mark(BEFORE)
            asks = [_long(STRESS, case, prompt, params) for case, prompt in prompts.items()]
            asker.ask_all(asks, concurrency=params.concurrency)
            asker.mark(AFTER)
            if pausing.estimates and not params.max_warmups:
                asker.note(output_estimate=asker.told().output_estimate)
            for done, (case, prompt) in enumerate(prompts.items(), params.concurrency):
                context.progress(done, total)
                answer = asker.ask(_long(SERIAL, case, prompt, params))
                if answer.error is not None and answer.latency_s >= params.request_s:
                    break  # it hangs: each of the others would take as long
            context.progress(total, total)
            asker.mark(END)

    def judge(self, params: PauseResumeParams, folder: Path) -> CheckResult:
        try:
            evidence = load_evidence(folder)
            if skipped := legs.skipped(evidence):
                return skipped
            proof = prove(evidence, STRESS, BEFORE, AFTER)
            alone = prove(evidence, SERIAL, AFTER, END)
        except HarnessError as error:
            return legs.missing_evidence(error, folder)
        except (KeyError, TypeError) as error:
            missing = HarnessError(f"the check did not come to its end: nothing is on file of {error}")
            return legs.missing_evidence(missing, folder)
        room = read_room(evidence, params.input_tokens, params.output_tokens, params.concurrency)
        findings = legs.sound(evidence.exchanges)
        findings += as_planned(evidence, _plan(params, evidence))
        findings += legs.control_cold(evidence, SERIAL)
        findings += proof.findings + _expected(params, proof, room, evidence)
        judged, unfit = with_control(params, evidence, folder, long_plan(params))
        findings += alone.findings + _not_alone(alone) + unfit
        compared = Compared(SERIAL, STRESS, CONTROL, STANDARD)
        findings += legs.same_output(judged, SERIAL, STRESS, CONTROL, STANDARD) + drifted(judged, compared)
        findings += legs.crossed(evidence, SERIAL, STRESS) + monotonous(evidence, SERIAL) + _pool(evidence)
        findings += phases.within(self.kind, evidence, ACCEPT_SHARE)
        metrics: dict[str, float | int | str | None] = {
            "pauses": proof.pauses,
            "requests_paused": proof.requests,
            "kv_tokens": room.capacity,
            "tokens_needed": room.needed,
            "output_estimate": room.estimate,
            "short_requests": sum(exchange.leg == SHORT for exchange in evidence.exchanges),
            "accept_alone": accept_length(evidence, evidence.leg(SERIAL).values()),
            "accept_together": accept_length(evidence, evidence.leg(STRESS).values()),
            **drift.metrics(evidence, [compared]),
        }
        return legs.result(findings, metrics, _told(params, proof, evidence))

    def fingerprint(self, params: PauseResumeParams, folder: Path) -> Fingerprint:
        del folder
        names = ("input_tokens", "output_tokens", "concurrency")
        return {name: getattr(params, name) for name in names}


def _told(params: PauseResumeParams, proof: Proof, evidence: Evidence) -> str:
    alone = evidence.leg(SERIAL)
    differ = [
        exchange
        for case, exchange in legs.answered(evidence, STRESS).items()
        if case in alone and alone[case].ids != exchange.ids
    ]
    wrong = f"; {len(differ)} answers differ" if differ else ""
    if proof.requests is None:  # the engine counts pauses, and does not say whose
        return f"{proof.pauses} pauses among {params.concurrency} requests{wrong}"
    paused = sum(bool(evidence.told(exchange).paused) for exchange in differ)
    wrong += f", {paused} of them of paused requests" if differ and from_notes(evidence).logs_requests else ""
    return f"{proof.requests} of {params.concurrency} requests paused, {proof.pauses} pauses{wrong}"


# Collecting


def _long(leg: str, case: str, prompt: tuple[int, ...] | str, params: PauseResumeParams) -> Ask:
    """The end of the text may not end it, and is not ignored either: some schedulers reserve all that a
    request which ignores it may generate, so that nothing would have to pause."""
    return Ask(
        leg=leg,
        case=case,
        prompt=prompt,
        tokens=params.input_tokens,
        max_tokens=params.output_tokens,
        min_tokens=params.output_tokens,
        ignore_eos=False,
        use_cache=leg != SERIAL,
    )


def _prompts(params: PauseResumeParams, folder: Path, maker: PromptMaker) -> dict[str, tuple[int, ...] | str]:
    """Those of the reference, so that both lanes ask the same; else fresh ones."""
    made = {case: maker(params.input_tokens) for case in params.cases}
    if (source := reference_folder(params, folder)) is not None:
        try:
            asked = load_evidence(source).leg(STRESS)
        except HarnessError:  # the judge will say that the reference is unfit; the rest is still worth asking
            return made
        for case, exchange in asked.items():
            if case in made and exchange.asked_tokens == params.input_tokens:
                made[case] = maker.again(exchange.prompt)
    return made


def _capacity(context: CheckContext) -> int | None:
    try:
        return context.engine.capacity(context.servers[-1].config).device
    except TargetError:  # it is only wanted for advice
        return None


def _lower_estimate(
    asker: Asker, maker: PromptMaker, params: PauseResumeParams, context: CheckContext
) -> None:
    """Ask short requests until the scheduler expects outputs so short that it admits all long requests."""
    capacity = _capacity(context)
    room = Room(params.input_tokens, params.output_tokens, params.concurrency, capacity)
    wanted = max(room.estimate_wanted or 0, SHORT_OUTPUT)
    asked = 0
    while asked < params.max_warmups:
        batch = min(SHORT_BATCH, params.max_warmups - asked)
        answers = asker.ask_all([_short(maker, asked + number) for number in range(batch)], concurrency=1)
        asked += batch
        if any(answer.error is not None for answer in answers):
            break  # told by the judge
        seen = asker.told().output_estimate
        asker.note(output_estimate=seen)
        if seen is not None and seen <= wanted:
            break


def _short(maker: PromptMaker, number: int) -> Ask:
    return Ask(
        leg=SHORT,
        case=str(number),
        prompt=maker(SHORT_PROMPT),
        tokens=SHORT_PROMPT,
        max_tokens=SHORT_OUTPUT,
        min_tokens=SHORT_OUTPUT,
        ignore_eos=False,
    )


# Judging


def long_plan(params: PauseResumeParams) -> dict[str, Planned]:
    """Of the requests that are compared, here and in the control's lane."""
    long = sizes(params.cases, params.input_tokens, params.output_tokens)
    return {STRESS: Planned(long, together=True), SERIAL: Planned(long, use_cache=False, like=STRESS)}


def _plan(params: PauseResumeParams, evidence: Evidence) -> dict[str, Planned]:
    """How many short requests it took is not told by the parameters."""
    asked = len(evidence.leg(SHORT))
    return long_plan(params) | {SHORT: Planned(sizes(range(asked), SHORT_PROMPT, SHORT_OUTPUT))}


def _expected(params: PauseResumeParams, proof: Proof, room: Room, evidence: Evidence) -> list[Finding]:
    """No pause where one is to be tested, or one in the control."""
    if proof.findings and not proof.pauses:
        return []  # it is not known whether there was one, and that is told
    pausing = from_notes(evidence)
    if params.expect == "none" and proof.pauses:
        message = f"the control saw {proof.pauses} {pausing.word}(s): its pool does not hold the load; "
        return [Finding(code=Code.CONTROL_FAILED, message=message + room.to_hold(), where=STRESS)]
    if params.expect == "pause" and not proof.pauses:
        message = f"no {pausing.word} happened: {room.to_overflow()}; see also: {pausing.hint}"
        return [Finding(code=Code.NOT_EXERCISED, message=message, where=STRESS)]
    return []


def _not_alone(alone: Proof) -> list[Finding]:
    """A reference must not have been put aside itself."""
    if not alone.pauses:
        return []
    message = f"{alone.pauses} pauses while each request ran alone: those answers are no reference"
    return [Finding(code=Code.REFERENCE_UNFIT, message=message, where=AFTER)]


def _pool(evidence: Evidence) -> list[Finding]:
    """What was still in use when the server was idle again, where its log tells such things."""
    role = role_of(evidence)
    lost = evidence.facts.log[role].pool_lost
    if lost:
        message = f"{lost} tokens of the KV cache belonged to nobody when the server was idle again"
        return [Finding(code=Code.POOL_LEAK, message=message, where=role)]
    if lost is None and from_notes(evidence).logs_requests:
        message = "the log does not tell what of the KV cache was in use when the server was idle again"
        return [Finding(code=Code.NOT_EXERCISED, message=message, where=role)]
    return []
