"""Servers silently rewrite settings: what the scenario says, held against what the running server says."""

import difflib
from collections.abc import Mapping

from harness.deploy.deployment import Deployment
from harness.errors import TargetError
from harness.executors.planned import PlannedLane
from harness.findings import Code, Finding
from harness.scenario.model import FlagValue, Scalar

YES = frozenset({"on", "true", "1", "enabled", "yes"})
NO = frozenset({"off", "false", "0", "disabled", "no", "none"})
LEFT_TO_THE_SERVER = ("auto", "none")  # as a flag's value: resolving it is what was asked for


def assert_expected(planned: PlannedLane, up: Deployment) -> None:
    """What the scenario relies on (`expect`) is read back from the server itself. Raises TargetError
    (CONFIG_REWRITTEN)."""
    for server, record in zip(planned.servers, up.records, strict=True):
        config, expect = record.effective_config, server.spec.expect
        unknown = [_no_such(key, config) for key in expect if key not in config]
        wrong = [
            f"{key} is {config[key]!r}, expected {wanted!r}"
            for key, wanted in expect.items()
            if key in config and (config[key] is None or str(config[key]).lower() != str(wanted).lower())
        ]
        if unknown or wrong:
            causes = ["the server rewrote a setting, or does not tell it"] if wrong else []
            causes += ["`expect` has a name that this version of the server does not use"] if unknown else []
            told = "; ".join(unknown + wrong)
            raise TargetError(
                f"the running {record.role} server is not configured as expected: {told}",
                cause="; ".join(causes),
                fix=f"effective-config.{record.role}.json in the lane's folder has all names and values",
                evidence=str(up.entry.log),
                code=Code.CONFIG_REWRITTEN,
            )


def _no_such(key: str, config: Mapping[str, Scalar | None]) -> str:
    near = ", ".join(difflib.get_close_matches(key, config, 3))
    return f"the server's configuration has no `{key}`" + (f" (nearest: {near})" if near else "")


def resolved_otherwise(planned: PlannedLane, up: Deployment) -> list[Finding]:
    """Flags that the server's configuration shows under the same name with another value. A note: only the
    scenario knows which of them it relies on."""
    return [
        Finding(
            code=Code.FLAG_RESOLVED,
            message=f"{record.role}: {flag} is {given!r} in the scenario, and {told!r} in the running server",
            where=f"effective-config.{record.role}.json",
        )
        for server, record in zip(planned.servers, up.records, strict=True)
        for flag, given, told in _differing(server.launch.flags, record.effective_config)
    ]


def _differing(
    flags: Mapping[str, FlagValue], config: Mapping[str, Scalar | None]
) -> list[tuple[str, FlagValue, Scalar | None]]:
    found: list[tuple[str, FlagValue, Scalar | None]] = []
    for flag, given in flags.items():
        told = config.get(flag.lstrip("-").replace("-", "_"))
        if told is None or given is None or isinstance(given, list):
            continue
        if not _same(given, told):
            found.append((flag, given, told))
    return found


def _same(one: FlagValue, other: Scalar | None) -> bool:
    text = str(other).strip('[]"')  # a list of one value is kept as its JSON text
    given, told = str(one).lower(), text.lower()
    if given in (told, *LEFT_TO_THE_SERVER) or any({given, told} <= words for words in (YES, NO)):
        return True
    try:
        return float(str(one)) == float(str(other))
    except ValueError:
        return False
