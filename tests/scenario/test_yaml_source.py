"""YAML 1.2 scalars, places, and everything that is refused."""

import math
from pathlib import Path

import pytest

from harness.scenario.problems import Problems
from harness.scenario.tree import Leaf, Map, Seq
from harness.scenario.yaml_source import MAX_BYTES, read_file, read_text, resolve


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("on", "on"),
        ("off", "off"),
        ("yes", "yes"),
        ("No", "No"),
        ("y", "y"),
        ("true", True),
        ("False", False),
        ("tRue", "tRue"),
        ("", None),
        ("~", None),
        ("null", None),
        ("None", "None"),
        ("20:30", "20:30"),
        ("1:20", "1:20"),
        ("2026-01-31", "2026-01-31"),
        ("010", 10),
        ("0o17", 15),
        ("0x1f", 31),
        ("0b11", "0b11"),
        ("1_000", "1_000"),
        ("-7", -7),
        ("0.90", 0.9),
        ("1e-3", 0.001),
        (".5", 0.5),
        ("1.", 1.0),
        ("1.2.3", "1.2.3"),
        (".", "."),
        ("-", "-"),
        ("1e999", math.inf),
        ("-.INF", -math.inf),
        ("٣", "٣"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_core_schema(text: str, value: object) -> None:
    resolved = resolve(text)
    assert resolved == value
    assert type(resolved) is type(value)


def test_nan_is_a_number() -> None:
    value = resolve(".NaN")
    assert isinstance(value, float)
    assert math.isnan(value)


def test_every_key_and_value_knows_its_place() -> None:
    problems = Problems()
    tree = read_text('a:\n  b: [1, "x"]\n  c:\n', "f.yaml", problems)
    assert isinstance(tree, Map)
    inner = tree.submap("a")
    items = inner.get("b")
    assert isinstance(items, Seq)
    assert [str(item.place) for item in items.items] == ["f.yaml:2:7", "f.yaml:2:10"]
    assert str(inner.entries["c"].key) == "f.yaml:3:3"
    assert not problems


def test_text_is_kept_as_written() -> None:
    tree = read_text("a: 0.90\nb: '0.90'\nc: True\nd: 0x10", "f", Problems())
    assert isinstance(tree, Map)
    leaves = [entry.node for entry in tree.entries.values()]
    assert all(isinstance(leaf, Leaf) for leaf in leaves)
    assert [(leaf.value, leaf.text) for leaf in leaves if isinstance(leaf, Leaf)] == [
        (0.9, "0.90"),
        ("0.90", "0.90"),
        (True, "True"),
        (16, "0x10"),
    ]


def test_anchors_may_be_used() -> None:
    tree = read_text("a: &x {k: 1}\nb: *x\n", "f", Problems())
    assert isinstance(tree, Map)
    assert tree.get("a") == tree.get("b")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\na: 2\n", "f:2:1: `a` is given twice; the first is on line 1."),
        ("x: {k: 1,\n k: 2}", "f:2:2: `k` is given twice; the first is on line 1."),
        ("a:\n\tb: 1\n", "f:2:1: a tab stands where YAML wants spaces."),
        ("a: b: c\n", "f:1:5: not valid YAML: mapping values are not allowed here."),
        ("a: [1, 2\nb: 3\n", "f:2:2: not valid YAML: expected ',' or ']', but got ':'"),
        ("a: 'x\n", "f:2:1: not valid YAML: found unexpected end of stream"),
        ("a: @x\n", "f:1:4: not valid YAML: found character '@'"),
        ("a: {b: c}}\n", "f:1:10: not valid YAML"),
        ("a: !!python/object:os.system x\n", "f:1:4: tag `tag:yaml.org,2002:python/object:os.system` is"),
        ("a: ! x\n", "f:1:4: tag `!` is not allowed"),
        ("b: &b {k: 1}\na:\n  <<: *b\n", "f:3:3: merge keys (`<<`) are not read; use `extends`."),
        ("[a]: 1\n", "f:1:1: a key must be plain text."),
        ("? {a: b}\n: 1\n", "f:1:3: a key must be plain text."),
        ("'': 1\n", "f:1:1: a key is empty."),
        ("a: *x\n", "f:1:4: alias `*x` stands before any anchor of that name."),
        ("a: &x [*x]\n", "f:1:8: alias `*x` is inside its own anchor."),
        ("a: 1\n---\nb: 2\n", "f:2:1: a second document starts here"),
        ("a: \x00\n", "f:1:4: character U+0000 is not allowed in YAML."),
        ('a: "\\UFFFFFFFF"\n', "f:1:1: not valid YAML after this place"),
        ('a: "\\ud800"\n', "f:1:4: half a surrogate pair is not a character."),
        ("a: " + "[" * 40 + "]" * 40, "f:1:36: nested deeper than 32 levels."),
        ("- " * 100_000, "f:1:67: nested deeper than 32 levels."),
        ("a: [" + "1," * 10_001 + "]", "more than 10000 values"),
    ],
)
def test_refused_with_its_place(text: str, problem: str) -> None:
    problems = Problems()
    read_text(text, "f", problems)
    assert problem in problems.texts()[0]


def test_an_alias_bomb_is_stopped_before_it_grows() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30)]
    problems = Problems()
    assert read_text("\n".join(lines), "f", problems) is None
    assert problems.texts() == ("f:5:10: more than 10000 values (aliases count each time).",)


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"", ":1:1: the file is empty; a scenario is a mapping with `lanes:` in it."),
        (b"# nothing\n\n", ":1:1: the file is empty"),
        (b"- a\n", ":1:1: expected a mapping, got a list"),
        (b"\nhello\n", ":2:1: expected a mapping, got `hello`"),
        (b"lanes:\n  a: \xe9\n", ":2:6: is not UTF-8 text here."),
        ("lanes: {}".encode("utf-16"), ":1:1: is not UTF-8 text here."),
        (b"#" * (MAX_BYTES + 1), "is larger than 256 KiB"),
    ],
)
def test_files_that_are_no_scenario(tmp_path: Path, raw: bytes, problem: str) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(raw)
    problems = Problems()
    assert read_file(path, problems) is None
    assert len(problems) == 1
    assert problem in problems.texts()[0]


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    problems = Problems()
    assert read_file(tmp_path, problems) is None
    assert "is not a file" in problems.texts()[0]


def test_bom_and_crlf_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: x\r\n")
    tree = read_file(path, Problems())
    assert tree is not None
    assert {key: getattr(entry.node, "value", None) for key, entry in tree.entries.items()} == {
        "a": 1,
        "b": "x",
    }
