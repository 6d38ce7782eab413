"""Statistics of paired right-or-wrong answers, from three numbers: n documents, `lost` that only the
baseline got right, `gained` that only the candidate got right. Differences are candidate - baseline, as
fractions. Standard library only.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

from harness.verdict import Verdict

CONFIDENCE: Final = 0.95
POWER: Final = 0.80

_ONE_SIDED = NormalDist().inv_cdf(CONFIDENCE)
_TWO_SIDED = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
_POWER = NormalDist().inv_cdf(POWER)
_BISECTIONS = 60  # of an interval not longer than 1: below the resolution of a double


@dataclass(frozen=True, slots=True)
class Interval:
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """A one-sided 95 % non-inferiority decision. `bounds` are the two one-sided bounds it rests on;
    `documents_needed` is None where it is decided, or where no number of documents would decide it."""

    verdict: Verdict
    bounds: Interval
    documents_needed: int | None


def mcnemar_p(lost: int, gained: int) -> float:
    """Exact two-sided McNemar p: the binomial sign test on the discordant documents."""
    n = lost + gained
    k = min(lost, gained)
    log_term = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) - n * math.log(2)
    term = math.exp(log_term)
    terms = []
    while k >= 0 and term > 0:  # from the largest down; the rest underflows to nothing
        terms.append(term)
        term *= k / (n - k + 1)
        k -= 1
    return min(1.0, 2 * math.fsum(terms))


def paired_interval(n: int, lost: int, gained: int) -> Interval:
    """Two-sided 95 % score interval of the paired difference.

    T. Tango, "Equivalence test and confidence interval for the difference in proportions for the
    paired-sample design", Statistics in Medicine 17 (1998) 891-908. It keeps its coverage with few or no
    discordant documents, where the textbook (Wald) interval collapses to a point.
    """
    return _score_interval(n, lost, gained, _TWO_SIDED)


def non_inferiority(n: int, lost: int, gained: int, max_drop: float) -> Decision:
    """PASS when the one-sided 95 % bound excludes a drop of `max_drop`, FAIL when the opposite bound excludes
    anything better than that drop, else INCONCLUSIVE."""
    bounds = _score_interval(n, lost, gained, _ONE_SIDED)
    if bounds.low > -max_drop:
        return Decision(verdict=Verdict.PASS, bounds=bounds, documents_needed=None)
    if bounds.high < -max_drop:
        return Decision(verdict=Verdict.FAIL, bounds=bounds, documents_needed=None)
    needed = _documents_needed(n, lost, gained, max_drop)
    return Decision(verdict=Verdict.INCONCLUSIVE, bounds=bounds, documents_needed=needed)


def minimum_detectable_effect(n: int, lost: int, gained: int) -> float:
    """The smallest true drop that a one-sided 5 % test of no difference finds with 80 % power, at the
    discordance seen (at least one document: none seen does not mean that there is none).

    R. J. Connor, "Sample size for testing differences in proportions for the paired-sample design",
    Biometrics 43 (1987) 207-211, solved for the difference. 1.0 where not even a total loss would be found.
    """
    seen = max(lost + gained, 1) / n

    def shortfall(drop: float) -> float:
        discordance = max(seen, drop)  # a drop of d takes at least d discordant documents
        noise = _ONE_SIDED * math.sqrt(discordance) + _POWER * math.sqrt(discordance - drop * drop)
        return noise - drop * math.sqrt(n)

    return _root(shortfall, 0.0, 1.0)


def _documents_needed(n: int, lost: int, gained: int, max_drop: float) -> int | None:
    """Documents for 80 % power if the difference and discordance seen are the true ones."""
    difference = (gained - lost) / n
    distance = abs(difference + max_drop)
    if distance < 1e-9:
        return None
    variance = max(lost + gained, 1) / n - difference * difference
    needed = math.ceil((_ONE_SIDED + _POWER) ** 2 * variance / distance**2)
    return max(needed, n + 1)


def _score_interval(n: int, lost: int, gained: int, z: float) -> Interval:
    if not (n > 0 and lost >= 0 and gained >= 0 and lost + gained <= n):
        raise ValueError(f"{lost} lost and {gained} gained of {n} documents")
    seen = (gained - lost) / n
    low = _root(lambda difference: _score(n, lost, gained, difference) - z, -1.0, seen)
    high = _root(lambda difference: _score(n, lost, gained, difference) + z, seen, 1.0)
    return Interval(low, high)


def _score(n: int, lost: int, gained: int, difference: float) -> float:
    """Tango's statistic under the hypothesis that the true difference is `difference`; falls as it grows."""
    surprise = gained - lost - n * difference
    if surprise == 0:
        return 0.0
    # Maximum likelihood of the probability of a loss under the hypothesis: a quadratic's larger root, in the
    # form that does not cancel.
    b = (2 * n - gained + lost) * difference - lost - gained
    c = -lost * difference * (1 - difference)
    root = math.sqrt(max(b * b - 8 * n * c, 0.0))
    loss = (root - b) / (4 * n) if b <= 0 else -2 * c / (root + b)
    variance = n * (2 * loss + difference * (1 - difference))
    return surprise / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, surprise)


def _root(falling: Callable[[float], float], low: float, high: float) -> float:
    """Where a falling function crosses zero; an end where it does not."""
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if falling(middle) > 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2
