"""The order of the words is the product's promise."""

import pytest

from harness.findings import EFFECT, Code, Finding, verdict_of
from harness.verdict import Verdict, exit_code, worst


def test_worst_wins_in_the_stated_order() -> None:
    assert [str(verdict) for verdict in Verdict] == [
        "PASS",
        "REPORTED",
        "SKIPPED",
        "INCONCLUSIVE",
        "INFRA",
        "INVALID",
        "FAIL",
    ]
    assert worst(list(Verdict)) is Verdict.FAIL
    assert worst([Verdict.PASS, Verdict.SKIPPED]) is Verdict.SKIPPED


def test_of_nothing_nothing_may_be_claimed() -> None:
    assert worst([]) is Verdict.SKIPPED


@pytest.mark.parametrize(
    ("verdict", "code"),
    [
        ("PASS", 0),
        ("REPORTED", 0),
        ("SKIPPED", 3),
        ("INCONCLUSIVE", 3),
        ("INFRA", 4),
        ("INVALID", 5),
        ("FAIL", 1),
    ],
)
def test_exit_codes(verdict: str, code: int) -> None:
    assert exit_code(Verdict(verdict)) == code


def test_a_gate_is_not_satisfied_by_a_report() -> None:
    assert exit_code(Verdict.REPORTED, require_gate=True) == 3
    assert exit_code(Verdict.PASS, require_gate=True) == 0
    assert exit_code(Verdict.FAIL, require_gate=True) == 1


def test_every_code_says_what_it_does_to_a_verdict() -> None:
    assert set(EFFECT) == set(Code)
    assert Verdict.PASS not in EFFECT.values()


def test_a_finding_never_improves_a_verdict() -> None:
    for code in Code:
        finding = Finding(code=code, message="x")
        for base in Verdict:
            assert verdict_of([finding], base).rank >= base.rank
