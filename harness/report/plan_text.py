"""`harness plan` for people: every command ready to paste."""

import json
import shlex
from collections.abc import Sequence
from typing import Any

from harness.report.text import safe


def render_plan(name: str, plan: dict[str, Any]) -> str:
    """The plan's JSON as text."""
    counts = f"{len(plan['lanes'])} lane(s), {len(plan['pairs'])} pair(s)"
    lines = [f"scenario {safe(name)}: {counts}; nothing is started"]
    common = _common([server["env"] for lane in plan["lanes"].values() for server in lane["servers"]])
    lines += _once(common)
    for lane, planned in plan["lanes"].items():
        lines += ["", f"lane {safe(lane)}: {planned['gpus']} GPU(s)"]
        if planned["requires"]:
            lines.append(f"  requires {safe(_written(planned['requires']))}")
        if planned["skip"]:
            lines.append(f"  will be SKIPPED: {safe(planned['skip'])}")
        if planned["taken_over_from"]:
            lines.append(f"  taken over from {safe(planned['taken_over_from'])}: not run again")
        lines += (f"  not taken over: {safe(reason)}" for reason in planned["not_taken_over"])
        for server in planned["servers"]:
            ports = ", ".join(f"{name} {port}" for name, port in server["ports"].items())
            lines += [
                f"  {server['role']} ({server['engine']}), ports {ports}, cores {server['cpus'] or 'any'}"
            ]
            own = {key: value for key, value in server["env"].items() if key not in common}
            lines += _command([*_settings(own), *map(shlex.quote, server["argv"])])
        for check, planned_check in planned["checks"].items():
            lines.append(f"  check {safe(check)}")
            if planned_check["argv"] is None:
                why = _why(plan.get("problems", ()), lane, check)
                lines.append(f"      no command: {safe(why, 1000)}")
            elif planned_check["argv"]:
                lines += _command([shlex.quote(word) for word in planned_check["argv"]])
            else:
                given = {name: value for name, value in planned_check["params"].items() if value is not None}
                told = ", ".join(f"{name} {_written(value)}" for name, value in given.items())
                lines.append(f"      asked by the harness itself: {safe(told, 1000)}")
    lines += _schedule(plan["schedule"])
    for pair in plan["pairs"]:
        margin = pair["max_drop_pp"]
        rule = (
            f"largest accepted drop {margin} pp" if margin is not None else "no threshold: REPORTED at best"
        )
        sides = f"pair {pair['name']}: {pair['candidate']} against {pair['baseline']} on {pair['check']}"
        may_differ = ", ".join(pair["may_differ"]) or "nothing"
        lines += ["", safe(sides), f"  {rule}; may differ: {safe(may_differ, 4000)}"]
    return "\n".join(lines) + "\n"


def _common(environments: Sequence[dict[str, str]]) -> dict[str, str]:
    """What is the same for all servers; nothing where there is but one, whose command then has all. GPUs stay
    with each command: exported, they would limit a harness that is run from the same shell."""
    if len(environments) < 2:
        return {}
    first, *others = environments
    same = {key: value for key, value in first.items() if all(one.get(key) == value for one in others)}
    return {key: value for key, value in same.items() if not key.startswith("CUDA_")}


def _once(common: dict[str, str]) -> list[str]:
    if not common:
        return []
    title = "environment of every server: paste this once, before any of their commands"
    return ["", title, *_command(["export", *_settings(common)])]


def _settings(environment: dict[str, str]) -> list[str]:
    return [f"{key}={shlex.quote(value)}" for key, value in environment.items()]


def _written(value: Any) -> str:
    """As a scenario would have it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_written(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_written, value))}]"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, str) else json.dumps(value)


def _why(problems: Sequence[str], lane: str, check: str) -> str:
    """What the plan says is wrong with a check that has no command."""
    for problem in problems:
        lanes, found, reason = problem.partition(f": check `{check}`: ")
        if found and f"`{lane}`" in lanes:
            return reason
    return "something that it needs is not on this machine"


def _schedule(schedule: dict[str, Any] | None) -> list[str]:
    if schedule is None:
        return []
    makespan, bound = schedule["makespan_min"], schedule["lower_bound_min"]
    lines = [
        "",
        f"schedule: {makespan:g} min by the lanes' `minutes`; no order can take less than {bound:g} min",
    ]
    lines += (
        f"  {lane['start_min']:6g} - {lane['end_min']:<6g} {safe(lane['lane'])}" for lane in schedule["lanes"]
    )
    return lines


def _command(words: list[str]) -> list[str]:
    """Wrapped at option names, so that a diff of two plans is readable."""
    lines: list[str] = []
    for word in (safe(word, 4000) for word in words):
        if (
            lines
            and not word.startswith("-")
            and lines[-1].lstrip().startswith("-")
            and " " not in lines[-1].strip()
        ):
            lines[-1] += f" {word}"
        else:
            lines.append(f"      {word}")
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]
