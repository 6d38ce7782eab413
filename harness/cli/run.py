"""`run`, `plan`, `list`, `schema`: from a scenario to a verdict."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.output import say
from harness.errors import ConfigError

if TYPE_CHECKING:
    from harness.executors.reuse import EarlierRun
    from harness.host.gpu import GpuBook
    from harness.scenario.model import Scenario

ScenarioArgument = Annotated[str, typer.Argument(help="A scenario's name or a path to its YAML file.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a value, e.g. lanes.bf16.gpus=4 or params.TP=8."
    ),
]
LaneOption = Annotated[
    list[str] | None,
    typer.Option(
        "--lane", metavar="NAME", help="Only this lane; repeatable. Pairs of other lanes are left out."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
RunsOption = Annotated[Path, typer.Option("--runs-dir", help="Where run directories are made.")]
SimulateOption = Annotated[
    bool,
    typer.Option(
        "--simulate",
        help="Start the simulator instead of LightLLM, on described GPUs: tests the scenario and the "
        "harness, never an engine.",
    ),
]
InventoryOption = Annotated[
    Path | None,
    typer.Option(
        "--inventory",
        metavar="FILE",
        help="Plan for the GPUs described in this YAML file instead of this machine's.",
    ),
]
BaselineOption = Annotated[
    Path | None,
    typer.Option(
        "--baseline",
        metavar="RUN",
        help="Take baseline lanes over from this earlier run, where all conditions are equal and all of its "
        "evidence is there; else they run again.",
    ),
]
GpuWaitOption = Annotated[
    float, typer.Option("--gpu-wait", metavar="SECONDS", help="How long to wait for GPUs that others hold.")
]
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
    baseline: BaselineOption = None,
    gpu_wait: GpuWaitOption = 600.0,
    simulate: SimulateOption = False,
    inventory: InventoryOption = None,
) -> None:
    """Run a scenario: lease, launch, wait, evaluate, stop, verify, judge, report."""
    from harness.executors.local import run_plan
    from harness.executors.plan import make_plan
    from harness.host.ports import PortBook
    from harness.report.live import live_view
    from harness.report.summary import render_run

    if inventory is not None and not simulate:
        what = "servers are started on this machine's GPUs, not on described ones"
        raise ConfigError(what, fix="leave out --inventory, or add --simulate")
    ports, gpus = PortBook(), _gpus(inventory, simulate=simulate)
    loaded = _load(scenario, overrides, lane, gpus, simulate=simulate)
    made = make_plan(loaded, ports, gpus, _earlier(baseline))
    with live_view([planned.lane.name for planned in made.lanes]) as view:
        place, record = run_plan(
            made,
            runs_dir=runs_dir,
            watcher=view,
            ports=ports,
            gpus=gpus,
            require_gate=require_gate,
            gpu_wait_s=gpu_wait,
        )
    say(render_run(record, str(place.path)))
    raise typer.Exit(record.exit_code or 0)


def plan(
    scenario: ScenarioArgument,
    overrides: SetOption = None,
    lane: LaneOption = None,
    as_json: JsonOption = False,
    baseline: BaselineOption = None,
    simulate: SimulateOption = False,
    inventory: InventoryOption = None,
) -> None:
    """Show every command, lease and check of a scenario; launches nothing."""
    from harness.executors.plan import make_plan, require_sound
    from harness.executors.plan_json import plan_json
    from harness.host.ports import PortBook
    from harness.report.plan_text import render_plan

    gpus = _gpus(inventory, simulate=simulate)
    loaded = _load(scenario, overrides, lane, gpus, simulate=simulate)
    made = make_plan(loaded, PortBook(), gpus, _earlier(baseline))
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


def _load(
    scenario: str,
    overrides: list[str] | None,
    lanes: list[str] | None,
    gpus: "GpuBook",
    *,
    simulate: bool,
) -> "Scenario":
    from harness.checks import CHECKS
    from harness.engines import ENGINES
    from harness.executors.plan import make_plan
    from harness.executors.simulate import MODEL, simulated
    from harness.host.addresses import own_address
    from harness.host.ports import PortBook
    from harness.scenario.load import load

    def plan_problems(part: "Scenario") -> tuple[str, ...]:
        return make_plan(simulated(part) if simulate else part, PortBook(), gpus).problems

    def read(more: list[str], environ: Mapping[str, str] = os.environ) -> "Scenario":
        return load(
            scenario,
            overrides=[*more, *(overrides or [])],
            environ=environ,
            engines=list(ENGINES),
            check_params={kind: check.params for kind, check in CHECKS.items()},
            lanes=lanes or [],
            more_problems=plan_problems,
        )

    try:
        loaded = read([])
    except ConfigError:
        if simulate:  # told again, without what the simulator does not need
            read([], {**os.environ, "MODEL_DIR": str(MODEL), "NODE_IP": own_address()})
        raise
    if not simulate:
        return loaded
    _check_simulator()
    stand_ins = []
    if not Path(loaded.params.get("MODEL_DIR", ".")).exists():
        stand_ins.append(f"params.MODEL_DIR={MODEL}")
    if loaded.params.get("NODE_IP", "").startswith("127."):  # P/D nodes refuse it
        stand_ins.append(f"params.NODE_IP={own_address()}")
    return simulated(read(stand_ins) if stand_ins else loaded)


def _check_simulator() -> None:
    """Its settings are the user's: what is wrong with them is told before anything starts."""
    from harness.simulator.settings import VARIABLE, BadSettings
    from harness.simulator.settings import load as read_settings

    try:
        read_settings()
    except BadSettings as error:
        raise ConfigError(str(error), fix=f"mend the file that {VARIABLE} names") from error


def _gpus(inventory: Path | None, *, simulate: bool) -> "GpuBook":
    """The GPUs of this machine, or those that a file describes; a simulated run has eight to play with."""
    from harness.executors.simulate import INVENTORY
    from harness.host.gpu import GpuBook
    from harness.host.gpu.described import load_inventory
    from harness.host.gpu.nvml import NvmlSource

    if inventory is None and simulate:
        inventory = INVENTORY
    return GpuBook(NvmlSource() if inventory is None else load_inventory(inventory))


def _earlier(baseline: Path | None) -> "EarlierRun | None":
    from harness.executors.reuse import EarlierRun

    return EarlierRun.open(baseline) if baseline is not None else None
