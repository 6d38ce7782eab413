"""A check with its parameters, as `plan` takes it from the scenario and `judge` from the record."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from harness.checks import CHECKS
from harness.checks.base import Check
from harness.errors import ConfigError


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
