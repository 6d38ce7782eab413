"""How far log-probabilities may move: far, farther than the control's, and only where both tell them."""

from pathlib import Path
from typing import Any

import pytest

from harness.checks.drift import Compared, drifted, metrics
from harness.checks.exchange import Evidence, load_evidence
from harness.codes import Code
from tests.checks.evidence_files import IDS, Story, exchange

COMPARED = Compared("cold", "warm", "control")


def moved(by: float, at: int = 3) -> list[float]:
    return [-0.5 - by * (place == at) for place in range(len(IDS))]


def evidence(folder: Path, control: float = 0.0, **warm: Any) -> Evidence:
    legs = {"cold": {}, "warm": warm, "control": {"logprobs": moved(control)}}
    return load_evidence(Story([exchange(leg, "1", **more) for leg, more in legs.items()]).write(folder))


@pytest.mark.parametrize(
    ("by", "control", "found"),
    [
        (0.4, 0.0, False),  # as rounding does
        (0.6, 0.0, True),
        (0.6, 0.14, True),
        (0.6, 0.16, False),  # the control moves nearly as far
        (-0.4, 0.0, False),
        (2.0, 0.4, True),
    ],
)
def test_how_far(tmp_path: Path, by: float, control: float, found: bool) -> None:
    made = evidence(tmp_path, control, logprobs=moved(by))
    assert [finding.code for finding in drifted(made, COMPARED)] == [Code.LOGPROB_DRIFT] * found
    assert metrics(made, [COMPARED]) == {"logprob_drift": pytest.approx(abs(by))}


def test_it_tells_case_position_and_both_values(tmp_path: Path) -> None:
    (finding,) = drifted(evidence(tmp_path, logprobs=moved(1.0)), COMPARED)
    assert all(word in finding.message for word in ("warm 1", "token 4", "-1.5000", "-0.5000", "1.0000"))
    assert "id-warm-1" in finding.where


def test_after_the_first_other_token_nothing_is_compared(tmp_path: Path) -> None:
    other = [*IDS[:3], 7, *IDS[4:]]
    assert drifted(evidence(tmp_path, ids=other, logprobs=moved(1.0)), COMPARED) == []


def test_without_log_probabilities_or_a_control_nothing_is_said(tmp_path: Path) -> None:
    silent = evidence(tmp_path / "silent", logprobs=[])
    assert (drifted(silent, COMPARED), metrics(silent, [COMPARED])) == ([], {})
    far = evidence(tmp_path / "far", logprobs=moved(1.0))
    assert drifted(far, Compared("cold", "warm", None)) == []
    assert drifted(far, Compared("cold", "warm", "gone")) == []
