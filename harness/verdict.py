"""The verdict words, their order and their exit codes.

A verdict is one word out of a fixed, ordered set. Worst wins; nothing averages.
"""

from collections.abc import Iterable
from enum import StrEnum


class Verdict(StrEnum):
    """Best to worst; the order of definition is the order of severity."""

    PASS = "PASS"  # noqa: S105 - a verdict, not a password
    REPORTED = "REPORTED"  # measured soundly, no threshold stated: nothing may be claimed
    SKIPPED = "SKIPPED"  # not run, with a reason; never a success where required
    INCONCLUSIVE = "INCONCLUSIVE"  # sound, but too little evidence for the stated margin
    INFRA = "INFRA"  # the host or the harness failed; says nothing about the engine
    INVALID = "INVALID"  # evidence is not sound, not comparable, or the feature was not exercised
    FAIL = "FAIL"  # the engine broke an acceptance rule

    @property
    def rank(self) -> int:
        return _ORDER.index(self)


_ORDER = list(Verdict)

EXIT_CODES = {
    Verdict.PASS: 0,
    Verdict.REPORTED: 0,
    Verdict.SKIPPED: 3,
    Verdict.INCONCLUSIVE: 3,
    Verdict.INFRA: 4,
    Verdict.INVALID: 5,
    Verdict.FAIL: 1,
}
EXIT_USAGE = 2
EXIT_NOT_A_GATE = 3
EXIT_INTERRUPTED = 130


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of the verdicts. Of nothing, nothing may be claimed: SKIPPED, never PASS."""
    return max(verdicts, key=lambda verdict: verdict.rank, default=Verdict.SKIPPED)


def exit_code(verdict: Verdict, *, require_gate: bool = False) -> int:
    """Exit code of a run whose worst verdict this is; with `require_gate` REPORTED is not enough."""
    if require_gate and verdict is Verdict.REPORTED:
        return EXIT_NOT_A_GATE
    return EXIT_CODES[verdict]
