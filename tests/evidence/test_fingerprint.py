"""Flat fingerprints: flattening, differences, exemptions by name, and the file."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import HarnessError
from harness.evidence.fingerprint import (
    ABSENT,
    Difference,
    Fingerprint,
    Value,
    diff,
    flatten,
    idle_exemptions,
    parity_findings,
    read_fingerprint,
    write_fingerprint,
)
from harness.findings import Code

BASE: Fingerprint = {
    "engine": "vllm",
    "flags.--kv-cache-dtype": "auto",
    "flags.--tp": 4,
    "env.OMP_NUM_THREADS": "1",
    "config.block_size": None,
}

VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text())
FINGERPRINTS = st.dictionaries(st.text(max_size=8), VALUES, max_size=8)


def test_flatten() -> None:
    tree = {"a": {"b": [1, {"c": None}], "d": {}, "e": []}, "f": True, 3: "x", "path": Path("/x")}
    assert flatten(tree) == {  # type: ignore[arg-type]
        "a.b.0": 1,
        "a.b.1.c": None,
        "a.d": "{}",
        "a.e": "[]",
        "f": True,
        "3": "x",
        "path": "/x",
    }
    assert flatten({}) == {}


def test_equal_fingerprints_have_no_difference() -> None:
    assert diff(BASE, dict(BASE)) == []
    assert diff({"a": float("nan"), "b": 1}, {"a": float("nan"), "b": 1.0}) == []


def test_nan_is_no_number() -> None:
    assert len(diff({"a": float("nan")}, {"a": 1.0})) == 1
    assert len(diff({"a": 1.0}, {"a": float("nan")})) == 1


def test_differences_are_sorted_and_name_both_values() -> None:
    other = {**BASE, "flags.--tp": 8, "engine": "sglang"}
    assert diff(BASE, other) == [
        Difference("engine", "vllm", "sglang"),
        Difference("flags.--tp", 4, 8),
    ]


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, "1"), (1, True), (0, False), (None, ""), (None, "None"), ("a", "A"), (1, 1.5), ("", 0)],
)
def test_values_that_only_look_alike_differ(one: Value, other: Value) -> None:
    assert diff({"k": one}, {"k": other}) == [Difference("k", one, other)]
    assert diff({"k": other}, {"k": one}) == [Difference("k", other, one)]


def test_a_key_on_one_side_only_differs_even_from_null() -> None:
    assert diff({"k": None}, {}) == [Difference("k", None, ABSENT)]
    assert diff({}, {"k": ABSENT}) == [Difference("k", ABSENT, ABSENT)]


@pytest.mark.parametrize(
    ("entry", "exempts"),
    [
        ("flags.--kv-cache-dtype", True),
        ("flags.--kv-*", True),
        ("flags.*", True),
        ("*", True),
        ("flags.--kv-cache-dtyp?", True),
        ("flags.--kv-cache-dtyp[ef]", True),
        ("flags.--kv-cache", False),
        ("--kv-cache-dtype", False),
        ("flags.--KV-*", False),
        ("flags+.*", False),
        ("flags.--kv-cache-dtype|x", False),
        ("(flags.*)", False),
        (".*", False),
        ("", False),
    ],
)
def test_exemptions_are_whole_keys_with_shell_wildcards(entry: str, exempts: bool) -> None:
    other = {**BASE, "flags.--kv-cache-dtype": "fp8"}
    assert (diff(BASE, other, [entry]) == []) == exempts


def test_a_dot_is_a_dot_and_a_literal_bracket_matches_itself() -> None:
    assert diff({"a.b": 1}, {"a.b": 2}, ["a?b"]) == []
    assert diff({"axb": 1}, {"axb": 2}, ["a.b"]) != []
    assert diff({"a[0]": 1}, {"a[0]": 2}, ["a[0]"]) == []


@given(FINGERPRINTS, FINGERPRINTS)
def test_diff_is_symmetric_and_everything_is_exempt_by_a_star(one: Fingerprint, other: Fingerprint) -> None:
    assert [item.key for item in diff(one, other)] == [item.key for item in diff(other, one)]
    assert diff(one, one) == []
    assert diff(one, other, ["*"]) == []


def test_findings_are_sentences_with_the_key_as_place() -> None:
    [finding] = parity_findings(BASE, {**BASE, "flags.--tp": 8})
    assert finding.code is Code.PARITY
    assert finding.where == "flags.--tp"
    assert finding.message == "flags.--tp differs and is not exempt: 4 on the baseline, 8 on the candidate"
    [finding] = parity_findings({}, {"long": "x" * 1000})
    assert "(absent) on the baseline" in finding.message
    assert len(finding.message) < 300


def test_exemptions_that_did_no_work_are_known() -> None:
    other = {**BASE, "flags.--tp": 8}
    idle = idle_exemptions(BASE, other, ["flags.--tp", "flags.--tpp", "engine", "env.*", "nothing.*"])
    assert idle.unmatched == ("flags.--tpp", "nothing.*")
    assert idle.equal == ("engine", "env.*")


def test_the_file_round_trips_sorted(tmp_path: Path) -> None:
    fingerprint: Fingerprint = {"z": "’\u2028", "a": None, "m": 1.5, "b": True}
    write_fingerprint(tmp_path / "lane", fingerprint)
    assert read_fingerprint(tmp_path / "lane") == fingerprint
    assert list(json.loads((tmp_path / "lane" / "fingerprint.json").read_bytes())) == ["a", "b", "m", "z"]
    assert [path.name for path in (tmp_path / "lane").iterdir()] == ["fingerprint.json"]


BROKEN = [b"", b"{", b"{}", b"[]", b"null", b'{"a": {}}', b'{"a": [1]}', b"\xff", b"[" * 100_000]


@pytest.mark.parametrize("text", BROKEN, ids=lambda text: repr(text[:12]))
def test_a_broken_file_is_missing_evidence(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "fingerprint.json").write_bytes(text)
    with pytest.raises(HarnessError) as caught:
        read_fingerprint(tmp_path)
    assert caught.value.code is Code.EVIDENCE_MISSING
    assert str(tmp_path / "fingerprint.json") in str(caught.value)


def test_no_file_is_missing_evidence(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="No such file"):
        read_fingerprint(tmp_path)
