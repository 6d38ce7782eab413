"""The contract of `harness plan --json`."""

from typing import Any

from harness.errors import ConfigError
from harness.executors.planned import Plan, PlannedLane
from harness.executors.planned_check import PlannedCheck
from harness.executors.schedule import Schedule
from harness.host.redact import redact_argv, redact_env


def plan_json(plan: Plan) -> dict[str, Any]:
    """What would be done, as plain data; secrets are masked."""
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
        "schedule": _schedule_json(plan.schedule),
        "problems": list(plan.problems),
    }


def _schedule_json(schedule: Schedule | None) -> dict[str, Any] | None:
    if schedule is None:
        return None
    return {
        "lanes": [
            {"lane": slot.name, "start_min": slot.start, "end_min": slot.end} for slot in schedule.slots
        ],
        "makespan_min": schedule.makespan,
        "lower_bound_min": schedule.lower_bound,
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
        "gpus": sum(server.spec.gpus for server in planned.servers),
        "checks": {
            check.name: {
                "params": check.params.model_dump(),
                "argv": _check_argv(check, base_url, planned),
            }
            for check in planned.checks
        },
        "requires": dict(planned.lane.requires),
        "minutes": planned.lane.minutes,
        "skip": planned.skip,
        "taken_over_from": planned.reuse.run.run_id if planned.reuse else None,
        "not_taken_over": list(planned.rerun),
    }


def _check_argv(check: PlannedCheck, base_url: str, planned: PlannedLane) -> list[str] | None:
    """Empty where the check has no program; None where its command cannot be made."""
    folder = planned.servers[-1].launch.folder / check.name
    served_name = planned.lane.model.served_name
    try:
        return check.check.command(check.params, base_url=base_url, served_name=served_name, folder=folder)
    except ConfigError:  # a missing data set is among the plan's problems already
        return None
