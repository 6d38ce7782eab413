"""Servers silently rewrite settings: what the scenario says, held against what the running server says."""

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
        wrong = []
        for key, wanted in server.spec.expect.items():
            found = record.effective_config.get(key)
            if found is None or str(found).lower() != str(wanted).lower():
                wrong.append(f"{key} is {found!r}, expected {wanted!r}")
        if wrong:
            raise TargetError(
                f"the running {record.role} server is not configured as expected: {'; '.join(wrong)}",
                cause="the server rewrote a setting, or does not tell it",
                fix=f"compare with effective-config.{record.role}.json in the lane's folder",
                evidence=str(up.entry.log),
                code=Code.CONFIG_REWRITTEN,
            )


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
