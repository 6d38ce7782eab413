"""`harness plan` for people: every command ready to paste."""

import shlex
from typing import Any

from harness.report.text import safe


def render_plan(name: str, plan: dict[str, Any]) -> str:
    """The plan's JSON as text."""
    counts = f"{len(plan['lanes'])} lane(s), {len(plan['pairs'])} pair(s)"
    lines = [f"scenario {safe(name)}: {counts}; nothing is started"]
    for lane, planned in plan["lanes"].items():
        lines += ["", f"lane {safe(lane)}: {planned['gpus']} GPU(s)"]
        if planned["requires"]:
            lines.append(f"  requires {safe(str(planned['requires']))}")
        if planned["skip"]:
            lines.append(f"  will be SKIPPED: {safe(planned['skip'])}")
        for server in planned["servers"]:
            ports = ", ".join(f"{name} {port}" for name, port in server["ports"].items())
            lines += [
                f"  {server['role']} ({server['engine']}), ports {ports}, cores {server['cpus'] or 'any'}"
            ]
            words = [f"{key}={shlex.quote(value)}" for key, value in server["env"].items()]
            lines += _command([*words, *(shlex.quote(word) for word in server["argv"])])
        for check, planned_check in planned["checks"].items():
            lines.append(f"  check {safe(check)}")
            lines += _command([shlex.quote(word) for word in planned_check["argv"]])
    for pair in plan["pairs"]:
        margin = pair["max_drop_pp"]
        rule = (
            f"largest accepted drop {margin} pp" if margin is not None else "no threshold: REPORTED at best"
        )
        sides = f"pair {pair['name']}: {pair['candidate']} against {pair['baseline']} on {pair['check']}"
        may_differ = ", ".join(pair["may_differ"]) or "nothing"
        lines += ["", safe(sides), f"  {rule}; may differ: {safe(may_differ, 4000)}"]
    return "\n".join(lines) + "\n"


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
