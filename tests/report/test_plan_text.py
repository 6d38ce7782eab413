"""The plan as people read it."""

from typing import Any

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


def test_a_command_is_shown_as_it_is() -> None:
    said = render_plan("x", _plan(["python", "-m", "lm_eval"]))
    assert "no command" not in said
    assert "      python \\\n      -m lm_eval\n" in said
