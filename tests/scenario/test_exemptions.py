"""Entries of `may_differ` that the scenario alone shows to be idle."""

from pathlib import Path

import pytest

from harness.scenario.problems import by_lane
from tests.scenario.tools import LANE, load_text, problems_of

SCENARIO = """
lanes:
  _t: {{{lane}, checks: {{gsm8k: }}, env: {{SAME: 1}}}}
  a: {{extends: _t, flags: {{--cache-type-k: bf16, --ctx-size: 4096}}, env: {{MODE: x}}}}
  b: {{extends: _t, flags: {{--cache-type-k: q8_0, --ctx-size: 4096}}}}
pairs:
  p:
    baseline: a
    candidate: b
    may_differ: [{entry}]
"""
PD = """
lanes:
  _t: {{engine: lightllm, model: {{path: /m}}, checks: {{gsm8k: }}}}
  a: {{extends: _t, servers: [{{role: prefill, flags: {{--x: 1}}}}, {{role: decode}}, {{role: master}}]}}
  b: {{extends: _t, servers: [{{role: prefill, flags: {{--x: 2}}}}, {{role: decode}}, {{role: master}}]}}
pairs: {{p: {{baseline: a, candidate: b, may_differ: [{entry}]}}}}
"""


@pytest.mark.parametrize(
    ("entry", "hint"),
    [
        ("flags.--cache-typ-k", "Did you mean `flags.--cache-type-k`?"),
        ("flags.cache-type-k", "Did you mean `flags.--cache-type-k`?"),
        ("flags.--ctx-sise", "Known: flags.--cache-type-k, env.MODE."),  # the near one does not differ
        ("env.MODEE", "Did you mean `env.MODE`?"),
        ("decode.flags.--cache-type-k", "Did you mean `flags.--cache-type-k`?"),
    ],
)
def test_a_misspelt_entry_is_a_problem_at_its_place(tmp_path: Path, entry: str, hint: str) -> None:
    found = problems_of(tmp_path, SCENARIO.format(lane=LANE, entry=entry))
    assert found == [f"test.yaml:10:18: `may_differ` of pair `p`: neither lane sets `{entry}`. {hint}"]


@pytest.mark.parametrize(
    "entry",
    [
        "flags.--cache-type-k",
        "flags.--ctx-size",  # set, and equal: told after the run
        "flags.--cache-typ-*",
        "env.MODE",
        "env.OMP_NUM_THREADS",  # the engine sets it
        "config.kv_dtypo",
        "check.gsm8k.nothing",
        "version",
        "expect.kv_dtype",
        "flags.",
    ],
)
def test_what_cannot_be_known_before_the_run_is_left(tmp_path: Path, entry: str) -> None:
    text = SCENARIO.format(lane=LANE, entry=f'"{entry}"')
    assert load_text(tmp_path, text).pairs["p"].may_differ == (entry,)


def test_lanes_with_several_servers_carry_the_role_in_front(tmp_path: Path) -> None:
    assert problems_of(tmp_path, PD.format(entry="prefill.flags.--x")) == []
    (found,) = problems_of(tmp_path, PD.format(entry="flags.--x"))
    assert found.endswith("neither lane sets `flags.--x`. Did you mean `prefill.flags.--x`?")


def test_a_lane_that_is_not_run_keeps_its_pair_quiet(tmp_path: Path) -> None:
    text = SCENARIO.format(lane=LANE, entry="flags.--cache-typ-k")
    assert problems_of(tmp_path, text, lanes=["a"]) == []


def test_equal_sentences_are_one_with_all_lanes() -> None:
    found = [("a", "x"), ("a", "y"), ("b", "x"), ("a", "x"), *((f"l{n}", "z") for n in range(10))]
    assert by_lane(found) == (
        "lanes `a`, `b`: x",
        "lane `a`: y",
        "lanes `l0`, `l1`, `l2`, `l3`, `l4`, `l5`, `l6`, `l7` and 2 more: z",
    )
    assert by_lane([]) == ()
