"""Whole scenarios: what is made of them, all that can be wrong with them, and finding them."""

import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import harness
from harness.errors import ConfigError
from harness.scenario.load import available, find
from harness.scenario.model import Pair, Scenario
from tests.scenario.tools import FILES, LANE, attempt, load_file, load_text, problems_of

NOWHERE = "but there is no such file beside this one."
END = "'<stream end>' while parsing a flow node."
EXAMPLE = FILES / "example.yaml"


def test_the_example() -> None:
    scenario = load_file(EXAMPLE)
    assert (scenario.name, scenario.description) == ("example", "BF16 KV against q8_0 KV")
    assert scenario.source == EXAMPLE.resolve()
    assert scenario.params == {"MODEL_DIR": "/models/example", "KV": "bf16"}
    assert list(scenario.lanes) == ["kv-bf16", "kv-q8_0", "pd"]
    lane = scenario.lanes["kv-q8_0"]
    assert (lane.name, lane.engine, lane.description, lane.required) == ("kv-q8_0", "llamacpp", "", True)
    assert (lane.model.pull, lane.model.path, lane.model.served_name) == ("smollm2-135m", None, "smol")
    assert lane.checks == {"gsm8k": {"num_concurrent": 4}}
    (server,) = lane.servers
    assert (server.role, server.gpus, server.cpus) == ("normal", 0, 2)
    assert server.flags == {
        "--ctx-size": "4096",
        "--flash-attn": "on",
        "--mem-fraction": "0.90",
        "--cache-type-k": "q8_0",
    }
    assert server.env == {"LOADWORKER": "8", "DEBUG": "false"}
    assert server.expect == {"kv_dtype": "q8_0"}
    assert scenario.pairs == {
        "q8": Pair(
            name="q8",
            baseline="kv-bf16",
            candidate="kv-q8_0",
            may_differ=("flags.--cache-type-*", "expect.kv_dtype"),
            max_drop_pp=1.0,
        )
    }


def test_servers_are_laid_over_their_lane() -> None:
    lane = load_file(EXAMPLE).lanes["pd"]
    assert lane.model.path == "/models/example/weights"
    assert [server.role for server in lane.servers] == ["prefill", "decode", "master"]
    assert [server.flags for server in lane.servers] == [
        {"--tp": "4", "--page_size": "32"},
        {"--tp": "4", "--page_size": "16"},
        {},
    ]
    debug = {"LIGHTLLM_LOG_LEVEL": "debug"}
    assert [server.env for server in lane.servers] == [debug, {}, debug]
    assert [server.gpus for server in lane.servers] == [4, 2, 0]
    assert lane.checks == {"gsm8k": {}, "twice": {"kind": "gsm8k", "limit": 5}}
    assert (lane.timeouts.start_s, lane.timeouts.stop_s) == (60, 30)
    assert lane.required is False
    assert lane.requires == {"gpu": "H100", "count": 8}


def test_it_survives_a_round_trip() -> None:
    scenario = load_file(EXAMPLE)
    assert Scenario.model_validate_json(scenario.model_dump_json()) == scenario


def test_lane_selection_keeps_pairs_whose_lanes_are_kept() -> None:
    assert list(load_file(EXAMPLE, lanes=["kv-bf16", "kv-q8_0"]).pairs) == ["q8"]
    chosen = load_file(EXAMPLE, lanes=["pd", "kv-bf16"])
    assert list(chosen.lanes) == ["kv-bf16", "pd"]
    assert chosen.left_out == ("kv-q8_0",)
    assert chosen.pairs == {}


def test_lane_selection_of_an_unknown_lane(tmp_path: Path) -> None:
    text = f"lanes: {{kv-a: {{{LANE}}}, _t: {{}}}}"
    assert problems_of(tmp_path, text, lanes=["kv-b", "_t"]) == [
        "--lane kv-b: there is no such lane. Did you mean `kv-a`?",
        "--lane _t: there is no such lane. Known: kv-a.",
    ]


LANES = f"""\
lanes:
  a: {{{LANE}, checks: {{gsm8k: }}}}
  b: {{{LANE}, checks: {{gsm8k: , pause-resume: }}}}
"""


@pytest.mark.parametrize(
    ("rest", "problem"),
    [
        # the top level
        ("lanez: {}", "4:1: Unknown key `lanez` in a scenario. Did you mean `lanes`?"),
        ("zzz: 1", "4:1: Unknown key `zzz` in a scenario. Known: name, description, extends, params, lanes"),
        ("description: 2024", "4:14: `description`: expected text, got `2024`; put it in quotes."),
        ("description: [x]", "4:14: `description`: expected text, got a list."),
        ("name: a/b", "scenario name `a/b` is no safe directory name"),
        ("params: [x]", "4:9: `params`: expected a mapping, got a list."),
        ("params: {a-b: x}", "4:10: `params.a-b`: no name for a variable"),
        ("params: {A: [x]}", "4:13: `params.A`: expected text, got a list."),
        ("params: {A: }", "4:10: `params.A` has no value; write '' for an empty text, null takes out"),
        ("extends: 5.5", "4:10: extends `5.5`, but there is no such file beside this one."),
        # pairs
        ("pairs: x", "4:8: `pairs`: expected a mapping, got `x`."),
        ("pairs: {p: x}", "4:12: pair `p`: expected a mapping."),
        ("pairs: {p: {candidate: a}}", "4:9: `baseline` is missing in a pair."),
        ("pairs: {p: {baseline: a, candidate: c}}", "4:37: `candidate`: there is no lane `c`."),
        (
            "pairs: {p: {baseline: ax, candidate: b}}",
            "4:23: `baseline`: there is no lane `ax`. Did you mean `a`?",
        ),
        ("pairs: {p: {baseline: a, candidate: a}}", "4:37: pair `p` compares a lane with itself."),
        (
            "pairs: {p: {baseline: a, candidate: b, check: pause-resume}}",
            "4:47: lane `a` has no check `pause-resume`. Known: gsm8k.",
        ),
        (
            "pairs: {p: {baseline: a, candidate: b, check: gsm8}}",
            "4:47: lane `b` has no check `gsm8`. Did you mean `gsm8k`?",
        ),
        (
            "pairs: {p: {baseline: a, candidate: b, max_drop: 1}}",
            "4:40: Unknown key `max_drop` in a pair. Did you",
        ),
        (
            "pairs: {p: {baseline: a, candidate: b, max_drop_pp: -1}}",
            "`max_drop_pp`: must be at least 0, got `-1`.",
        ),
        (
            "pairs: {p: {baseline: a, candidate: b, max_drop_pp: .nan}}",
            "`max_drop_pp`: expected a finite number",
        ),
        (
            "pairs: {p: {baseline: a, candidate: b, max_drop_pp: 100}}",
            "`max_drop_pp`: must be less than 100, got `100`.",
        ),
        ("pairs: {p: {baseline: a, candidate: b, max_drop_pp: true}}", "expected a number, got `true`."),
        ("pairs: {p: {baseline: a, candidate: b, may_differ: x}}", "`may_differ`: expected a list, got `x`."),
        ("pairs: {p: {baseline: [a], candidate: b}}", "4:23: `baseline`: expected text, got a list."),
        ("pairs: {p/q: {baseline: a, candidate: b}}", "4:9: pair name `p/q` is no safe directory name"),
        (
            "pairs: {p: {baseline: a, candidate: b}, p: {}}",
            "4:41: `p` is given twice; the first is on line 4.",
        ),
    ],
)
def test_problems_beside_the_lanes(tmp_path: Path, rest: str, problem: str) -> None:
    assert problems_of(tmp_path, LANES) == []
    found = problems_of(tmp_path, f"{LANES}{rest}\n")
    assert any(problem in text for text in found), found


@pytest.mark.parametrize(
    ("lane", "problem"),
    [
        ("flgas: {}", "4:5: Unknown key `flgas` in a lane. Did you mean `flags`?"),
        ("engine: vlm", "4:13: there is no engine `vlm`. Did you mean `vllm`?"),
        ("engine: [vllm]", "4:13: `engine`: expected text, got a list."),
        ("engine: null", "2:3: lane `a` has no `engine`; there are lightllm, llamacpp, sglang, vllm."),
        ("engine: ''", "2:3: lane `a` has no `engine`"),
        ("model: {served_name: x}", "4:12: `model` needs either `path` or `pull`: there is neither."),
        ("model: {path: x, pull: y}", "4:12: `model` needs either `path` or `pull`: not both"),
        ("model: {path: ''}", "4:12: `model` needs either `path` or `pull`: there is neither."),
        ("model: {pul: x}", "4:13: Unknown key `pul` in `model` of a lane. Did you mean `pull`?"),
        ("model: x", "4:12: `model`: expected a mapping, got `x`."),
        ("model: null", "2:3: lane `a` has no `model`."),
        ('model: {path: "x\\0"}', "4:19: `model.path`: contains a line break or NUL character"),
        ("python: 3.11", "4:13: `python`: expected text, got `3.11`; put it in quotes."),
        ("gpus: four", "4:11: `gpus`: expected a whole number, got `four`."),
        ("gpus: 1.5", "4:11: `gpus`: expected a whole number, got `1.5`."),
        ("gpus: true", "4:11: `gpus`: expected a number, got `true`."),
        ("gpus: -1", "4:11: `gpus`: must be at least 0, got `-1`."),
        ("gpus: [1]", "4:11: `gpus`: expected a whole number, got a list."),
        ("cpus: 0", "4:11: `cpus`: must be at least 1, got `0`."),
        ("required: maybe", "4:15: `required`: expected `true` or `false`, got `maybe`."),
        ("requires: [x]", "4:15: `requires`: expected a mapping, got a list."),
        ("flags: [--x]", "4:12: `flags`: expected a mapping, got a list."),
        ("flags: {--x: {a: b}}", "4:18: `flags.--x`: expected text, a number, `true`, `false`, or a list"),
        ("flags: {--x: [[a]]}", "4:18: `flags.--x`: expected text, a number"),
        ("flags: {--x: [null]}", "4:18: `flags.--x`: expected text, a number"),
        ("flags: {--x: []}", "4:18: `flags.--x`: an empty list says nothing"),
        ("flags: {--x: }", "4:13: `flags.--x` has no value; `true` is a bare flag, null takes out"),
        ('flags: {--x: "a\\nb"}', "4:18: `flags.--x`: contains a line break or NUL character"),
        ('flags: {--x: "a\\0b"}', "4:18: `flags.--x`: contains a line break or NUL character"),
        ('flags: {--x: [ok, "\\r"]}', "4:18: `flags.--x`: contains a line break or NUL character"),
        ('flags: {"--x\\n": 1}', "4:13: `flags.--x\\n`: contains a line break or NUL character"),
        ("env: {A: [x]}", "4:14: `env.A`: expected text, got a list."),
        ("env: {A-B: x}", "4:11: `env.A-B`: no name for a variable"),
        ("env: {http_proxy: }", "4:11: `env.http_proxy` has no value; write '' for an empty text"),
        ('env: {A: "x\\0"}', "4:14: `env.A`: contains a line break or NUL character"),
        ("expect: {a: {b: c}}", "4:17: `expect.a`: expected text, a number, `true` or `false`."),
        ("expect: {kv_dtype: }", "4:14: `expect.kv_dtype` has no value"),
        ("servers: {}", "4:14: `servers`: expected a list, got a mapping."),
        (
            "servers: []",
            "4:14: `servers`: expected one normal server, or prefill, decode and master (or router), got",
        ),
        (
            "servers: [{role: prefil}]",
            "4:22: `servers.0.role`: `prefil` is no choice here. Did you mean `prefill`?",
        ),
        ("servers: [{rle: x}]", "4:16: Unknown key `rle` in `servers.0` of a lane. Did you mean `role`?"),
        ("servers: [{}, {}]", "`servers`: expected one normal server"),
        ("servers: [{role: prefill}, {role: decode}]", "(or router), got decode, prefill."),
        ("servers: [{role: prefill}, {role: decode}, {}]", "(or router), got decode, normal, prefill."),
        ("servers: [{env: {A: }}]", "4:22: `env.A` has no value"),
        ("servers: [{gpus: x}]", "4:22: `servers.0.gpus`: expected a whole number, got `x`."),
        (
            "timeouts: {start: 1}",
            "4:16: Unknown key `start` in `timeouts` of a lane. Did you mean `start_s`?",
        ),
        ("timeouts: {start_s: 0}", "4:25: `timeouts.start_s`: must be more than 0, got `0`."),
        ("timeouts: {start_s: .inf}", "4:25: `timeouts.start_s`: expected a finite number, got `.inf`."),
        ("timeouts: {start_s: 1e300}", "4:25: `timeouts.start_s`: must be at most 604800, got `1e300`."),
        ("timeouts: {request_s: 604801}", "`timeouts.request_s`: must be at most 604800, got `604801`."),
        ("timeouts: {start_s: 1 h}", "4:25: `timeouts.start_s`: expected a number, got `1 h`."),
        ("checks: {gsm8kk: }", "4:14: there is no check `gsm8kk`. Did you mean `gsm8k`?"),
        ("checks: {x: {kind: gsm}}", "4:24: there is no check `gsm`. Did you mean `gsm8k`?"),
        ("checks: {x: {kind: [gsm8k]}}", "4:24: `kind`: expected text, got a list."),
        (
            "checks: {gsm8k: {num_concurent: 1}}",
            "4:22: Unknown key `num_concurent` in check `gsm8k`. Did you mean",
        ),
        ("checks: {x: {kind: gsm8k, limit: 0}}", "4:38: `limit`: must be at least 1, got `0`."),
        ("checks: {gsm8k: {limit: true}}", "4:29: `limit` of check `gsm8k`: expected a number, got `true`."),
        ("checks: {gsm8k: {min_stop: false}}", "expected a number, got `false`."),
        ("checks: {gsm8k: {limit: x}}", "4:29: `limit`: expected a whole number, got `x`."),
        ("checks: {gsm8k: {dataset: 5}}", "4:31: `dataset`: expected text, got `5`; put it in quotes."),
        (
            "checks: {pause-resume: {round: 5}}",
            "Unknown key `round` in check `pause-resume`. Did you mean `rounds`?",
        ),
        ("checks: {gsm8k: 5}", "4:21: `checks.gsm8k`: expected a mapping, got `5`."),
        ("checks: {a/b: {kind: gsm8k}}", "4:14: check name `a/b` is no safe directory name"),
        ("checks: {ready: {kind: gsm8k}}", "4:14: check name `ready` is taken by a folder or a phase"),
        ("checks: {Scratch: {kind: gsm8k}}", "4:14: check name `Scratch` is taken by a folder or a phase"),
        ("description: [x]", "4:18: `description`: expected text, got a list."),
    ],
)
def test_problems_in_a_lane(tmp_path: Path, lane: str, problem: str) -> None:
    needed = ["engine: vllm", "model: {pull: x}", "description: x"]
    others = [text for text in needed if text.split(":")[0] != lane.split(":")[0]]
    text = "lanes:\n  a:\n    required: true\n    " + "\n    ".join([lane, *others])
    if lane.startswith("required"):
        text = text.replace("    required: true\n", "    cpus: 1\n", 1)
    found = problems_of(tmp_path, text)
    assert any(problem in sentence for sentence in found), found
    assert len(found) == 1, found


def test_all_problems_are_told_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = """\
descripton: x
lanes:
  a: {engine: vlm, model: {pull: x}, gpus: four}
  b: {extends: aa}
  c: {engine: vllm, flags: {--x: }}
pairs:
  p: {baseline: a, candidate: a, max_drop_pp: -3}
"""
    found = problems_of(tmp_path, text, "lanes.c.gpu=1")
    assert [sentence.split(" ")[0] for sentence in found] == [
        "--set",
        "--set",  # lane c, last touched there, has no model
        "test.yaml:1:1:",
        "test.yaml:3:15:",
        "test.yaml:3:44:",
        "test.yaml:4:16:",
        "test.yaml:5:29:",
        "test.yaml:7:31:",
        "test.yaml:7:47:",
    ]


def test_the_error_as_a_person_sees_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_text(tmp_path, "lanes:\n  a: {engine: vlm}\n")
    path = tmp_path / "test.yaml"
    assert str(caught.value) == (
        f"scenario `{path}` has 2 problems; nothing was started.\n"
        f"  - {path}:2:3: lane `a` has no `model`.\n"
        f"  - {path}:2:15: there is no engine `vlm`. Did you mean `vllm`?"
    )


def test_lanes_of_a_matrix_share_their_problem(tmp_path: Path) -> None:
    text = "lanes:\n  kv-{kv}: {matrix: {kv: [a, b, c]}, flgas: {}}\n"
    assert problems_of(tmp_path, text) == [
        "test.yaml:2:3: lane `kv-{kv}` has no `model`.",
        "test.yaml:2:3: lane `kv-{kv}` has no `engine`; there are lightllm, llamacpp, sglang, vllm.",
        "test.yaml:2:38: Unknown key `flgas` in a lane. Did you mean `flags`?",
    ]
    text = "lanes:\n  kv-{kv}: {matrix: {kv: [a, b, c]}}\n"
    assert problems_of(tmp_path, text) == [
        "test.yaml:2:3: lane `kv-{kv}` has no `model`.",
        "test.yaml:2:3: lane `kv-{kv}` has no `engine`; there are lightllm, llamacpp, sglang, vllm.",
    ]


def test_a_bad_value_of_a_pair_hides_no_other(tmp_path: Path) -> None:
    text = f"{LANES}pairs: {{p: {{baseline: ax, candidate: b, check: gsm8, max_drop_pp: 100}}}}\n"
    assert problems_of(tmp_path, text) == [
        "test.yaml:4:23: `baseline`: there is no lane `ax`. Did you mean `a`?",
        "test.yaml:4:48: lane `b` has no check `gsm8`. Did you mean `gsm8k`?",
        "test.yaml:4:67: `max_drop_pp`: must be less than 100, got `100`.",
    ]


def test_problems_of_sound_lanes_are_told_with_those_of_the_file(tmp_path: Path) -> None:
    seen: list[list[str]] = []

    def flags(scenario: Scenario) -> tuple[str, ...]:
        seen.append(list(scenario.lanes))
        return ("lane `a`: no such flag",)

    def found(text: str) -> tuple[str, ...]:
        file = tmp_path / "test.yaml"
        file.write_text(text, encoding="utf-8")
        try:
            load_file(file, more_problems=flags)
        except ConfigError as error:
            return error.problems
        return ()

    bad_pair = "pairs: {p: {baseline: a, candidate: b, max_drop_pp: 100}}\n"
    texts = found(f"{LANES}{bad_pair}")
    assert len(texts) == 2
    assert "max_drop_pp" in texts[0]
    assert texts[1] == "lane `a`: no such flag"
    # What is wrong in a lane keeps that lane out, and no other; twice the same is not once right.
    broken = "  m-{k}: {matrix: {k: [x, y]}, engine: vlm, model: {pull: smol}}\n"
    assert len(found(f"{LANES}{broken}")) == 2
    assert seen == [["a", "b"], ["a", "b"]]
    assert found(LANES) == ()  # nothing wrong: who asked makes the plan himself
    assert len(seen) == 2


def test_thousands_of_problems_are_cut_and_quick(tmp_path: Path) -> None:
    began = time.monotonic()
    found = problems_of(tmp_path, "lanes:\n  a:\n" + "".join(f"    flagz{i}: 1\n" for i in range(4000)))
    assert len(found) == 101
    assert found[-1].startswith("... and ")
    assert time.monotonic() - began < 20


def test_places_of_extended_files(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "_base.yaml").write_text(f"lanes:\n  _t: {{{LANE}}}\n  x:\n    gpus: many\n")
    found = problems_of(tmp_path, "extends: [parts/_base.yaml]\nlanes: {x: {extends: _t}}\n")
    assert found == ["parts/_base.yaml:4:11: `gpus`: expected a whole number, got `many`."]


def test_extends_is_relative_deep_and_later_wins(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "_a.yaml").write_text(
        "extends: _b.yaml\nname: no\nlanes: {x: {gpus: 1, cpus: 1}}\n"
    )
    (tmp_path / "parts" / "_b.yaml").write_text(f"lanes: {{x: {{{LANE}, gpus: 7, env: {{A: b}}}}}}\n")
    (tmp_path / "_c.yaml").write_text("lanes: {x: {cpus: 3}}\n")
    scenario = load_text(tmp_path, "extends: [parts/_a.yaml, _c.yaml]\nlanes: {x: {env: {B: own}}}\n")
    server = scenario.lanes["x"].servers[0]
    assert (scenario.name, server.gpus, server.cpus, server.env) == ("test", 1, 3, {"A": "b", "B": "own"})


def test_extends_that_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "_base.yaml").write_text("extends: test.yaml\n")
    (tmp_path / "_broken.yaml").write_text("lanes: [\n")
    text = 'extends:\n  - _bas.yaml\n  - _base.yaml\n  - _broken.yaml\n  - "a\\0b"\n  - "."\n'
    assert problems_of(tmp_path, text) == [
        f"test.yaml:2:5: extends `_bas.yaml`, {NOWHERE} Did you mean `_base.yaml`?",
        f"test.yaml:5:5: extends `a\\x00b`, {NOWHERE}",
        f"test.yaml:6:5: extends `.`, {NOWHERE}",
        "_base.yaml:1:10: files extend one another in a circle: test.yaml -> _base.yaml -> test.yaml.",
        f"_broken.yaml:2:1: not valid YAML: expected the node content, but found {END}",
    ]


def test_files_that_extend_one_another_many_times_are_read_once(tmp_path: Path) -> None:
    for i in range(12):
        (tmp_path / f"_{i}.yaml").write_text(f"extends: [{', '.join([f'_{i + 1}.yaml'] * 8)}]\n")
    (tmp_path / "_12.yaml").write_text(LANES)
    assert list(load_text(tmp_path, "extends: _0.yaml\n").lanes) == ["a", "b"]


def test_a_long_chain_of_files_ends_in_a_problem(tmp_path: Path) -> None:
    for i in range(100):
        (tmp_path / f"_{i}.yaml").write_text(f"extends: _{i + 1}.yaml\n")
    assert "more than 16 files extend one another" in problems_of(tmp_path, "extends: _0.yaml\n")[0]


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The user's ./scenarios and the shipped ones."""
    package = tmp_path / "site" / "harness"
    (package / "scenarios").mkdir(parents=True)
    (tmp_path / "home" / "scenarios").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "home")
    monkeypatch.setattr(harness, "__file__", str(package / "__init__.py"))
    return Path("scenarios"), package / "scenarios"


def test_find_looks_beside_the_user_first(folders: tuple[Path, Path]) -> None:
    own, shipped = folders
    (own / "both.yaml").write_text(LANES)
    (shipped / "both.yaml").write_text(LANES)
    (shipped / "quickstart.yaml").write_text(LANES)
    assert find("both") == own / "both.yaml"
    assert find("quickstart") == shipped / "quickstart.yaml"
    assert find("scenarios/both.yaml") == own / "both.yaml"
    assert find(str(shipped / "both.yaml")) == shipped / "both.yaml"


def test_find_in_a_checkout(folders: tuple[Path, Path]) -> None:
    _, shipped = folders
    shipped.rmdir()
    checkout = shipped.parent.parent / "scenarios"
    checkout.mkdir()
    (checkout / "quickstart.yaml").write_text(LANES)
    assert find("quickstart") == checkout / "quickstart.yaml"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("quikstart", "there is no scenario `quikstart`. Did you mean `quickstart`?"),
        ("quikstart.yaml", "there is no scenario file `quikstart.yaml`. Did you mean `quickstart`?"),
        ("zzz", "there is no scenario `zzz`."),
        ("", "there is no scenario ``."),
        (".", "there is no scenario `.`."),
        ("a\0b", "there is no scenario `a\\x00b`."),
        ("x" * 5000, "there is no scenario `xxx"),
        ("/nowhere/x.yaml", "there is no scenario file `/nowhere/x.yaml`."),
        ("\udcff", "there is no scenario `\\udcff`."),
        ("scenarios/", "there is no scenario file `scenarios/`."),
    ],
)
def test_find_of_unknown_names(folders: tuple[Path, Path], name: str, message: str) -> None:
    own, shipped = folders
    (own / "quickstart.yaml").write_text(LANES)
    (shipped / "cpu-vllm.yaml").write_text(LANES)
    with pytest.raises(ConfigError) as caught:
        find(name)
    assert str(caught.value).startswith(message)
    assert "the scenarios are: cpu-vllm, quickstart" in str(caught.value)
    str(caught.value).encode()


def test_available_lists_broken_files_with_their_error(folders: tuple[Path, Path]) -> None:
    own, shipped = folders
    (own / "good.yaml").write_text(f"description: >\n  two\n  lines\n{LANES}")
    (own / "_part.yaml").write_text(LANES)
    (own / "broken.yaml").write_text("lanes: {a: 1, a: 2}\n")
    (own / "worse.yaml").write_bytes(b"\xff")
    (own / "orphan.yaml").write_text("extends: nope.yaml\n")
    (own / "notes.txt").write_text("x")
    (own / "folder.yaml").mkdir()
    (shipped / "good.yaml").write_text("description: hidden\n")
    (shipped / "bare.yaml").write_text(LANES)
    listed = {name: description for name, description, _ in available()}
    assert listed == {
        "bare": "",
        "broken": "broken: scenarios/broken.yaml:1:15: `a` is given twice; the first is on line 1.",
        "folder": "broken: scenarios/folder.yaml: is not a file that can be read.",
        "good": "two lines",
        "orphan": f"broken: scenarios/orphan.yaml:1:10: extends `nope.yaml`, {NOWHERE}",
        "worse": "broken: scenarios/worse.yaml:1:1: is not UTF-8 text here.",
    }
    assert list(listed) == sorted(listed)


# Anything at all gives a Scenario or a ConfigError: whole bytes, and slips of the pen in a good file.
ANYTHING = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
MARKS = [*"{}[]'\"#%&*?|>-:_\\@`\t\x85\u2028\x00", "\n  ", "- ", ": ", "&a ", "*a", "!!str ", "<<: ", "---\n"]
FILLS = ["${", "${A}", "${A:-x}", "{kv}", "$$", "null", "~", "true", "false", "1", ".inf", "1e999"]
KEYS = ["extends: ", "lanes: ", "matrix: ", "servers: ", "_common"]
TOKENS = st.sampled_from([*MARKS, *FILLS, *KEYS])
GOOD = EXAMPLE.read_text().replace("extends: _base.yaml\n", "") + (FILES / "_base.yaml").read_text().replace(
    "description: never inherited\nparams: {MODEL_DIR: /models/base, KV: bf16}\nlanes:\n", "more:\n"
)


def survives(folder: Path, text: str | bytes, *overrides: str) -> None:
    outcome = attempt(folder, text, *overrides, environ={"A": "a"})
    if isinstance(outcome, ConfigError):
        assert outcome.problems
        str(outcome).encode()
    else:
        assert outcome.lanes
        outcome.model_dump_json()


@ANYTHING
@given(raw=st.binary(max_size=200))
def test_any_bytes(tmp_path: Path, raw: bytes) -> None:
    survives(tmp_path, raw)


@ANYTHING
@given(text=st.lists(TOKENS | st.text(max_size=5), max_size=30).map("".join))
def test_any_yaml_like_text(tmp_path: Path, text: str) -> None:
    survives(tmp_path, text.encode("utf-8", "surrogatepass"))


@ANYTHING
@given(data=st.data())
def test_any_slip_in_a_good_file(tmp_path: Path, data: st.DataObject) -> None:
    text = GOOD
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        gone = data.draw(st.integers(0, 12))
        text = text[:at] + data.draw(TOKENS | st.just("")) + text[at + gone :]
    survives(tmp_path, text)


@ANYTHING
@given(
    override=st.lists(
        st.sampled_from(
            ["lanes", "params", "pairs", "q8", "pd", "_common", "kv-q8_0", "servers", "0", "flags"]
        )
        | st.sampled_from(
            ["gpus", "checks", "matrix", "extends", "name", '"a.b"', "'", ".", "=", "{", "null", "[1]"]
        )
        | st.text(max_size=3),
        max_size=6,
    ).map(".".join),
    value=st.sampled_from(["", "1", "null", "false", "{a: b}", "[1]", "x", "${A}", "{kv}", "[", "\0"]),
)
def test_any_override(tmp_path: Path, override: str, value: str) -> None:
    text = EXAMPLE.read_text().replace("_base.yaml", str(FILES / "_base.yaml"))
    survives(tmp_path, text, f"{override}={value}")
