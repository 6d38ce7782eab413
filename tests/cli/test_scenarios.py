"""`plan`, `list`, `schema`, `run`: what they promise to people and to scripts, and how they refuse."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import __version__
from tests.cli.conftest import Harness

pytestmark = pytest.mark.process
Write = Callable[..., Path]


def test_help_and_version(harness: Harness) -> None:
    assert harness("--version").out == f"harness {__version__}\n"
    text = harness("--help").out
    for command in (
        "run",
        "plan",
        "list",
        "schema",
        "judge",
        "show",
        "compare",
        "triage",
        "doctor",
        "models",
    ):
        assert command in text


def test_list_names_the_shipped_scenarios(harness: Harness) -> None:
    said = harness("list")
    assert said.code == 0
    assert {"quickstart", "cpu-vllm", "cpu-sglang"} <= {line.split()[0] for line in said.out.splitlines()}


def test_schema_is_a_json_schema(harness: Harness) -> None:
    said = harness("schema")
    assert said.code == 0
    schema = json.loads(said.out)
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert "lanes" in schema["properties"]


def test_plan_for_scripts(harness: Harness, scenario: Write) -> None:
    said = harness("plan", scenario(flags={"--ctx-size": 4096}, env={"HF_TOKEN": "sesame00"}), "--json")
    assert said.code == 0, said.err
    plan = json.loads(said.out)
    assert set(plan) >= {"lanes", "pairs", "problems"}
    assert plan["problems"] == []
    lane = plan["lanes"]["a"]
    assert set(lane) >= {"servers", "gpus", "checks", "requires", "skip"}
    (server,) = lane["servers"]
    assert set(server) >= {"role", "engine", "argv", "env", "ports", "gpus", "cpus"}
    argv = server["argv"]
    assert argv[argv.index("--ctx-size") + 1] == "4096"
    assert str(server["ports"]["http"]) in argv
    assert server["env"]["HF_TOKEN"] == "***"
    assert lane["checks"]["gsm8k"]["argv"][1:3] == ["-m", "lm_eval"]
    assert lane["checks"]["gsm8k"]["params"]["num_concurrent"] == 16
    (pair,) = plan["pairs"]
    assert (pair["baseline"], pair["candidate"], pair["max_drop_pp"]) == ("a", "b", 1.5)
    assert not (Path(server["argv"][0]).parent / "runs").exists()


def test_plan_for_people(harness: Harness, scenario: Write, tmp_path: Path) -> None:
    said = harness("plan", scenario(), "--set", "lanes.a.flags.--ctx-size=512", "--lane", "a")
    assert said.code == 0, said.err
    assert "lane a" in said.out
    assert "lane b" not in said.out
    assert "--ctx-size 512" in said.out
    assert "lm_eval" in said.out
    assert not (tmp_path / "runs").exists()


def test_plan_shows_what_is_wrong_and_refuses(harness: Harness, scenario: Write) -> None:
    file = scenario(flags={"--ctx-sise": 1})
    for arguments in (("plan", file), ("plan", file, "--json"), ("run", file)):
        said = harness(*arguments)
        assert said.code == 2
        assert "--ctx-sise" in said.err
        assert "--ctx-size" in said.err
    assert any(
        "--ctx-sise" in problem for problem in json.loads(harness("plan", file, "--json").out)["problems"]
    )


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ((), "Usage"),
        (("bogus",), "No such command"),
        (("run",), "Missing argument"),
        (("run", "x", "--bogus"), "No such option"),
        (("plan", "quickstrat"), "quickstart"),
        (("plan", "nowhere/at/all.yaml"), "all.yaml"),
        (("plan", "./"), "no scenario file"),
        (("plan", "mine.yaml", "--lane", "c"), "lane"),
        (("plan", "mine.yaml", "--set", "nonsense"), "nonsense"),
        (("plan", "mine.yaml", "--set", "lanes.a.gpuss=4"), "gpus"),
        (("plan", "mine.yaml", "--set", 'lanes.b.flags."--threads"=2'), "flags.--threads is '2' on b"),
        (("models", "pull", "smollm"), "smollm2-135m"),
        (("judge", "nowhere"), "run.json"),
        (("show",), "run.json"),
        (("compare", "a", "b", "--max-drop-pp", "-1"), "max-drop-pp"),
        (("triage", "nowhere.log"), "nowhere.log"),
        (("triage", "mine.yaml", "--engine", "vlm"), "vllm"),
    ],
)
def test_bad_usage_is_exit_2_with_a_hint(
    harness: Harness, scenario: Write, arguments: tuple[str, ...], hint: str
) -> None:
    scenario()
    said = harness(*arguments)
    assert said.code == 2
    assert hint in said.out + said.err


@pytest.mark.parametrize(
    "text",
    [
        b"lanes: [unclosed",
        b"lanes:\n\t- tab",
        b"",
        b"just words",
        b"- a\n- b",
        b"lanes: {}",
        b"\xff\xfe\x00garbage",
        b"a: &a [*a]",
        b"lanes: {a: {engine: vllm, model: {path: \x1b[31m}}}",
        b"[" * 3000,
    ],
)
def test_a_broken_file_is_exit_2_and_named(harness: Harness, tmp_path: Path, text: bytes) -> None:
    (tmp_path / "broken.yaml").write_bytes(text)
    said = harness("plan", "broken.yaml")
    assert said.code == 2
    assert "broken.yaml" in said.err
    assert said.out == ""


def test_escape_codes_of_a_file_do_not_reach_the_terminal(harness: Harness, scenario: Write) -> None:
    """The `harness` fixture looks at every output."""
    said = harness("plan", scenario(flags={"--\x1b[31mred": 1}))
    assert said.code == 2
    assert "\\u001b" in said.err


def test_a_simulated_scenario_with_a_problem_tells_only_that(harness: Harness) -> None:
    """Not the model and the network card, which the simulator does without."""
    said = harness("plan", "glm53-fp8kv", "--simulate", "--set", "lanes.bf16.gpuss=3")
    assert said.code == 2
    assert "Did you mean `gpus`?" in said.err
    assert "there is no model" not in said.err
    assert "ends itself on 127.0.0.1" not in said.err


def test_a_lane_without_its_control_says_which_to_add(harness: Harness) -> None:
    said = harness("plan", "cpu-boundary", "--lane", "host-cache")
    assert said.code == 2
    assert "`control: host-cache-off/cpu-reload` names a lane that was not chosen" in said.err
    assert "add --lane host-cache-off" in said.err
