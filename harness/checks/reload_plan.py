"""What the `cpu-reload` check was to ask, and whether it asked it. Pure."""

from dataclasses import dataclass
from pathlib import Path

from harness.checks import legs
from harness.checks.exchange import Evidence, load_evidence
from harness.checks.monotony import monotonous
from harness.checks.planned import Planned, as_planned
from harness.findings import Code, Finding

CASE = "target"
COLD, WARM, AGAIN, EVICT, RELOAD, AFTER = "cold", "warm", "warm-again", "evict", "reload", "warm-after"
EVICTED, RELOADED = "evicted", "reloaded"  # marks


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the parameters say: lengths in tokens; `evict`, how many prompts push the target out, None where
    that was computed; `tier`, off for a negative control."""

    length: int
    output: int
    evict: int | None = None
    tier: bool = True


@dataclass(frozen=True, slots=True)
class Noted:
    """What was computed before anything was asked. Tokens; None where the server does not tell."""

    tier: bool
    length: int
    expected_warm: int
    expected_host: int
    device: int | None
    host: int | None
    evict_prompts: int
    evict_tokens: int


def load_noted(folder: Path) -> tuple[Evidence, Noted]:
    """Raises HarnessError, KeyError, TypeError or ValueError where it is not whole."""
    evidence = load_evidence(folder)
    notes = evidence.facts.notes
    device, host, tier = notes["device_tokens"], notes["host_tokens"], notes["tier"]
    if not isinstance(tier, bool):
        raise TypeError(f"tier: {tier!r}")
    numbers = ("length", "expected_warm", "expected_host", "evict_prompts", "evict_tokens")
    length, warm, reload, prompts, tokens = (int(str(notes[name])) for name in numbers)
    return evidence, Noted(
        tier=tier,
        length=length,
        expected_warm=warm,
        expected_host=reload,
        device=None if device is None else int(str(device)),
        host=None if host is None else int(str(host)),
        evict_prompts=prompts,
        evict_tokens=tokens,
    )


def sequence(evidence: Evidence, noted: Noted, wanted: Wanted) -> list[Finding]:
    """All was asked as planned and answered, cold was cold, and warm came from the device's cache."""
    found = legs.sound(evidence.exchanges) + _planned(evidence, noted, wanted)
    found += [
        Finding(code=Code.EVIDENCE_MISSING, message=f"the moment `{label}` is not on file", where=label)
        for label in (EVICTED, RELOADED)
        if label not in evidence.marks
    ]
    found += legs.cold(evidence, COLD) + legs.cold(evidence, EVICT) + monotonous(evidence, COLD)
    for leg in (WARM, AGAIN):
        found += legs.hit(evidence, leg, {CASE: noted.expected_warm})
    return found


def _planned(evidence: Evidence, noted: Noted, wanted: Wanted) -> list[Finding]:
    """By the parameters; but of prompts whose number was computed, by what was computed."""
    asked = {case: exchange.asked_tokens for case, exchange in evidence.leg(EVICT).items()}
    number = noted.evict_prompts if wanted.evict is None else wanted.evict
    tokens = sum(asked.values()) if wanted.evict is None else number * wanted.length
    found = []
    if (noted.tier, noted.length, noted.evict_prompts) != (wanted.tier, wanted.length, number) or number < 1:
        message = (
            f"{noted.length} tokens and {noted.evict_prompts} prompts, tier {noted.tier}, are on file; "
            f"the parameters say {wanted}"
        )
        found.append(Finding(code=Code.NOT_EXERCISED, message=message, where=EVICT))
    elif noted.evict_tokens != tokens and len(asked) == number:
        message = f"{tokens} tokens were to push the target out, {noted.evict_tokens} were computed"
        found.append(Finding(code=Code.NOT_EXERCISED, message=message, where=EVICT))
    target = {CASE: (wanted.length, wanted.output)}
    cases = map(str, range(min(number, len(asked) + 1)))  # a number that is odd may be huge
    sizes = asked if wanted.evict is None else {}
    pushing = {case: (sizes.get(case, wanted.length), 1) for case in cases}
    again = dict.fromkeys((WARM, AGAIN, RELOAD, AFTER), Planned(target, like=COLD))
    return found + as_planned(evidence, {COLD: Planned(target), EVICT: Planned(pushing), **again})
