"""`run`, `plan`, `list`, `schema`: from a scenario to a verdict."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.output import say

if TYPE_CHECKING:
    from harness.scenario.model import Scenario

ScenarioArgument = Annotated[str, typer.Argument(help="A scenario's name or a path to its YAML file.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a value, e.g. lanes.bf16.gpus=4 or params.TP=8."
    ),
]
LaneOption = Annotated[
    list[str] | None, typer.Option("--lane", metavar="NAME", help="Only this lane; repeatable.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
RunsOption = Annotated[Path, typer.Option("--runs-dir", help="Where run directories are made.")]
GateOption = Annotated[
    bool, typer.Option("--require-gate", help="REPORTED is not enough: exit 3 unless a stated rule passed.")
]


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command("run")(run)
    app.command("plan")(plan)
    app.command("list")(list_scenarios)
    app.command("schema")(schema)


def run(
    scenario: ScenarioArgument,
    overrides: SetOption = None,
    lane: LaneOption = None,
    runs_dir: RunsOption = Path("runs"),
    require_gate: GateOption = False,
) -> None:
    """Run a scenario: lease, launch, wait, evaluate, stop, verify, judge, report."""
    from harness.executors.local import run_plan
    from harness.executors.plan import make_plan
    from harness.host.ports import PortBook
    from harness.report.live import live_view
    from harness.report.summary import render_run

    loaded = _load(scenario, overrides, lane)
    ports = PortBook()
    made = make_plan(loaded, ports)
    with live_view([planned.lane.name for planned in made.lanes]) as view:
        place, record = run_plan(
            made, runs_dir=runs_dir, watcher=view, ports=ports, require_gate=require_gate
        )
    say(render_run(record, str(place.path)))
    raise typer.Exit(record.exit_code or 0)


def plan(
    scenario: ScenarioArgument,
    overrides: SetOption = None,
    lane: LaneOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show every command, lease and check of a scenario; launches nothing."""
    from harness.executors.plan import make_plan, plan_json, require_sound
    from harness.host.ports import PortBook
    from harness.report.plan_text import render_plan

    made = make_plan(_load(scenario, overrides, lane), PortBook())
    if as_json:
        say(json.dumps(plan_json(made), indent=2, ensure_ascii=False))
    else:
        say(render_plan(made.scenario.name, plan_json(made)))
    require_sound(made)


def list_scenarios() -> None:
    """The scenarios that can be run by name."""
    from harness.report.text import safe, table
    from harness.scenario.load import available

    rows = [["scenario", "description", "file"]]
    rows += [[name, safe(description, 90), str(path)] for name, description, path in available()]
    say("\n".join(table(rows, indent="")))


def schema() -> None:
    """The JSON Schema of scenario files, for editors."""
    from harness.checks import CHECKS
    from harness.engines import ENGINES
    from harness.scenario.schema import json_schema

    params = {kind: check.params for kind, check in CHECKS.items()}
    say(json.dumps(json_schema(list(ENGINES), params), indent=2))


def _load(scenario: str, overrides: list[str] | None, lanes: list[str] | None) -> "Scenario":
    from harness.checks import CHECKS
    from harness.engines import ENGINES
    from harness.scenario.load import load

    return load(
        scenario,
        overrides=overrides or [],
        environ=os.environ,
        engines=list(ENGINES),
        check_params={kind: check.params for kind, check in CHECKS.items()},
        lanes=lanes or [],
    )
