"""Scenario -> Plan: every server's command, every check's parameters, every problem, before anything is
leased or launched.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from harness import models
from harness.checks import CHECKS
from harness.checks.base import Check
from harness.engines import ENGINES
from harness.engines.base import Engine, Launch
from harness.errors import ConfigError
from harness.executors import requirements
from harness.host.ports import PortBook
from harness.host.redact import redact_argv, redact_env
from harness.scenario.model import Lane, Pair, Scenario, ServerSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedServer:
    """One server with the command it would get; `launch.ports` are those free at planning time."""

    spec: ServerSpec
    engine: Engine
    launch: Launch
    port_names: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedCheck:
    """One check of a lane with validated parameters; `params_given` is what the scenario said."""

    name: str
    check: Check
    params: BaseModel
    params_given: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedLane:
    lane: Lane
    servers: tuple[PlannedServer, ...]
    checks: tuple[PlannedCheck, ...]
    skip: str = ""  # why the lane cannot run here; empty when it can

    @property
    def gpus(self) -> int:
        return sum(server.spec.gpus for server in self.servers)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    scenario: Scenario
    lanes: tuple[PlannedLane, ...]
    problems: tuple[str, ...]

    @property
    def pairs(self) -> tuple[Pair, ...]:
        return tuple(self.scenario.pairs.values())


def make_plan(scenario: Scenario, ports: PortBook) -> Plan:
    """Build every command and collect every problem; starts nothing, locks nothing, raises nothing."""
    lanes: list[PlannedLane] = []
    problems: list[str] = []
    for lane in scenario.lanes.values():
        planned = _plan_lane(lane, ports)
        lanes.append(planned)
        problems += (f"lane `{lane.name}`: {problem}" for problem in requirements.problems(lane.requires))
        if not planned.skip:
            problems += (f"lane `{lane.name}`: {problem}" for problem in _lane_problems(planned))
    return Plan(scenario=scenario, lanes=tuple(lanes), problems=tuple(dict.fromkeys(problems)))


def require_sound(plan: Plan) -> None:
    """Raise one ConfigError with every problem of the plan, if it has any."""
    if plan.problems:
        what = (
            f"scenario {plan.scenario.name} cannot run: {len(plan.problems)} problem(s); nothing was started"
        )
        raise ConfigError(what, problems=plan.problems)


def parse_check(name: str, given: Mapping[str, Any]) -> PlannedCheck:
    """A check entry of a scenario or a record. Raises ConfigError for an unknown kind or bad parameters."""
    kind = str(given.get("kind", name))
    check = CHECKS.get(kind)
    if check is None:
        raise ConfigError(
            f"check `{name}`: there is no check kind `{kind}`", fix=f"known: {', '.join(CHECKS)}"
        )
    rest = {key: value for key, value in given.items() if key != "kind"}
    try:
        params = check.params.model_validate(rest)
    except ValidationError as error:
        raise ConfigError(f"check `{name}`: {error}") from error
    return PlannedCheck(name=name, check=check, params=params, params_given=dict(given))


def plan_json(plan: Plan) -> dict[str, Any]:
    """The contract of `harness plan --json`."""
    return {
        "lanes": {planned.lane.name: _lane_json(planned) for planned in plan.lanes},
        "pairs": [
            {
                "name": pair.name,
                "baseline": pair.baseline,
                "candidate": pair.candidate,
                "check": pair.check,
                "may_differ": list(pair.may_differ),
                "max_drop_pp": pair.max_drop_pp,
            }
            for pair in plan.pairs
        ],
        "problems": list(plan.problems),
    }


def _lane_json(planned: PlannedLane) -> dict[str, Any]:
    base_url = planned.servers[-1].launch.base_url
    return {
        "servers": [
            {
                "role": server.spec.role,
                "engine": server.engine.name,
                "argv": redact_argv(server.engine.argv(server.launch)),
                "env": redact_env(server.engine.environment(server.launch)),
                "ports": dict(server.launch.ports),
                "gpus": server.spec.gpus,
                "cpus": server.spec.cpus,
            }
            for server in planned.servers
        ],
        "gpus": planned.gpus,
        "checks": {
            check.name: {
                "params": check.params.model_dump(),
                "argv": _check_argv(check, base_url, planned),
            }
            for check in planned.checks
        },
        "requires": dict(planned.lane.requires),
        "skip": planned.skip,
    }


def _check_argv(check: PlannedCheck, base_url: str, planned: PlannedLane) -> list[str]:
    folder = planned.servers[-1].launch.folder / check.name
    served_name = planned.lane.model.served_name
    try:
        return check.check.command(check.params, base_url=base_url, served_name=served_name, folder=folder)
    except ConfigError:  # a missing data set is among the plan's problems already
        return []


def _plan_lane(lane: Lane, ports: PortBook) -> PlannedLane:
    engine = ENGINES[lane.engine]
    folder = Path("runs") / "RUN" / lane.name
    servers: list[PlannedServer] = []
    names: list[str] = []
    port_names = [engine.ports(spec.role, spec.flags) for spec in lane.servers]
    for spec, own in zip(lane.servers, port_names, strict=True):
        names += (f"{spec.role}.{name}" for name in own)
    peeked = ports.peek(names)
    for spec, own in zip(lane.servers, port_names, strict=True):
        launch = Launch(
            lane=lane.name,
            role=spec.role,
            model_path=_model_path(lane),
            served_name=lane.model.served_name,
            flags=spec.flags,
            env=spec.env,
            ports={name: peeked[f"{spec.role}.{name}"] for name in own},
            folder=folder,
            python=lane.python,
            binary=lane.binary,
            cpus=tuple(range(min(spec.cpus, len(os.sched_getaffinity(0))))) if spec.cpus else (),
        )
        servers.append(PlannedServer(spec=spec, engine=engine, launch=launch, port_names=own))
    checks = tuple(parse_check(name, given) for name, given in lane.checks.items())
    skip = requirements.unmet(lane.requires, sum(spec.gpus for spec in lane.servers))
    return PlannedLane(lane=lane, servers=tuple(servers), checks=checks, skip=skip)


def _model_path(lane: Lane) -> str:
    if lane.model.path is not None:
        path = Path(lane.model.path).expanduser()
        return str(path.absolute() if path.exists() else path)  # else it may be a hub's name
    name = str(lane.model.pull)
    return str(models.expected_path(name)) if name in models.MODELS else name


def _lane_problems(planned: PlannedLane) -> list[str]:
    found: list[str] = []
    for server in planned.servers:
        found += server.engine.problems(server.launch)
        if server.spec.role not in server.engine.roles:
            known = ", ".join(server.engine.roles)
            found.append(f"{server.engine.name} has no role `{server.spec.role}` here; it has: {known}")
    name = planned.lane.model.pull
    if name is not None and name not in models.MODELS:
        found.append(f"there is no model `{name}` to pull; known: {', '.join(models.MODELS)}")
    elif name is not None and models.locate(name) is None:
        found.append(f"model {name} is not on this machine; get it with: harness models pull {name}")
    for check in planned.checks:
        found += (f"check `{check.name}`: {problem}" for problem in check.check.problems(check.params))
    return found


def at_run(server: PlannedServer, *, ports: Mapping[str, int], cpus: tuple[int, ...], folder: Path) -> Launch:
    """The launch with what was really leased."""
    return replace(server.launch, ports=dict(ports), cpus=cpus, folder=folder)
