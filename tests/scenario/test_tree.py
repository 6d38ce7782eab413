"""Laying one tree over another."""

import pytest

from harness.scenario.problems import Place, Problems
from harness.scenario.tree import as_written, lay_over, plain
from harness.scenario.yaml_source import read_text, read_value


@pytest.mark.parametrize(
    ("base", "over", "merged"),
    [
        ("{a: 1, b: 2}", "{b: 3, c: 4}", {"a": 1, "b": 3, "c": 4}),
        ("{a: {x: 1, y: 2}}", "{a: {y: 3}}", {"a": {"x": 1, "y": 3}}),
        ("{a: [1, 2]}", "{a: [3]}", {"a": [3]}),
        ("{a: [1, 2]}", "{a: {0: 9}}", {"a": {"0": 9}}),
        ("{a: {x: 1}}", "{a: 5}", {"a": 5}),
        ("{a: 5}", "{a: {x: 1}}", {"a": {"x": 1}}),
        ("{a: 5}", "{a: null}", {"a": None}),
        ("{a: 5}", "{a: }", {"a": None}),
        ("{a: {x: 1}}", "{a: null}", {"a": None}),
        ("{a: {x: 1}}", "{a: ~}", {"a": None}),
        ("{a: null}", "{a: {x: 1}}", {"a": {"x": 1}}),
        ("{a: {x: 1}}", "{a: }", {"a": {"x": 1}}),
        ("{a: {x: 1}}", "{a: false}", {"a": False}),
        ("{}", "{a: null}", {"a": None}),
        ("{b: 1, a: 1}", "{a: 2, c: 3}", {"b": 1, "a": 2, "c": 3}),
    ],
)
def test_lay_over(base: str, over: str, merged: object) -> None:
    problems = Problems()
    below, above = read_text(base, "base", problems), read_text(over, "over", problems)
    assert below is not None
    assert above is not None
    result = plain(lay_over(below, above, problems))
    assert result == merged
    if isinstance(result, dict) and isinstance(merged, dict):
        assert list(result) == list(merged)
    assert not problems


def test_what_stands_where_is_known_after_the_merge() -> None:
    problems = Problems()
    below = read_text("{a: 1, b: 2}", "base", problems)
    above = read_text("\n{b: 3}", "over", problems)
    assert below is not None
    assert above is not None
    merged = lay_over(below, above, problems)
    entries = getattr(merged, "entries", {})
    assert {key: str(entry.key) for key, entry in entries.items()} == {"a": "base:1:2", "b": "over:2:2"}


def test_as_written() -> None:
    node = read_value("{a: 0.90, b: true, c: [1.0, true, null], d: null}", Place("x"), Problems())
    assert node is not None
    assert plain(as_written(node)) == {"a": "0.90", "b": "true", "c": ["1.0", "true", None], "d": None}
    assert plain(as_written(node, keep=(bool,))) == {
        "a": "0.90",
        "b": True,
        "c": ["1.0", "true", None],
        "d": None,
    }
