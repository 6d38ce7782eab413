"""Scenario -> Plan: every server's command, every check's parameters, every problem, before anything is
leased or launched.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from harness import models
from harness.engines import engine_of, roles_of
from harness.engines.base import Launch
from harness.errors import ConfigError
from harness.executors import requirements
from harness.executors.fitting import check_problems, cpu_problems, flag_problems, gpu_problems
from harness.executors.known_parity import parity_problems
from harness.executors.planned import Plan, PlannedLane, PlannedServer
from harness.executors.planned_check import parse_check, with_time_limits
from harness.executors.references import apart, pair_problems, reference_problems
from harness.executors.reuse import EarlierRun, baselines_of, objections
from harness.executors.schedule import Job, Schedule, pack
from harness.executors.withheld import without_reference
from harness.host.addresses import is_own_address
from harness.host.gpu import Gpu, GpuBook, cuda_names
from harness.host.paths import expanded, is_there
from harness.host.ports import PortBook
from harness.host.proc import MARK
from harness.scenario.model import Lane, Scenario
from harness.scenario.problems import by_lane


def make_plan(scenario: Scenario, ports: PortBook, gpus: GpuBook, earlier: EarlierRun | None = None) -> Plan:
    """Build every command and collect every problem; starts nothing, locks nothing, raises nothing.

    Baseline lanes are taken over from the `earlier` run where nothing speaks against it.
    """
    scenario = with_time_limits(scenario)
    lanes: list[PlannedLane] = []
    found: list[tuple[str, str]] = []
    for lane in scenario.lanes.values():
        planned = _plan_lane(lane, ports, gpus)
        if earlier is not None and lane.name in baselines_of(scenario) and not planned.skip:
            planned = _with_earlier(planned, earlier)
        lanes.append(planned)
    lanes = without_reference(apart(lanes))
    by_name = {planned.lane.name: planned for planned in lanes}
    for name, planned in by_name.items():
        found += ((name, problem) for problem in _static_problems(planned))
        if not planned.skip:
            found += ((name, problem) for problem in _lane_problems(planned))
            found += ((name, problem) for problem in check_problems(planned, by_name))
            if gpus.inventory.measurable:  # else it is another machine that is planned for
                found += ((name, problem) for problem in cpu_problems(planned))
    circles = list(reference_problems(lanes, scenario.left_out))
    found += circles
    found += pair_problems(scenario, lanes)
    found += parity_problems(scenario, lanes)
    schedule = None if circles else _schedule(scenario, lanes, gpus)
    if schedule is not None:
        place = {name: index for index, name in enumerate(schedule.order)}
        lanes.sort(key=lambda planned: place.get(planned.lane.name, len(place)))
    return Plan(scenario=scenario, lanes=tuple(lanes), problems=by_lane(found), schedule=schedule)


def _schedule(scenario: Scenario, lanes: Sequence[PlannedLane], gpus: GpuBook) -> Schedule | None:
    """When each lane that needs GPUs would run, if all GPUs were free and all durations as given."""
    most = len(gpus.inventory.gpus)  # more has a lane that is a problem of the plan, or is skipped
    wanting = [planned for planned in lanes if 0 < planned.gpus <= most]
    if not wanting:
        return None
    baselines: dict[str, set[str]] = {}
    for pair in scenario.pairs.values():
        baselines.setdefault(pair.candidate, set()).add(pair.baseline)
    jobs = [
        Job(
            name=planned.lane.name,
            gpus=planned.gpus,
            minutes=planned.lane.minutes,
            before=frozenset(baselines.get(planned.lane.name, ())),
            needs=planned.needs,
        )
        for planned in wanting
    ]
    return pack(jobs, most)


def require_sound(plan: Plan) -> None:
    """Raise one ConfigError with every problem of the plan, if it has any."""
    if plan.problems:
        what = (
            f"scenario {plan.scenario.name} cannot run: {len(plan.problems)} problem(s); nothing was started"
        )
        raise ConfigError(what, problems=plan.problems)


def _with_earlier(planned: PlannedLane, earlier: EarlierRun) -> PlannedLane:
    launches = [(server.engine, server.launch) for server in planned.servers]
    if reasons := objections(earlier, planned.lane, launches):
        return replace(planned, rerun=tuple(reasons))
    return replace(planned, reuse=earlier)


def _plan_lane(lane: Lane, ports: PortBook, gpus: GpuBook) -> PlannedLane:
    engines = [engine_of(lane.engine, spec.role) for spec in lane.servers]
    folder = Path("runs") / "RUN" / lane.name
    servers: list[PlannedServer] = []
    names: list[str] = []
    port_names = [
        engine.ports(spec.role, spec.flags) for engine, spec in zip(engines, lane.servers, strict=True)
    ]
    for spec, own in zip(lane.servers, port_names, strict=True):
        names += (f"{spec.role}.{name}" for name in own)
    peeked = ports.peek(names)
    wanted = sum(spec.gpus for spec in lane.servers)
    conditions = {} if requirements.problems(lane.requires) else lane.requires  # malformed: told, not tried
    suitable = partial(requirements.matches, conditions)
    left = list(gpus.peek(wanted, suitable=suitable, link=requirements.link(conditions)))
    for engine, spec, own in zip(engines, lane.servers, port_names, strict=True):
        mine, left = left[: spec.gpus], left[spec.gpus :]
        launch = Launch(
            lane=lane.name,
            role=spec.role,
            model_path=_model_path(lane),
            served_name=lane.model.served_name,
            flags=spec.flags,
            env=spec.env,
            ports={name: peeked[f"{spec.role}.{name}"] for name in own},
            folder=folder,
            host=spec.host,
            python=lane.python,
            binary=lane.binary,
            cpus=tuple(range(min(spec.cpus, len(os.sched_getaffinity(0))))) if spec.cpus else (),
        )
        server = PlannedServer(spec=spec, engine=engine, launch=launch, port_names=own)
        launch = at_run(server, ports=launch.ports, cpus=launch.cpus, gpus=mine, folder=folder)
        servers.append(replace(server, launch=launch))
    launches = introduced([server.launch for server in servers])
    servers = [replace(server, launch=launch) for server, launch in zip(servers, launches, strict=True)]
    checks = tuple(parse_check(name, given) for name, given in lane.checks.items())
    skip = lane.skip or requirements.unmet(lane.requires, wanted, gpus.inventory)
    return PlannedLane(lane=lane, servers=tuple(servers), checks=checks, skip=skip)


def _model_path(lane: Lane) -> str:
    if lane.model.path is not None:
        path = expanded(lane.model.path)
        return str(path.absolute() if is_there(path) else path)  # else it may be a hub's name
    name = str(lane.model.pull)
    return str(models.expected_path(name)) if name in models.MODELS else name


def _static_problems(planned: PlannedLane) -> list[str]:
    """What is wrong whatever this machine has: a lane that is skipped for want of hardware tells it too."""
    found = requirements.problems(planned.lane.requires)
    if planned.lane.skip:
        return found
    return [*found, *gpu_problems(planned), *(flag_problems(planned) if planned.skip else ())]


def _lane_problems(planned: PlannedLane) -> list[str]:
    found: list[str] = []
    for server in planned.servers:
        found += server.engine.problems(server.launch)
        if not is_own_address(server.spec.host):
            found.append(
                f"host `{server.spec.host}` of {server.spec.role} is no IPv4 address of this machine"
            )
        found += (
            f"env.{name} is the harness's own: its processes are found again by it; take it out"
            for name in (MARK, "SPT_NOENV")
            if name in server.spec.env
        )
        if server.spec.role not in server.engine.roles:
            known = ", ".join(roles_of(planned.lane.engine))
            found.append(f"{server.engine.name} has no role `{server.spec.role}` here; it has: {known}")
    name = planned.lane.model.pull
    if name is not None and name not in models.MODELS:
        found.append(f"there is no model `{name}` to pull; known: {', '.join(models.MODELS)}")
    elif name is not None and models.locate(name) is None:
        found.append(f"model {name} is not on this machine; get it with: harness models pull {name}")
    for check in planned.checks:
        found += (f"check `{check.name}`: {problem}" for problem in check.check.problems(check.params))
    return found


def introduced(launches: Sequence[Launch]) -> list[Launch]:
    """The launches of one lane, each with the addresses of the others."""
    known = [(launch.role, launch.base_url, launch) for launch in launches]
    found = []
    for launch in launches:
        peers: dict[str, str] = {}
        for role, url, other in known:
            if other is not launch:
                peers[role] = url
                hidden = ((name, port) for name, port in other.ports.items() if name != "http")
                peers |= {f"{role}.{name}": f"http://{other.host}:{port}" for name, port in hidden}
        found.append(replace(launch, peers=peers))
    return found


def at_run(
    server: PlannedServer,
    *,
    ports: Mapping[str, int],
    cpus: tuple[int, ...],
    gpus: Sequence[Gpu],
    folder: Path,
) -> Launch:
    """The launch with what was really leased."""
    return replace(
        server.launch,
        ports=dict(ports),
        cpus=cpus,
        gpus=cuda_names(gpus, "index"),
        gpu_model=" + ".join(sorted({gpu.name for gpu in gpus})),
        folder=folder,
    )
