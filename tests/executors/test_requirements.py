"""Hardware conditions skip with the reason; a misspelt one is a problem, not a silent yes."""

import pytest

from harness.executors import requirements


@pytest.fixture(autouse=True)
def _processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements, "cpu_features", lambda: frozenset({"avx2", "fma"}))
    monkeypatch.setattr(requirements, "cpu_model", lambda: "Test CPU")


def test_met() -> None:
    assert requirements.unmet({"cpu_any_of": ["avx512f", "avx2"]}, 0) == ""
    assert requirements.unmet({}, 0) == ""


def test_unmet_names_what_is_missing_and_what_is_there() -> None:
    reason = requirements.unmet({"cpu_any_of": ["avx512f", "amx_tile"]}, 0)
    assert "avx512f or amx_tile" in reason
    assert "Test CPU" in reason


def test_gpus_are_not_guessed() -> None:
    assert "4 GPU" in requirements.unmet({}, 4)


@pytest.mark.parametrize("requires", [{"cpu_anyof": ["avx2"]}, {"cpu_any_of": "avx2"}, {"cpu_any_of": []}])
def test_malformed_conditions_are_problems(requires: dict[str, object]) -> None:
    assert len(requirements.problems(requires)) == 1
