"""Prefill and decode in two servers: the answers are those of one server, and the KV really was moved.

The cold answers of a reference lane are the standard; its own control leg tells whether a difference is the
transfer's fault. Proof is asked of every cold request, since a warm one may move nothing at all. The negative
control is an idle moment, in which the nodes must count and log nothing.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field

from harness.checks import drift, legs, pd_proof
from harness.checks.asking import Ask, Asker
from harness.checks.base import Begun, CheckContext, WithReference, reference_folder
from harness.checks.cold_standard import COLD, REFERENCE, STEADY, WARM, with_standard
from harness.checks.drift import Compared
from harness.checks.exchange import Evidence, Exchange, load_evidence
from harness.checks.functional import FunctionalCheck
from harness.checks.monotony import monotonous
from harness.checks.pd_transfers import NODES, Counting, Moved, load_moved
from harness.checks.planned import Planned, as_planned, repeated
from harness.checks.prompts import MOST_TOKENS, maker_for
from harness.errors import HarnessError, TargetError
from harness.evidence.fingerprint import Fingerprint
from harness.evidence.record import CheckResult
from harness.findings import Code, Finding, verdict_of
from harness.scenario.model import Seconds
from harness.verdict import Verdict

IDLE_S = 1.0
COMPARED = tuple(Compared(REFERENCE, leg, STEADY) for leg in (COLD, WARM))
MIB = 1 << 20


class PdParityParams(WithReference):
    """Parameters of the `pd-parity` check. With a reference its prompts and output lengths are asked."""

    lengths: tuple[Annotated[int, Field(le=MOST_TOKENS)], ...] = Field(
        (2304, 2305, 2306, 2307),
        min_length=1,
        max_length=1024,
        description="prompt lengths in tokens, without a reference",
    )
    output_tokens: int = Field(
        32, ge=1, le=MOST_TOKENS, description="tokens generated for each prompt, without a reference"
    )
    request_s: Seconds = Field(600, description="time limit of one request")


class PdParity(FunctionalCheck):
    """See the module's docstring."""

    kind = "pd-parity"
    params: type[BaseModel] = PdParityParams

    def problems(self, params: PdParityParams) -> list[str]:
        short = [f"lengths: {length} is too short for a prompt" for length in params.lengths if length < 2]
        return short + repeated(params.lengths)

    def requests(self, params: PdParityParams) -> list[tuple[int, int]] | None:
        return None if params.reference else [(length, params.output_tokens) for length in params.lengths]

    def collect(self, params: PdParityParams, context: CheckContext, begun: Begun | None) -> None:
        del begun
        with Asker(context, timeout_s=params.request_s) as asker:
            if not {server.role for server in context.servers} >= set(NODES):
                asker.skip("this lane has no prefill and decode nodes")
                return
            _note_agreement(asker, context)
            asks = _asks(params, context, asker)
            _note_sizes(asker, context, asks)
            counting = Counting(context)
            time.sleep(IDLE_S)  # whatever the nodes still log of their start
            asker.mark(pd_proof.IDLE)
            with counting.around(pd_proof.IDLE, ""):
                time.sleep(IDLE_S)
            asker.mark(pd_proof.ASKING)
            for done, ask in enumerate(asks):
                with counting.around(ask.leg, ask.case):
                    asker.ask(ask)
                context.progress(done + 1, len(asks))

    def judge(self, params: PdParityParams, folder: Path) -> CheckResult:
        try:
            evidence = load_evidence(folder)
            if (skipped := legs.skipped(evidence)) is not None:
                return skipped
            moved = load_moved(folder)
            other = reference_folder(params, folder)
            reference = load_evidence(other) if other else None
        except (HarnessError, OSError, ValueError) as error:
            return legs.missing_evidence(error, folder)
        # Servers that differ are not the thing that is tested: their answers say nothing.
        agreement = pd_proof.agreement(evidence)
        if agreement.findings:
            return legs.result(agreement.findings)
        findings = _answers(evidence)
        findings += [*pd_proof.control(moved), *pd_proof.quiet(evidence, moved)]
        findings += pd_proof.transfers(evidence, moved, COLD)
        moved_by: dict[str, float] = {}
        if reference is not None and other is not None:
            against, moved_by = _against(evidence, reference, other)
            findings += against
        else:
            asked = {str(length): (length, params.output_tokens) for length in params.lengths}
            findings += as_planned(evidence, _plan(asked))
            findings += legs.same_output(evidence, COLD, WARM, None) + monotonous(evidence, COLD)
        without = Verdict.REPORTED if reference is None else Verdict.PASS
        metrics = _metrics(evidence, moved) | moved_by
        metrics |= {"settings_equal": len(agreement.agreed), "settings_not_told": ", ".join(agreement.silent)}
        told = f"{metrics['cold_requests']} cold requests"
        told += f", {metrics['moved_tokens']} tokens moved" if "moved_tokens" in metrics else ""
        told += f", {len(agreement.agreed)} settings equal"
        told += f", {len(agreement.silent)} unset or not told" if agreement.silent else ""
        verdict = verdict_of(findings, without)
        return CheckResult(verdict=verdict, findings=findings, metrics=metrics, told=told)

    def fingerprint(self, params: PdParityParams, folder: Path) -> Fingerprint:
        del folder
        return {"lengths": str(params.lengths), "output_tokens": params.output_tokens}


def _note_agreement(asker: Asker, context: CheckContext) -> None:
    """On file before anything is asked: what must be equal, and the versions of the engine."""
    node = next(server for server in context.servers if server.role in NODES)
    asker.note(**{pd_proof.AGREE + key: ",".join(roles) for key, roles in node.engine.must_agree.items()})
    own = [server for server in context.servers if server.role != "router"]  # which is another program
    asker.note(**{pd_proof.VERSION + server.role: server.version for server in own})


def _note_sizes(asker: Asker, context: CheckContext, asks: Sequence[Ask]) -> None:
    """How many tokens of each prompt must move: whole blocks of the decode node, less one, but half of them
    at least; connectors have blocks of their own."""
    node = next(server for server in context.servers if server.role == "decode")
    for ask in asks:
        try:
            hits = [node.engine.expected_hit(tokens, node.config) for tokens in range(1, ask.tokens + 1)]
        except TargetError:  # its judge asks for half of the prompt then
            return
        block = next((hit for hit in hits if hit > 0), 0)
        asker.note(**{pd_proof.LEAST + ask.case: max(hits[-1] - block, hits[-1] // 2)})


def _asks(params: PdParityParams, context: CheckContext, asker: Asker) -> list[Ask]:
    """Every prompt cold, and then every prompt again."""
    maker = maker_for(context)
    folder = reference_folder(params, context.folder)
    cold: list[Ask] = []
    if folder is None:
        cold += (_ask(str(n), maker(n), n, params.output_tokens) for n in params.lengths)
    else:
        for case, exchange in load_evidence(folder).leg(COLD).items():
            try:
                prompt = maker.again(exchange.prompt)
            except HarnessError as error:  # this one cannot be asked here; the others can
                asker.note(**{pd_proof.UNFIT + case: error.what})
                continue
            cold.append(_ask(case, prompt, exchange.asked_tokens, exchange.max_tokens))
    return [*cold, *(_again(ask) for ask in cold)]


def _ask(case: str, prompt: tuple[int, ...] | str, tokens: int, output: int) -> Ask:
    return Ask(leg=COLD, case=case, prompt=prompt, tokens=tokens, max_tokens=output, min_tokens=output)


def _again(ask: Ask) -> Ask:
    return Ask(
        leg=WARM,
        case=ask.case,
        prompt=ask.prompt,
        tokens=ask.tokens,
        max_tokens=ask.max_tokens,
        min_tokens=ask.min_tokens,
    )


def _answers(evidence: Evidence) -> list[Finding]:
    """Whether the answers are answers at all, and the cold ones cold."""
    given_up = pd_proof.errors(evidence.exchanges)
    wrong = {finding.where for finding in given_up}
    rest = [exchange for exchange in evidence.exchanges if exchange.where not in wrong]
    return [*given_up, *legs.sound(rest), *legs.cold(evidence, COLD)]


def _against(evidence: Evidence, reference: Evidence, place: Path) -> tuple[list[Finding], dict[str, float]]:
    """The answers against those of the reference lane, by its own control leg; and how far they moved."""
    cases = reference.leg(COLD)
    unfit = {case for case in cases if pd_proof.UNFIT + case in evidence.facts.notes}
    findings = [
        Finding(
            code=Code.REFERENCE_UNFIT,
            message=f"{case}: {evidence.facts.notes[pd_proof.UNFIT + case]}",
            where=cases[case].where,
        )
        for case in sorted(unfit)
    ]
    if not cases:
        message = "the reference has no cold answers"
        findings.append(Finding(code=Code.REFERENCE_UNFIT, message=message, where=REFERENCE))
    findings += pd_proof.unlike(evidence, reference)
    both, unsound = with_standard(evidence, reference, place)
    findings += unsound
    fit = {case: exchange for case, exchange in cases.items() if case not in unfit}
    findings += as_planned(
        evidence, _plan({case: (one.asked_tokens, one.max_tokens) for case, one in fit.items()})
    )
    findings += _other_prompts(evidence, fit)
    for one in COMPARED:
        findings += legs.same_output(both, one.reference, one.leg, one.control) + drift.drifted(both, one)
    return findings, dict(drift.metrics(both, COMPARED))


def _plan(sizes: Mapping[str, tuple[int, int]]) -> dict[str, Planned]:
    return {COLD: Planned(sizes), WARM: Planned(sizes, like=COLD)}


def _other_prompts(evidence: Evidence, cases: Mapping[str, Exchange]) -> Iterable[Finding]:
    """What was asked otherwise than in the reference lane. A text cannot be compared with its token ids."""
    for case, exchange in evidence.leg(COLD).items():
        theirs = cases[case].prompt if case in cases else exchange.prompt
        if type(theirs) is type(exchange.prompt) and theirs != exchange.prompt:
            message = f"{COLD} {case}: the reference was asked another prompt"
            yield Finding(code=Code.NOT_EXERCISED, message=message, where=exchange.where)


def _metrics(evidence: Evidence, moved: Sequence[Moved]) -> dict[str, float | int | str | None]:
    cold = evidence.leg(COLD)
    metrics: dict[str, float | int | str | None] = {"cold_requests": len(cold)}
    sizes = [line.size for line in moved if line.leg == COLD and line.size is not None]
    tokens = [line.tokens for line in moved if line.leg == COLD and line.tokens is not None]
    if sizes:
        metrics["moved_mib"] = round(sum(sizes) / MIB, 2)
    if tokens:
        metrics["moved_tokens"] = round(sum(tokens))
    return metrics
