"""Lanes that extend lanes, and matrices."""

from pathlib import Path

import pytest

from tests.scenario.tools import LANE, load_text, problems_of


@pytest.mark.parametrize(
    ("name", "matrix", "names"),
    [
        ("kv-{kv}", "{kv: [bf16, q8_0]}", ["kv-bf16", "kv-q8_0"]),
        ("kv", "{kv: [bf16, q8_0]}", ["kv-bf16", "kv-q8_0"]),
        ("{a}x{b}", "{a: [1, 2], b: [3, 4]}", ["1x3", "1x4", "2x3", "2x4"]),
        ("{a}", "{a: [1], b: [0.90, on]}", ["1-0.90", "1-on"]),
        ("l", "{a: ['${X}', y]}", ["l-from-env", "l-y"]),
        ("l", "null", ["l"]),
        ("l", "", ["l"]),
    ],
)
def test_matrix_names(tmp_path: Path, name: str, matrix: str, names: list[str]) -> None:
    text = f'lanes: {{"{name}": {{{LANE}, matrix: {matrix}}}}}'
    assert list(load_text(tmp_path, text, environ={"X": "from-env"}).lanes) == names


def test_lanes_inherit_deeply_and_in_order(tmp_path: Path) -> None:
    text = """
lanes:
  _a: {engine: vllm, model: {pull: x}, flags: {--one: a, --two: a, --three: a}, checks: {gsm8k: {limit: 3}}}
  _b: {flags: {--two: b, --three: null}, matrix: {k: [1, 2]}, checks: {gsm8k: null}}
  l: {extends: [_a, _b], flags: {--four: l, --one: false}}
  m: {extends: l, matrix: null, flags: {--three: m}}
"""
    lanes = load_text(tmp_path, text).lanes
    assert list(lanes) == ["l-1", "l-2", "m"]
    assert lanes["l-2"].servers[0].flags == {"--two": "b", "--four": "l"}
    assert lanes["m"].servers[0].flags == {"--two": "b", "--three": "m", "--four": "l"}
    assert lanes["m"].checks == {}


def test_an_empty_check_inherits_its_parameters(tmp_path: Path) -> None:
    """`gsm8k:` must not take the inherited check, and with it a gate, away."""
    text = """
lanes:
  _a: {engine: vllm, model: {pull: x}, checks: {gsm8k: {limit: 3}}}
  kept: {extends: _a, checks: {gsm8k: , pause-resume: }}
  gone: {extends: _a, checks: {gsm8k: false}}
"""
    lanes = load_text(tmp_path, text).lanes
    assert lanes["kept"].checks == {"gsm8k": {"limit": 3}, "pause-resume": {}}
    assert lanes["gone"].checks == {}


@pytest.mark.parametrize(
    ("lanes", "problem"),
    [
        ("a: {extends: _comon}, _common: {}", "1:22: lane `a` extends `_comon`, which is no lane of this"),
        ("a: {extends: _comon}, _common: {}", "Did you mean `_common`?"),
        ("a: {extends: b}, b: {extends: a}", "lanes extend one another in a circle: a -> b -> a."),
        ("a: {extends: a}", "1:22: lanes extend one another in a circle: a -> a."),
        ("a: {extends: {b: c}}", "`extends`: expected a lane's name or a list of them."),
        ("a: {extends: [b, [c]]}, b: {}", "`extends`: expected a lane's name or a list of them."),
        ("a: 5", "1:12: lane `a`: expected a mapping."),
        ("a: {LANE, matrix: [x]}", "`matrix`: expected a mapping of lists"),
        ("a: {LANE, matrix: {}}", "`matrix` has no keys; leave it out."),
        ("a: {LANE, matrix: {k: x}}", "`matrix.k`: expected a list of values"),
        ("a: {LANE, matrix: {k: []}}", "`matrix.k`: expected a list of values"),
        ("a: {LANE, matrix: {k: [{x: y}]}}", "`matrix.k`: expected a list of values"),
        ("a: {LANE, matrix: {k: [x, null]}}", "`matrix.k`: a value is empty; write '' for empty text."),
        ("a: {LANE, matrix: {k-v: [x]}}", "1:61: matrix key `k-v`: letters, digits and _ only"),
        ("a: {LANE, matrix: {k: ['${NOPE}']}}", "1:65: `${NOPE}` is set nowhere"),
        ("'a-{k}': {LANE}", "lane `a-{k}`: its matrix has no key of the name in braces."),
        ("a: {LANE, matrix: {k: [x/y]}}", "1:9: lane name `a-x/y` is no safe directory name"),
        ("a: {LANE, matrix: {k: [1, 1]}}", "1:9: two lanes are called `a-1` once matrices are expanded."),
        ("a-1: {LANE}, a: {LANE, matrix: {k: [1]}}", "two lanes are called `a-1`"),
        (f"a: {{LANE, matrix: {{k: [1,2,3,4], l: [{'x,' * 65}]}}}}", "more than 256 lanes"),
        (
            ", ".join(f"l{i}: {{LANE, matrix: {{k: [a, b, c, d, e, f, g, h]}}}}" for i in range(33)),
            "264 lanes",
        ),
        ("..: {LANE}", "lane name `..` is no safe directory name"),
        ("a b: {LANE}", "lane name `a b` is no safe directory name"),
        ("-rf: {LANE}", "lane name `-rf` is no safe directory name"),
        (f"{'x' * 101}: {{LANE}}", "is no safe directory name"),
        ("run.json: {LANE}", "lane name `run.json` is taken by the harness's own files."),
        ("_only: {LANE}", "there are no lanes; a scenario needs at least one under `lanes:`."),
        ("", "there are no lanes; a scenario needs at least one under `lanes:`."),
    ],
)
def test_problems(tmp_path: Path, lanes: str, problem: str) -> None:
    found = problems_of(tmp_path, f"lanes: {{{lanes}}}".replace("LANE", LANE))
    assert any(problem in text for text in found), found


def test_a_long_chain_of_lanes_ends_in_a_problem(tmp_path: Path) -> None:
    chain = "\n".join(f"  l{i}: {{extends: l{i + 1}}}" for i in range(2000))
    found = problems_of(tmp_path, f"lanes:\n{chain}\n  l2000: {{{LANE}}}")
    assert "more than 32 lanes extend one another in a row" in found[0]


def test_a_mistake_in_a_template_is_told_once(tmp_path: Path) -> None:
    text = f"lanes:\n  _t: {{{LANE},\n    flgs: 1}}\n  a: {{extends: _t}}\n  b: {{extends: _t}}\n"
    assert problems_of(tmp_path, text) == [
        "test.yaml:3:5: Unknown key `flgs` in a lane. Did you mean `flags`?"
    ]


def test_unused_templates_are_checked_too(tmp_path: Path) -> None:
    text = f"lanes:\n  _t: {{cpus: none, gpus: '{{g}}'}}\n  a: {{{LANE}}}\n"
    assert problems_of(tmp_path, text) == ["test.yaml:2:14: `cpus`: expected a whole number, got `none`."]
