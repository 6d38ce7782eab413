"""`skip:` says why a lane is not run wherever it is run: a text, and not an empty one."""

from pathlib import Path

import pytest

from harness.scenario.model import Scenario
from tests.scenario.tools import LANE, attempt, load_text, problems_of

EMPTY = "an empty text is no reason: say why the lane is SKIPPED; null: it runs"


@pytest.mark.parametrize(
    ("skip", "wanted"),
    [
        ("no GPU kernel reads it", "no GPU kernel reads it"),
        (">-\n      two\n      lines", "two lines"),
        ("", ""),  # null: as if it were not there
        ("null", ""),
    ],
)
def test_a_reason_is_kept(tmp_path: Path, skip: str, wanted: str) -> None:
    text = f"lanes:\n  a:\n    engine: llamacpp\n    model: {{pull: smol}}\n    skip: {skip}\n"
    assert load_text(tmp_path, text).lanes["a"].skip == wanted


@pytest.mark.parametrize(
    ("skip", "problem"),
    [
        ("''", EMPTY),
        ("'  '", EMPTY),
        ('"${WHY:-}"', EMPTY),
        ("[a, b]", "`skip`: expected text, got a list."),
        ("{a: b}", "`skip`: expected text, got a mapping."),
        ("true", "`skip`: expected text, got `true`"),
        ('"a\\nb"', "contains a line break"),
    ],
)
def test_what_is_no_reason_is_refused(tmp_path: Path, skip: str, problem: str) -> None:
    (found,) = problems_of(tmp_path, f"lanes: {{a: {{{LANE}, skip: {skip}}}}}\n")
    assert found.startswith("test.yaml:1:")
    assert problem in found


def test_null_undoes_an_inherited_reason(tmp_path: Path) -> None:
    lanes = f"_base: {{{LANE}, skip: not here}}, a: {{extends: _base}}, b: {{extends: _base, skip: }}"
    loaded = attempt(tmp_path, f"lanes: {{{lanes}}}\n")
    assert isinstance(loaded, Scenario), loaded
    assert {name: lane.skip for name, lane in loaded.lanes.items()} == {"a": "not here", "b": ""}
