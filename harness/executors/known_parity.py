"""Differences between the lanes of a pair that the run would find for certain, found before it starts.

The lanes are compared as the run compares them, by the same fingerprints, as far as these are known by now:
what a server or an evaluator tells of itself is not, nor which GPUs it gets.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from harness.checks.base import reference_of
from harness.deploy.identity import model_digest
from harness.errors import HarnessError
from harness.evidence.fingerprint import ABSENT, Difference, Fingerprint, diff, up_to_check
from harness.executors.planned import PlannedLane
from harness.executors.reuse import planned_fingerprint
from harness.scenario.model import Scenario

SHOWN = 8  # differences of one pair
NOWHERE = Path("/nonexistent/evidence")


def parity_problems(scenario: Scenario, lanes: Sequence[PlannedLane]) -> Iterator[tuple[str, str]]:
    """Candidate and sentence for every difference that would make its pair INVALID. A lane that is skipped is
    compared with nothing."""
    by_name = {planned.lane.name: planned for planned in lanes if not planned.skip}
    for pair in scenario.pairs.values():
        if pair.baseline not in by_name or pair.candidate not in by_name:
            continue
        baseline, candidate = by_name[pair.baseline], by_name[pair.candidate]
        differences = diff(_known(baseline, pair.check), _known(candidate, pair.check), pair.may_differ)
        unsure = (*_may_be_left_out(baseline), *_may_be_left_out(candidate))
        found = [item for item in differences if not (item.key.startswith(unsure) or _same_files(item))]
        for item in found[:SHOWN]:
            sides = f"{_is(item.candidate)} on {pair.candidate} and {_is(item.baseline)} on {pair.baseline}"
            why = "and the pair does not exempt it (`may_differ`)"
            yield pair.candidate, f"pair `{pair.name}`: {item.key} {sides}, {why}"
        if more := found[SHOWN:]:
            names = ", ".join(item.key for item in more)
            yield pair.candidate, f"pair `{pair.name}`: {len(more)} more settings differ: {names}"


def _is(value: object) -> str:
    return "is not set" if value == ABSENT else f"is {value!r}"


def _known(planned: PlannedLane, last: str) -> Fingerprint:
    """The lane's fingerprint up to the check `last`, without what the lease decides. The path of weights
    stands for their digest: reading them takes long, and is rarely needed."""
    launches = [
        (
            server.engine,
            replace(server.launch, gpus=tuple(map(str, range(server.spec.gpus))), gpu_model=""),
        )
        for server in planned.servers
    ]
    keys: Fingerprint = dict(planned_fingerprint(planned.lane, launches, digest=str))
    for check in planned.checks:
        asked = check.check.fingerprint(check.params, NOWHERE)
        keys |= {f"check.{check.name}.{key}": value for key, value in asked.items()}
    return up_to_check(keys, [check.name for check in planned.checks], last)


def _may_be_left_out(planned: PlannedLane) -> Iterator[str]:
    """What the keys of checks begin with whose reference may deliver nothing."""
    for check in planned.checks:
        if reference_of(check.params, check.name) is not None:
            yield f"check.{check.name}."


def _same_files(item: Difference) -> bool:
    """Whether two paths hold the same, or that cannot be told yet."""
    if not item.key.endswith("digest") or ABSENT in (item.baseline, item.candidate):
        return False
    try:
        return model_digest(Path(str(item.baseline))) == model_digest(Path(str(item.candidate)))
    except HarnessError:
        return True
