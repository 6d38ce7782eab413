"""A check with its parameters, as `plan` takes it from the scenario and `judge` from the record."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from harness.checks import CHECKS
from harness.checks.base import Check
from harness.errors import ConfigError
from harness.scenario.model import Lane, Scenario

REQUEST_S = "request_s"


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedCheck:
    """One check of a lane with validated parameters; `params_given` is what the scenario said."""

    name: str
    check: Check
    params: BaseModel
    params_given: Mapping[str, Any]


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


def with_time_limits(scenario: Scenario) -> Scenario:
    """The scenario in which a lane's `timeouts.request_s`, where it is set, is that of its checks as well,
    but for those that have one of their own: so it stands in the record, and the judge reads the same."""
    lanes = {name: _with_time_limit(lane) for name, lane in scenario.lanes.items()}
    return scenario.model_copy(update={"lanes": lanes})


def _with_time_limit(lane: Lane) -> Lane:
    if REQUEST_S not in lane.timeouts.model_fields_set:
        return lane
    checks = {}
    for name, given in lane.checks.items():
        check = CHECKS.get(str(given.get("kind", name)))
        takes = check is not None and REQUEST_S in check.params.model_fields
        default = {REQUEST_S: lane.timeouts.request_s} if takes and given.get(REQUEST_S) is None else {}
        checks[name] = {**given, **default}
    return lane.model_copy(update={"checks": checks})
