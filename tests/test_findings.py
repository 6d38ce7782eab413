"""A finding's message is cut once, and says how much is missing."""

import pytest

from harness.codes import Code
from harness.errors import TargetError
from harness.findings import LONGEST, Finding


@pytest.mark.parametrize("length", [LONGEST + 1, LONGEST + 50, 5 << 20])
def test_a_long_message_is_cut_and_counted(length: int) -> None:
    text = "x" * length
    finding = Finding(code=Code.REQUEST_FAILED, message=text)
    start, rest = finding.message.split("… (")
    assert len(finding.message) <= LONGEST
    assert start == text[: len(start)]
    assert rest == f"{length - len(start)} characters more)"
    assert Finding.model_validate_json(finding.model_dump_json()) == finding, "a record is read again"


def test_others_stay_as_they_are() -> None:
    assert Finding(code=Code.REQUEST_FAILED, message="y" * LONGEST).message == "y" * LONGEST


def test_an_error_becomes_a_finding_of_that_length() -> None:
    assert len(TargetError("z" * (1 << 20)).finding().message) <= LONGEST


@pytest.mark.parametrize(
    ("message", "headline"),
    [
        ("", ""),
        ("\n", ""),
        ("it died", "it died"),
        ("it died\nTraceback", "it died"),
        ("it died; likely cause: no memory; what to do: buy some", "it died"),
        ("it died; what to do: start it again", "it died"),
    ],
)
def test_the_headline_is_what_happened(message: str, headline: str) -> None:
    assert Finding(code=Code.SERVER_DIED, message=message).headline == headline


def test_a_key_of_a_newer_harness_is_no_obstacle() -> None:
    given = {"code": "SERVER_DIED", "message": "it died", "severity": "high"}
    assert Finding.model_validate(given).message == "it died"
