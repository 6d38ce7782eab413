"""The plan as people read it."""

import os
import subprocess
from typing import Any

import pytest

from harness.report.plan_text import render_plan


def _plan(argv: list[str] | None, *problems: str) -> dict[str, Any]:
    lane = {
        "gpus": 0,
        "requires": {},
        "skip": "",
        "taken_over_from": None,
        "not_taken_over": [],
        "servers": [],
        "checks": {"gsm8k": {"argv": argv, "params": {"lengths": [304]}}},
    }
    return {"lanes": {"a": lane}, "pairs": [], "problems": list(problems), "schedule": None}


def test_a_check_without_a_command_says_why() -> None:
    missing = "GSM8K is not on this machine; set HARNESS_GSM8K_DIR"
    for lanes in ("lane `a`", "lanes `b`, `a`"):
        problems = ("lane `b`: check `gsm8k`: other", f"{lanes}: check `gsm8k`: {missing}")
        assert f"  check gsm8k\n      no command: {missing}\n" in render_plan("x", _plan(None, *problems))
    said = render_plan("x", _plan(None, "lane `b`: check `gsm8k`: other"))
    assert "no command: something that it needs is not on this machine" in said


def test_a_check_without_a_program_shows_its_parameters() -> None:
    assert "asked by the harness itself: lengths [304]" in render_plan("x", _plan([]))


def test_values_are_written_as_a_scenario_has_them() -> None:
    plan = _plan([])
    params = {
        "lengths": (300, 301),
        "tier": False,
        "control": None,
        "evict": "auto",
        "share": 0.7,
        "request_s": 600.0,
    }
    plan["lanes"]["a"]["checks"]["gsm8k"]["params"] = params
    plan["lanes"]["a"]["requires"] = {"gpu": ["hopper", "h20"], "nvlink": True}
    said = render_plan("x", plan)
    assert (
        "asked by the harness itself: lengths [300, 301], tier false, evict auto, share 0.7, request_s 600\n"
        in said
    )
    assert "  requires {gpu: [hopper, h20], nvlink: true}\n" in said


def test_a_command_is_shown_as_it_is() -> None:
    said = render_plan("x", _plan(["python", "-m", "lm_eval"]))
    assert "no command" not in said
    assert "      python \\\n      -m lm_eval\n" in said


def _server(role: str, **env: str) -> dict[str, Any]:
    return {
        "role": role,
        "engine": "lightllm",
        "ports": {"http": 18000},
        "cpus": None,
        "env": env,
        "argv": ["run-it", role],
    }


def _with(*servers: dict[str, Any]) -> dict[str, Any]:
    plan = _plan([])
    plan["lanes"]["a"]["servers"] = list(servers)
    return plan


def test_what_all_servers_have_in_common_is_said_once() -> None:
    shared = {"http_proxy": "", "NAME": "a b", "CUDA_VISIBLE_DEVICES": ""}
    plan = _with(_server("one", **shared, SIDE="1"), _server("two", **shared, SIDE="2", MORE="x"))
    said = render_plan("x", plan)
    assert said.count("http_proxy=''") == said.count("NAME='a b'") == said.count("MORE=x") == 1
    assert (
        "before any of their commands\n      export \\\n      http_proxy='' \\\n      NAME='a b'\n\n" in said
    )
    assert "      CUDA_VISIBLE_DEVICES='' \\\n      SIDE=1 \\\n      run-it" in said
    assert "      CUDA_VISIBLE_DEVICES='' \\\n      SIDE=2 \\\n      MORE=x \\\n      run-it" in said


@pytest.mark.process
def test_the_commands_do_what_they_did_with_all_of_it() -> None:
    """Pasted into one shell, the export first, each server gets what the plan's JSON says."""
    shared = {"SHARED": "it's $HOME", "EMPTY": ""}
    plan = _with(_server("one", **shared, SIDE="1"), _server("two", **shared, SIDE="2"))
    for lane in plan["lanes"].values():
        for server in lane["servers"]:
            server["argv"] = ["env"]
    pasted = "".join(
        line.removeprefix("      ") + "\n"
        for line in render_plan("x", plan).splitlines()
        if line.startswith("      ") and "asked by" not in line
    )
    env = {"PATH": os.environ["PATH"], "EMPTY": "before"}
    out = subprocess.run(["sh", "-c", pasted], env=env, capture_output=True, text=True, check=True).stdout
    assert out.count("SHARED=it's $HOME\n") == out.count("EMPTY=\n") == 2
    assert out.count("SIDE=1\n") == out.count("SIDE=2\n") == 1


def test_one_server_has_all_in_its_command() -> None:
    said = render_plan("x", _with(_server("one", NAME="a")))
    assert "export" not in said
    assert "      NAME=a \\\n      run-it" in said
