"""Judging accept lengths, phase by phase. Pure."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from harness.checks import legs
from harness.checks.acceptance import accept_length, counted, mean_length, told_by_all
from harness.checks.exchange import EXCHANGES, Evidence, Exchange, load_evidence
from harness.checks.monotony import monotonous
from harness.checks.pause_proof import SERIAL
from harness.checks.planned import Planned, as_planned
from harness.engines import counter_names
from harness.engines.made_up import made_up_acceptance
from harness.errors import HarnessError
from harness.evidence.files import read_bytes
from harness.evidence.record import CheckResult
from harness.findings import Code, Finding, verdict_of
from harness.verdict import Verdict

COLD, WARM = "cold", "warm"
BEGIN = "asking"  # the mark before the first request; each phase has its own mark after the last
_PHASES = ((COLD, BEGIN, COLD), (WARM, COLD, WARM))  # leg, the mark before it and the one after
LEAST_STEPS = 100  # of a leg of another check, for its accept length to be judged
Lengths = Mapping[str, float | None]


def judge(
    folder: Path,
    sizes: Mapping[str, tuple[int, int]],
    *,
    least: float,
    number: float | None,
    reference: Path | None,
) -> CheckResult:
    """`sizes`: tokens of every prompt and its answer. `least` is the share of the reference, a `number` or
    another lane's evidence, that must be reached; without one nothing better than REPORTED is earned."""
    try:
        evidence = load_evidence(folder)
        findings = _asked(evidence, sizes)
        own = _own(evidence)
    except (HarnessError, KeyError, ValueError) as error:
        return legs.missing_evidence(error, folder)
    findings += [finding for phase, length in own.items() for finding in _exercised(phase, length)]
    findings += _contradicted(evidence)
    made_up = _made_up(folder, evidence)
    if made_up:
        message = f"acceptance was made up, not measured: {', '.join(made_up)}"
        findings.append(Finding(code=Code.ACCEPT_SIMULATED, message=message, where=str(folder.parent)))
    others = _others(folder)
    findings += [finding for name, other in others.items() for finding in within(name, other, least)]
    elsewhere = {key: length for name, other in others.items() for key, length in _by_leg(name, other)}
    wanted: Lengths = {}
    if number is not None:
        wanted = dict.fromkeys(own, number)
    elif reference is not None:
        wanted, unfit = _reference(reference, sizes, evidence)
        findings += unfit
    # A phase without any acceptance has been told already.
    measured = {phase: length for phase, length in own.items() if length is not None and length > 1}
    findings += _collapsed(measured, wanted, least)
    earned = Verdict.REPORTED if number is None and reference is None else Verdict.PASS
    shown = (f"{phase} {length:.2f}" for phase, length in own.items() if length is not None)
    return CheckResult(
        verdict=verdict_of(findings, earned),
        findings=findings,
        told=f"tokens per step: {', '.join(shown) or 'not told'}",
        metrics={
            "acceptance": "simulated" if made_up else "natural",
            **{f"accept.{phase}": length for phase, length in {**own, **elsewhere}.items()},
            **{f"reference.{phase}": length for phase, length in wanted.items()},
        },
    )


def _asked(evidence: Evidence, sizes: Mapping[str, tuple[int, int]]) -> list[Finding]:
    """All was answered; `cold` was cold and `warm` a hit in the device's cache, as their names say."""
    expected = int(str(evidence.facts.notes["expected_warm"]))
    found = legs.sound(evidence.exchanges)
    found += as_planned(evidence, {COLD: Planned(sizes), WARM: Planned(sizes, like=COLD)})
    found += monotonous(evidence, COLD)
    return found + legs.cold(evidence, COLD) + legs.hit(evidence, WARM, dict.fromkeys(sizes, expected))


def _contradicted(evidence: Evidence) -> list[Finding]:
    """Phases in which the server's counters of speculation stood still while its answers tell of drafts that
    were accepted: one of the two is not true. Raises KeyError without a mark."""
    found = []
    for leg, first, last in _PHASES:
        scraped = counter_names.accepted(evidence.marks[first].counters, evidence.marks[last].counters)
        told, _ = counted(evidence, evidence.leg(leg).values())
        if scraped is None or scraped.accepted or not told:
            continue
        message = (
            f"{leg}: the answers tell of {told} accepted tokens, and the server's counters of "
            f"{scraped.accepted} in {scraped.steps} steps"
        )
        found.append(Finding(code=Code.NOT_EXERCISED, message=message, where=leg))
    return found


def _own(evidence: Evidence) -> dict[str, float | None]:
    """By the server's counters where it has them: they count the steps. Raises KeyError without a mark."""
    found: dict[str, float | None] = {}
    for leg, first, last in _PHASES:
        before, after = evidence.marks[first].counters, evidence.marks[last].counters
        scraped = mean_length(counter_names.accepted(before, after))
        answers = evidence.leg(leg).values()
        answered = accept_length(evidence, answers) if told_by_all(evidence, answers) else None
        found[leg] = answered if scraped is None else scraped
    return found


def _others(folder: Path) -> dict[str, Evidence]:
    """What the lane's other checks collected, by check."""
    found: dict[str, Evidence] = {}
    for place in sorted(folder.parent.iterdir()):
        if place == folder or not (place / EXCHANGES).is_file():
            continue
        try:
            found[place.name] = load_evidence(place)
        except HarnessError:  # that check's own judge tells it
            continue
    return found


def _by_leg(name: str, evidence: Evidence) -> Iterator[tuple[str, float]]:
    for leg in dict.fromkeys(exchange.leg for exchange in evidence.exchanges):
        length = accept_length(evidence, (one for one in evidence.exchanges if one.leg == leg))
        if length is not None:
            yield f"{name}.{leg}", length


def within(name: str, evidence: Evidence, least: float) -> Iterator[Finding]:
    """The legs of check `name` against its own answers to the same prompts: those of the requests that ran
    alone, where it has such a leg, else the first. Only the same tokens are drafted equally well, so that
    `least` is asked of these; of other tokens, half of the drafted ones. Few steps tell nothing."""
    bases: dict[object, Exchange] = {}
    legs_of: dict[str, list[tuple[Exchange, Exchange]]] = {}
    for exchange in sorted(evidence.exchanges, key=lambda one: one.leg != SERIAL):
        prompt = exchange.prompt if isinstance(exchange.prompt, str) else tuple(exchange.prompt)
        base = bases.setdefault(prompt, exchange)
        if base is not exchange:
            legs_of.setdefault(exchange.leg, []).append((base, exchange))
    for leg, pairs in legs_of.items():
        same = [(base, exchange) for base, exchange in pairs if base.ids == exchange.ids]
        found = _dropped(f"{name}.{leg}", evidence, same, least)
        yield from found or _dropped(f"{name}.{leg}", evidence, pairs, None)


def _dropped(
    phase: str, evidence: Evidence, pairs: list[tuple[Exchange, Exchange]], least: float | None
) -> list[Finding]:
    """`least`: share of the accept length; None: half of the drafted tokens that it counts."""
    before = accept_length(evidence, [base for base, _ in pairs])
    accepted, steps = counted(evidence, [exchange for _, exchange in pairs])
    if before is None or steps < LEAST_STEPS:
        return []
    least = (1 + before) / 2 / before if least is None else least
    return _collapsed({phase: 1 + accepted / steps}, {phase: before}, least)


def _exercised(phase: str, length: float | None) -> Iterator[Finding]:
    if length is None:
        message = f"{phase}: nothing was drafted, or not every request tells how much was accepted"
        yield Finding(code=Code.NOT_EXERCISED, message=message, where=phase)
    elif length <= 1:
        message = f"{phase}: the accept length is {length:.3f}: no drafted token was ever accepted"
        yield Finding(code=Code.NOT_EXERCISED, message=message, where=phase)


def _collapsed(lengths: Lengths, wanted: Lengths, least: float) -> list[Finding]:
    found = []
    for phase, length in lengths.items():
        base = wanted.get(phase)
        if base is None or length is None or length >= least * base:
            continue
        message = (
            f"{phase}: accept length {length:.3f}, {base:.3f} is the reference: less than {least:.0%} of it"
        )
        found.append(Finding(code=Code.ACCEPT_COLLAPSE, message=message, where=phase))
    return found


def _reference(
    place: Path, sizes: Mapping[str, tuple[int, int]], here: Evidence
) -> tuple[Lengths, list[Finding]]:
    """The other lane's accept lengths; and what makes it unfit."""
    name = f"{place.parent.name}/{place.name}"
    try:
        evidence = load_evidence(place)
        own = _own(evidence)
        found = _asked(evidence, sizes)
    except (HarnessError, KeyError, ValueError) as error:
        message = f"the reference {name} cannot be read: {error}"
        return {}, [Finding(code=Code.REFERENCE_UNFIT, message=message, where=name)]
    found += [finding for phase, length in own.items() for finding in _exercised(phase, length)]
    found += _contradicted(evidence) + _unlike(evidence, here)
    if made_up := _made_up(place, evidence):
        message = f"acceptance was made up, not measured: {', '.join(made_up)}"
        found.append(Finding(code=Code.ACCEPT_SIMULATED, message=message, where=name))
    return own, legs.unfit(found, "the reference", place)


def _unlike(reference: Evidence, here: Evidence) -> list[Finding]:
    """What the reference asked otherwise: accept lengths of other prompts or lengths say nothing here."""
    found = []
    for leg in (COLD, WARM):
        theirs = reference.leg(leg)
        for case, exchange in here.leg(leg).items():
            other = theirs.get(case)
            if other is None:
                continue  # told by `asked`
            if (other.prompt, other.max_tokens) != (exchange.prompt, exchange.max_tokens):
                message = f"{leg} {case} asked another prompt, or another number of tokens"
                found.append(Finding(code=Code.REFERENCE_UNFIT, message=message, where=exchange.where))
    return found


def _made_up(folder: Path, evidence: Evidence) -> list[str]:
    """What of the lane's environment and of the servers' configuration fakes acceptance."""
    environment: dict[str, str] = {}
    for file in sorted(folder.parent.glob("environment*.json")):
        try:
            told = json.loads(read_bytes(file))
        except (OSError, ValueError):  # the lane's own record has it too, and plans refuse such variables
            continue
        environment |= {str(key): str(value) for key, value in told.items()} if isinstance(told, dict) else {}
    found = [one for config in evidence.facts.config.values() for one in made_up_acceptance({}, config)]
    return sorted({*found, *made_up_acceptance(environment, {})})
