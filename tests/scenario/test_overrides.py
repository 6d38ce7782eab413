"""--set KEY=VALUE."""

from pathlib import Path

import pytest

from tests.scenario.tools import FILES, LANE, load_file, load_text, problems_of

EXAMPLE = FILES / "example.yaml"


def test_values_are_laid_over_the_scenario() -> None:
    scenario = load_file(
        EXAMPLE,
        "description=BF16: again #1",
        "lanes._common.cpus=3",
        'lanes.kv-{kv}.flags."--rope.x"=0.50',
        "lanes.kv-{kv}.flags.--flash-attn=off",
        "lanes.kv-{kv}.flags.--ctx-size=null",
        "lanes.kv-{kv}.flags.--list=[1, 2.0]",
        "lanes.kv-{kv}.checks.gsm8k.limit=5",
        "lanes.kv-{kv}.env.EMPTY=",
        "pairs.q8.max_drop_pp=null",
    )
    lane = scenario.lanes["kv-bf16"]
    assert scenario.description == "BF16: again #1"
    assert lane.servers[0].cpus == 3
    assert lane.servers[0].flags == {
        "--rope.x": "0.50",
        "--flash-attn": "off",
        "--mem-fraction": "0.90",
        "--cache-type-k": "bf16",
        "--list": ["1", "2.0"],
    }
    assert lane.servers[0].env["EMPTY"] == ""
    assert lane.checks["gsm8k"] == {"num_concurrent": 4, "limit": 5}
    assert scenario.pairs["q8"].max_drop_pp is None


def test_one_lane_of_a_matrix() -> None:
    scenario = load_file(EXAMPLE, "lanes.kv-q8_0.cpus=7", "lanes.kv-q8_0.flags.--copy='{kv}'")
    assert [scenario.lanes[name].servers[0].cpus for name in ("kv-bf16", "kv-q8_0")] == [2, 7]
    assert scenario.lanes["kv-q8_0"].servers[0].flags["--copy"] == "q8_0"


def test_items_of_a_list() -> None:
    lane = load_file(EXAMPLE, "lanes.pd.servers.1.gpus=1", "lanes.pd.servers.0.flags.--x=1").lanes["pd"]
    assert [server.gpus for server in lane.servers] == [4, 1, 0]
    assert lane.servers[0].flags["--x"] == "1"


def test_items_of_an_inherited_list(tmp_path: Path) -> None:
    text = f"lanes: {{_t: {{{LANE}, servers: [{{gpus: 1}}]}}, a: {{extends: _t}}}}"
    assert load_text(tmp_path, text, "lanes.a.servers.0.gpus=5").lanes["a"].servers[0].gpus == 5


def test_lanes_and_pairs_can_be_taken_out() -> None:
    scenario = load_file(EXAMPLE, "lanes.kv-q8_0=false", "pairs.q8=null")
    assert list(scenario.lanes) == ["kv-bf16", "pd"]
    assert scenario.pairs == {}


def test_a_pair_can_be_put_in() -> None:
    scenario = load_file(EXAMPLE, "pairs.aa={baseline: kv-bf16, candidate: pd}")
    assert scenario.pairs["aa"].candidate == "pd"


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("lanes.a.gpus", "--set lanes.a.gpus: expected KEY=VALUE"),
        ("", "--set : expected KEY=VALUE"),
        ("=1", "--set =1: expected KEY=VALUE"),
        ("a..b=1", "--set a..b=1: expected KEY=VALUE"),
        ('lanes.a.flags."--x=1', "expected KEY=VALUE"),
        ("a." * 1000 + "b=1", "expected KEY=VALUE"),
        ("lane.a.gpus=1", "--set lane.a.gpus=1: Unknown key `lane` in a scenario. Did you mean `lanes`?"),
        ("lanes.aa.gpus=1", "--set lanes.aa.gpus=1: there is no lane `aa`. Did you mean `a`?"),
        ("lanes.b-1.matrix={}", "`extends` and `matrix` cannot be set on a lane that a matrix made."),
        ("lanes.b-1=x", "lane `b-1`: expected a mapping."),
        ("lanes.a.gpu=1", "--set lanes.a.gpu=1: Unknown key `gpu` in a lane. Did you mean `gpus`?"),
        ("lanes.a.gpus=four", "--set lanes.a.gpus=four: `gpus`: expected a whole number, got `four`."),
        ("lanes.a.gpus=[1", "--set lanes.a.gpus=[1:1:3: not valid YAML"),
        ("lanes.a.servers.0.gpus=1", "`servers`: expected a list, got an item of a list that is not there."),
        ("lanes.s.servers.1.gpus=1", "`1` is no item of the list, which has 1, counted from 0."),
        ("lanes.s.servers.x.gpus=1", "`x` is no item of the list"),
        ("pairs.q.check=x", "--set pairs.q.check=x: there is no pair `q`. Did you mean `qq`?"),
        ("extends=x.yaml", "`extends` is followed before --set is looked at"),
        ("lanes=1", "`lanes`: expected a mapping, got `1`."),
        ("params=1", "--set params=1: expected a mapping."),
        ("params.MODLE=1", "no placeholder `${MODLE}` stands in this scenario. Did you mean `MODEL`?"),
        ("params.P=[1]", "`params.P`: expected text, got a list."),
        ("lanes.a.flags.--x=a\nb", "`flags.--x`: contains a line break"),
        ("name=\udcff", "this is not UTF-8 text."),
    ],
)
def test_problems(tmp_path: Path, override: str, problem: str) -> None:
    text = (
        f"params: {{MODEL: m}}\nlanes: {{a: {{{LANE}, checks: {{gsm8k: }}}}, "
        f"b: {{{LANE}, matrix: {{k: [1]}}, checks: {{gsm8k: }}}}, s: {{{LANE}, servers: [{{}}]}}}}\n"
        "pairs: {qq: {baseline: a, candidate: b-1}}\n"
    )
    assert problems_of(tmp_path, text) == []
    found = problems_of(tmp_path, text, override)
    assert any(problem in text for text in found), found
