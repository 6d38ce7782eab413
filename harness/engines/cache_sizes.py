"""Page arithmetic over a server's own configuration."""

from collections.abc import Mapping

from harness.errors import TargetError
from harness.findings import Code
from harness.scenario.model import Scalar


def whole_units(tokens: int, unit: int) -> int:
    """How much of a repeated prompt can come from the cache: whole units, and never its last token, whose
    logits must be computed."""
    return (tokens - 1) // unit * unit


def filling(tokens: int, device: int | None) -> tuple[int, ...]:
    """As many prompts of so many tokens as together are longer than the device's cache."""
    return (tokens,) * ((device or 0) // tokens + 1)


def number(config: Mapping[str, Scalar | None], name: str) -> int:
    """A whole number of the server's configuration. Raises TargetError where the server does not tell it."""
    value = config.get(name)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise TargetError(
        f"the server's configuration has no number `{name}` (it is {value!r})",
        cause="another version of the engine, or a setting that it resolves later",
        fix="look into effective-config.*.json of the lane",
        code=Code.NOT_EXERCISED,
    )
