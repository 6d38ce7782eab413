"""Statistics against published examples, scipy, brute force and simulation by enumeration."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar  # type: ignore[import-untyped]
from scipy.stats import binom, binomtest, norm  # type: ignore[import-untyped]

from harness.accuracy.statistics import (
    mcnemar_p,
    minimum_detectable_effect,
    non_inferiority,
    paired_interval,
)
from harness.verdict import Verdict


@st.composite
def tables(draw: st.DrawFn, largest: int = 2000) -> tuple[int, int, int]:
    n = draw(st.integers(1, largest))
    lost = draw(st.integers(0, n))
    return n, lost, draw(st.integers(0, n - lost))


@pytest.mark.parametrize(
    ("lost", "gained"),
    [(0, 0), (1, 0), (0, 5), (5, 5), (3, 14), (150, 86), (1000, 1300), (2000, 0), (50_000, 50_700)],
)
def test_mcnemar_is_the_exact_binomial_test(lost: int, gained: int) -> None:
    expected = binomtest(lost, lost + gained).pvalue if lost + gained else 1.0
    assert mcnemar_p(lost, gained) == pytest.approx(expected, rel=1e-8)


def test_mcnemar_by_hand() -> None:
    assert mcnemar_p(0, 6) == pytest.approx(2 / 64)
    assert mcnemar_p(1, 5) == pytest.approx(2 * 7 / 64)
    assert mcnemar_p(3, 3) == 1.0


@pytest.mark.parametrize(
    ("n", "lost", "gained", "low", "high"),
    [
        # Fagerland, Lydersen, Laake 2014 (airway hyper-responsiveness), Tango's score interval
        (21, 7, 1, -0.517, -0.026),
        # Agresti, Min 2005, score interval of the matched pairs (53, 16, 8, 9)
        (86, 8, 16, -0.020, 0.207),
    ],
)
def test_the_interval_of_published_tables(n: int, lost: int, gained: int, low: float, high: float) -> None:
    interval = paired_interval(n, lost, gained)
    assert (round(interval.low, 3), round(interval.high, 3)) == (low, high)


def test_the_interval_without_discordance_has_its_closed_form() -> None:
    z = norm.ppf(0.975)
    for n in (1, 20, 1319):
        interval = paired_interval(n, 0, 0)
        assert interval.high == pytest.approx(z**2 / (n + z**2))
        assert interval.low == pytest.approx(-interval.high)


@settings(max_examples=60, deadline=None)
@given(tables(largest=300))
def test_the_bounds_solve_the_score_equation(table: tuple[int, int, int]) -> None:
    """At each bound the score statistic, its nuisance parameter maximised numerically, equals z."""
    n, lost, gained = table
    interval = paired_interval(n, lost, gained)
    for bound, sign in ((interval.low, 1), (interval.high, -1)):
        if abs(bound) < 0.99:
            assert _score(n, lost, gained, bound) == pytest.approx(sign * norm.ppf(0.975), abs=2e-2)


def _score(n: int, lost: int, gained: int, difference: float) -> float:
    low, high = max(0.0, -difference), (1 - difference) / 2

    def minus_log_likelihood(loss: float) -> float:
        same = n - lost - gained
        terms = ((lost, loss), (gained, loss + difference), (same, 1 - 2 * loss - difference))
        return -sum(count * math.log(max(p, 1e-300)) for count, p in terms if count)

    edge = 1e-12
    found = minimize_scalar(
        minus_log_likelihood, bounds=(low + edge, high - edge), method="bounded", options={"xatol": 1e-12}
    )
    loss = min((low, found.x, high), key=minus_log_likelihood)
    variance = n * (2 * loss + difference - difference**2)
    return (gained - lost - n * difference) / math.sqrt(variance)


@settings(max_examples=200, deadline=None)
@given(tables())
def test_the_interval_holds_the_estimate_and_mirrors(table: tuple[int, int, int]) -> None:
    n, lost, gained = table
    interval, mirrored = paired_interval(n, lost, gained), paired_interval(n, gained, lost)
    assert -1 <= interval.low <= (gained - lost) / n <= interval.high <= 1
    assert interval.low < interval.high
    assert interval.low == pytest.approx(-mirrored.high, abs=1e-9)


def test_the_interval_covers_at_the_nominal_rate() -> None:
    """By enumeration of every outcome of 40 documents, not by chance."""
    n, loss, gain = 40, 0.10, 0.05
    covered = 0.0
    for lost in range(n + 1):
        for gained in range(n - lost + 1):
            interval = paired_interval(n, lost, gained)
            if interval.low <= gain - loss <= interval.high:
                covered += binom.pmf(lost, n, loss) * binom.pmf(gained, n - lost, gain / (1 - loss))
    assert 0.93 < covered < 0.98


@pytest.mark.parametrize("table", [(0, 0, 0), (5, -1, 0), (5, 3, 3)])
def test_an_impossible_table_is_refused(table: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="lost and"):
        paired_interval(*table)


def test_non_inferiority() -> None:
    assert non_inferiority(1319, 10, 10, 0.01).verdict is Verdict.PASS
    assert non_inferiority(1319, 80, 20, 0.01).verdict is Verdict.FAIL
    undecided = non_inferiority(1319, 30, 20, 0.01)
    assert undecided.verdict is Verdict.INCONCLUSIVE
    assert undecided.documents_needed is not None
    assert undecided.documents_needed > 1319
    assert non_inferiority(40, 0, 0, 0.01).verdict is Verdict.INCONCLUSIVE


def test_a_margin_of_zero_wants_proof_of_no_loss_at_all() -> None:
    assert non_inferiority(1319, 0, 0, 0.0).verdict is Verdict.INCONCLUSIVE
    assert non_inferiority(1319, 0, 0, 0.0).documents_needed is None
    assert non_inferiority(1319, 0, 40, 0.0).verdict is Verdict.PASS
    assert non_inferiority(1319, 40, 0, 0.0).verdict is Verdict.FAIL


@settings(max_examples=150, deadline=None)
@given(tables(), st.floats(0.0, 0.2))
def test_the_decision_agrees_with_its_bounds(table: tuple[int, int, int], drop: float) -> None:
    n, lost, gained = table
    decision = non_inferiority(n, lost, gained, drop)
    wide = paired_interval(n, lost, gained)
    assert wide.low <= decision.bounds.low <= decision.bounds.high <= wide.high
    assert (decision.verdict is Verdict.PASS) == (decision.bounds.low > -drop)
    assert (decision.verdict is Verdict.FAIL) == (decision.bounds.high < -drop)


def test_a_true_drop_at_the_margin_passes_in_one_of_twenty() -> None:
    """The gate's error rate, by enumeration: 200 documents, a true drop of exactly the margin."""
    n, loss, gain = 200, 0.07, 0.02
    passed = 0.0
    for lost in range(60):
        for gained in range(40):
            if non_inferiority(n, lost, gained, loss - gain).verdict is Verdict.PASS:
                passed += binom.pmf(lost, n, loss) * binom.pmf(gained, n - lost, gain / (1 - loss))
    assert 0.03 < passed < 0.06


def test_the_documents_needed_would_settle_it() -> None:
    n, lost, gained, drop = 1319, 40, 20, 0.025
    needed = non_inferiority(n, lost, gained, drop).documents_needed
    assert needed is not None
    times = needed / n
    more = (round(n * times), round(lost * times), round(gained * times))
    assert non_inferiority(*more, drop).verdict is Verdict.PASS


def test_the_minimum_detectable_effect_has_the_power_it_claims() -> None:
    n, discordance = 1319, 60 / 1319
    effect = minimum_detectable_effect(n, 30, 30)
    # Connor 1987: n documents of this discordance find this effect with 80 % power
    noise = norm.ppf(0.95) * math.sqrt(discordance) + norm.ppf(0.8) * math.sqrt(discordance - effect**2)
    assert (noise / effect) ** 2 == pytest.approx(n, rel=1e-6)
    assert 0.01 < effect < 0.02


def test_the_minimum_detectable_effect_shrinks_with_documents_and_grows_with_discordance() -> None:
    assert minimum_detectable_effect(1319, 0, 0) < minimum_detectable_effect(40, 0, 0)
    assert minimum_detectable_effect(1319, 10, 10) < minimum_detectable_effect(1319, 100, 100)
    assert 0 < minimum_detectable_effect(1319, 0, 0) < 0.006
    assert minimum_detectable_effect(1, 0, 0) == pytest.approx(1.0)
