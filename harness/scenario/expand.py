"""Lanes as they are written to lanes as they run: `extends` between lanes, then `matrix`.

A lane may extend lanes of the same scenario by the names they are written with; later ones win, the lane
itself most. `description` is not inherited. A lane with a matrix becomes one lane for each combination.
"""

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from harness.scenario.fill import Filler
from harness.scenario.problems import Place, Problems, quote
from harness.scenario.tree import Entry, Leaf, Map, Node, Seq, lay_over
from harness.scenario.written import VARIABLE

MAX_LANES: Final = 256
MAX_CHAIN: Final = 32

_KEY = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(frozen=True, slots=True)
class RawLane:
    """One lane to be: `place` is where its name stands, `cell` its combination of the matrix. `written` is
    the name as it stands there, `kv-{kv}`, by which all lanes of a matrix are told of one problem.

    A template is not run; it is only checked for what can be checked in it.
    """

    name: str
    place: Place
    tree: Map
    cell: Mapping[str, str] = field(default_factory=dict)
    template: bool = False
    written: str = ""

    def with_tree(self, tree: Map) -> "RawLane":
        return replace(self, tree=tree)


@dataclass(frozen=True, slots=True)
class Expansion:
    """`complete` is false when a lane could not be expanded, so that not every name is known."""

    lanes: tuple[RawLane, ...]
    complete: bool


def expand(lanes: Map, late: Sequence[tuple[str, Entry]], filler: Filler, problems: Problems) -> Expansion:
    """All lanes and templates, with `late` overrides laid over those they name."""
    lanes = lanes.kept()
    resolved = _Inheritance(lanes, problems)
    found: dict[str, RawLane] = {}
    complete = True
    for name, entry in lanes.entries.items():
        tree = resolved.lane(name)
        if tree is None:
            complete = False
            continue
        if name.startswith("_"):
            found[name] = RawLane(name, entry.key, tree.without("extends", "matrix"), template=True)
            continue
        cells = _cells(tree, entry.key, filler, problems)
        complete = complete and bool(cells)
        for lane in _expanded(name, entry.key, tree, cells):
            if lane.name in found:
                problems.add(
                    entry.key, f"two lanes are called {quote(lane.name)} once matrices are expanded."
                )
            found[lane.name] = lane
    if len(found) > MAX_LANES:
        problems.add(lanes.place, f"{len(found)} lanes; a scenario may have {MAX_LANES}.")
        return Expansion((), complete=False)
    return Expansion(tuple(_with_late(found, late, complete, problems).values()), complete)


class _Inheritance:
    """Follows `extends` between lanes; each lane once, so that no chain of them can explode."""

    def __init__(self, lanes: Map, problems: Problems) -> None:
        self._lanes = lanes
        self._problems = problems
        self._done: dict[str, Map | None] = {}
        self._open: list[str] = []

    def lane(self, name: str) -> Map | None:
        """The lane with all that it inherits; None, and a problem added, when that cannot be known."""
        if name not in self._done:
            self._open.append(name)
            self._done[name] = self._merged(name)
            self._open.pop()
        return self._done[name]

    def _merged(self, name: str) -> Map | None:
        own = self._lanes.entries[name].node
        if isinstance(own, Leaf) and own.value is None:
            own = Map({}, self._lanes.entries[name].key)
        if not isinstance(own, Map):
            self._problems.add(own.place, f"lane {quote(name)}: expected a mapping.")
            return None
        parents = names_in(own.get("extends"), "a lane's name or a list of them", self._problems)
        if parents is None:
            return None
        merged: Node = Map({}, own.place)
        for parent in parents:
            inherited = self._parent(name, parent)
            if inherited is None:
                return None
            merged = lay_over(merged, inherited.without("description"), self._problems)
        merged = lay_over(merged, own, self._problems)
        assert isinstance(merged, Map)
        return merged

    def _parent(self, name: str, parent: Leaf) -> Map | None:
        if len(self._open) > MAX_CHAIN:
            self._problems.add(parent.place, f"more than {MAX_CHAIN} lanes extend one another in a row.")
        elif parent.text in self._open:
            circle = " -> ".join([*self._open[self._open.index(parent.text) :], parent.text])
            self._problems.add(parent.place, f"lanes extend one another in a circle: {circle}.")
        elif parent.text not in self._lanes.entries:
            known = [lane for lane in self._lanes.entries if lane != name]
            sentence = f"lane {quote(name)} extends {quote(parent.text)}, which is no lane of this scenario."
            self._problems.add(parent.place, sentence, given=parent.text, known=known)
        else:
            return self.lane(parent.text)
        return None


def names_in(node: Node | None, expected: str, problems: Problems) -> tuple[Leaf, ...] | None:
    """The names that an `extends` holds; None, and a problem added, when they are no names."""
    items = node.items if isinstance(node, Seq) else () if node is None else (node,)
    names = tuple(item for item in items if isinstance(item, Leaf) and item.value is not None)
    if len(names) != len(items) and not (isinstance(node, Leaf) and node.value is None):
        assert node is not None
        problems.add(node.place, f"`extends`: expected {expected}.")
        return None
    return names


def _cells(tree: Map, at: Place, filler: Filler, problems: Problems) -> list[dict[str, str]]:
    """Every combination of the matrix; one empty one without a matrix; none when it is broken."""
    matrix = tree.get("matrix")
    if matrix is None or (isinstance(matrix, Leaf) and matrix.value is None):
        return [{}]
    if not isinstance(matrix, Map):
        problems.add(matrix.place, "`matrix`: expected a mapping of lists, such as {kv: [bf16, q8_0]}.")
        return []
    columns = {key: _column(key, entry, filler, problems) for key, entry in matrix.entries.items()}
    if not all(columns.values()) or not columns:
        if not columns:
            problems.add(matrix.place, "`matrix` has no keys; leave it out.")
        return []
    if math.prod(map(len, columns.values())) > MAX_LANES:
        problems.add(at, f"the matrix makes more than {MAX_LANES} lanes.")
        return []
    return [dict(zip(columns, values, strict=True)) for values in itertools.product(*columns.values())]


def _column(key: str, entry: Entry, filler: Filler, problems: Problems) -> list[str]:
    node = entry.node
    if not VARIABLE.fullmatch(key):
        problems.add(entry.key, f"matrix key {quote(key)}: letters, digits and _ only, no digit first.")
        return []
    values = [item for item in node.items if isinstance(item, Leaf)] if isinstance(node, Seq) else []
    if not isinstance(node, Seq) or not values or len(values) != len(node.items):
        problems.add(node.place, f"`matrix.{key}`: expected a list of values, such as [bf16, q8_0].")
        return []
    if any(item.value is None for item in values):
        problems.add(node.place, f"`matrix.{key}`: a value is empty; write '' for empty text.")
        return []
    before = len(problems)
    filled = [filler.fill(item, {}) for item in values]
    return [leaf.text for leaf in filled if isinstance(leaf, Leaf)] if len(problems) == before else []


def _expanded(name: str, place: Place, tree: Map, cells: Sequence[Mapping[str, str]]) -> Iterator[RawLane]:
    """The lane of each cell: `{key}` filled into the name, values of unnamed keys appended to it."""
    bare = tree.without("extends", "matrix")
    named = set(_KEY.findall(name))
    for cell in cells:
        stem = _KEY.sub(partial(_named, cell), name)
        parts = [stem, *(value for key, value in cell.items() if key not in named)]
        yield RawLane("-".join(parts), place, bare, cell, written=name)


def _named(cell: Mapping[str, str], match: re.Match[str]) -> str:
    return cell.get(match[1], match[0])


def _with_late(
    found: dict[str, RawLane], late: Sequence[tuple[str, Entry]], complete: bool, problems: Problems
) -> dict[str, RawLane]:
    for name, entry in late:
        lane = found.get(name)
        if lane is None:
            if complete:
                problems.add(entry.key, f"there is no lane {quote(name)}.", given=name, known=found)
            continue
        if isinstance(entry.node, Leaf) and entry.node.dropped:
            del found[name]
            continue
        tree = lay_over(lane.tree, entry.node, problems)
        if not isinstance(tree, Map):
            problems.add(entry.key, f"lane {quote(name)}: expected a mapping.")
            continue
        if "extends" in tree.entries or "matrix" in tree.entries:
            problems.add(entry.key, "`extends` and `matrix` cannot be set on a lane that a matrix made.")
        found[name] = lane.with_tree(tree)
    return found
