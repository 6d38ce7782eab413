"""Parameters of checks that nobody can have meant, or that no clock and no memory could hold."""

from typing import Any

import pytest

from harness.checks import CHECKS
from harness.errors import ConfigError
from harness.executors.planned_check import parse_check

WEEK = "less than or equal to 604800"
TIMED = [
    (kind, name) for kind, check in CHECKS.items() for name in check.params.model_fields if name[-2:] == "_s"
]


@pytest.mark.parametrize(("kind", "name"), TIMED)
@pytest.mark.parametrize(("value", "said"), [(float("inf"), "finite number"), (1e300, WEEK), (604_801, WEEK)])
def test_a_time_limit_is_a_week_at_most(kind: str, name: str, value: float, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_check(kind, {name: value})
    assert parse_check(kind, {name: 604_800})


def test_every_check_has_a_time_limit() -> None:
    assert {kind for kind, _ in TIMED} == set(CHECKS)


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        ("smoke", {"max_tokens": 10**20}, "262144"),
        ("pause-resume", {"max_warmups": 10**30}, "100000"),
        ("cpu-reload", {"control": ""}, "names no lane"),
        ("accept-length", {"reference": " "}, "names no lane"),
        ("pd-parity", {"reference": ""}, "names no lane"),
        ("pause-resume", {"reference": ""}, "names no lane"),
        ("accept-length", {"reference_length": float("inf")}, "finite number"),
        ("accept-length", {"reference_length": float("nan")}, "number"),
        ("cache-boundary", {"lengths": list(range(600, 2000))}, "at most 1024 items"),
    ],
)
def test_what_nobody_can_have_meant(kind: str, given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_check(kind, given)


@pytest.mark.parametrize("kind", ["pause-resume", "accept-length", "pd-parity"])
def test_no_reference_is_none(kind: str) -> None:
    assert parse_check(kind, {"reference": None})
