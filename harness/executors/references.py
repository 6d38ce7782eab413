"""What lanes and pairs say of one another: references that lead nowhere or round, pairs that cannot be."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from harness.checks.base import reference_of
from harness.executors.planned import PlannedLane
from harness.scenario.model import Scenario


def reference_problems(
    lanes: Sequence[PlannedLane], left_out: Collection[str] = ()
) -> Iterator[tuple[str, str]]:
    """References to checks that are not there, or that go round in a circle. `left_out` are the lanes of the
    scenario that were not chosen."""
    by_name = {planned.lane.name: planned for planned in lanes}
    for planned in lanes:
        for check in planned.checks:
            reference = reference_of(check.params, check.name)
            if reference is None:
                continue
            lane, name = reference
            there = {other.name for other in by_name[lane].checks} if lane in by_name else set()
            if lane in left_out:
                word = "control" if getattr(check.params, "control", None) else "reference"
                text = f"`{word}: {lane}/{name}` names a lane that was not chosen: add --lane {lane}"
                yield planned.lane.name, f"check `{check.name}`: {text}"
            elif name not in there:
                text = f"check `{check.name}`: reference: there is no check `{name}` in a lane `{lane}`"
                yield planned.lane.name, text
            elif lane == planned.lane.name and not _runs_before(planned, name, check.name):
                text = f"check `{check.name}`: reference: `{name}` of its own lane does not run before it"
                yield planned.lane.name, text
        if planned.lane.name in _all_needs(planned, by_name):
            yield planned.lane.name, "its checks' references lead back to itself"


def apart(lanes: Sequence[PlannedLane]) -> list[PlannedLane]:
    """The lanes, without taking over one that refers to another or is referred to: prompts asked then and
    prompts asked now do not match, and a lane that is run after all would leave the other one behind."""
    referring = {planned.lane.name: planned.needs for planned in lanes if not planned.skip}
    found = []
    for planned in lanes:
        name = planned.lane.name
        others = sorted({*planned.needs, *(other for other, needs in referring.items() if name in needs)})
        if planned.reuse and others:
            reason = f"its answers are compared with those of lane `{others[0]}`, and both are asked anew"
            found.append(replace(planned, reuse=None, rerun=(reason,)))
        else:
            found.append(planned)
    return found


def pair_problems(scenario: Scenario, lanes: Sequence[PlannedLane]) -> Iterator[tuple[str, str]]:
    """Pairs on a check that is judged on each lane by itself."""
    by_name = {planned.lane.name: planned for planned in lanes}
    for pair in scenario.pairs.values():
        for check in by_name[pair.candidate].checks if pair.candidate in by_name else ():
            if check.name == pair.check and not check.check.pairable:
                yield pair.candidate, f"pair `{pair.name}`: check `{pair.check}` cannot be paired"


def _runs_before(planned: PlannedLane, first: str, second: str) -> bool:
    names = [check.name for check in planned.checks]
    return names.index(first) < names.index(second)


def _all_needs(planned: PlannedLane, by_name: Mapping[str, PlannedLane]) -> set[str]:
    found: set[str] = set()
    todo = list(planned.needs)
    while todo:
        name = todo.pop()
        if name in by_name and name not in found:
            found.add(name)
            todo += by_name[name].needs
    return found
