"""`--set KEY=VALUE`: a dotted path and a YAML scalar or flow value, laid over the scenario.

Path segments that contain dots are quoted (`lanes.a.flags."--x.y"=1`); a whole number addresses an item of a
list (`lanes.pd.servers.0.gpus=4`). Overrides go onto the merged document, before lanes are expanded; those
for a lane that only exists after expansion (`lanes.kv-q8_0.gpus=1`) are kept aside for it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from harness.scenario.problems import Place, Problems, is_unicode, printable, quote
from harness.scenario.tree import Entry, Map, Node, lay_over
from harness.scenario.yaml_source import MAX_DEPTH, read_value

_SEGMENT = re.compile(r'"([^"]+)"|\'([^\']+)\'|([^.="\']+)')
LONGEST_LABEL: Final = 80


@dataclass(frozen=True, slots=True)
class Overridden:
    """`document` with the overrides on it; `late` those for lanes that are not in it; `params` given."""

    document: Map
    late: tuple[tuple[str, Entry], ...]
    params: Map


def override(document: Map, overrides: Sequence[str], problems: Problems) -> Overridden:
    """Lay every `KEY=VALUE` over the document, in order. Problems are added, broken overrides left out."""
    late: list[tuple[str, Entry]] = []
    params = Map({}, document.place)
    for text in overrides:
        label = printable(text)
        place = Place(f"--set {label if len(label) <= LONGEST_LABEL else label[: LONGEST_LABEL - 3] + '...'}")
        path, value = _parsed(text, place, problems)
        if value is None:
            continue
        if path == ["extends"]:
            problems.add(place, "`extends` is followed before --set is looked at; change the file.")
        elif path[0] == "params":
            params = _over(params, _patch(path[1:], value, place), problems)
        elif path[0] == "lanes" and len(path) > 1 and path[1] not in document.submap("lanes").entries:
            late.append((path[1], Entry(place, _patch(path[2:], value, place))))
        elif path[0] == "pairs" and len(path) > 2 and path[1] not in document.submap("pairs").entries:
            known = document.submap("pairs").entries
            problems.add(place, f"there is no pair {quote(path[1])}.", given=path[1], known=known)
        else:
            document = _over(document, _patch(path, value, place), problems)
    return Overridden(document, tuple(late), params)


def _parsed(text: str, place: Place, problems: Problems) -> tuple[list[str], Node | None]:
    path: list[str] = []
    at = 0
    if not is_unicode(text):
        problems.add(place, "this is not UTF-8 text.")
        return path, None
    while match := _SEGMENT.match(text, at):
        path.append(match[1] or match[2] or match[3])
        at = match.end()
        if text[at : at + 1] == "=":
            if len(path) > MAX_DEPTH:
                break
            return path, read_value(text[at + 1 :], place, problems)
        if text[at : at + 1] != ".":
            break
        at += 1
    problems.add(place, 'expected KEY=VALUE, such as lanes.NAME.gpus=4 or lanes.NAME.flags."--x.y"=1.')
    return path, None


def _patch(path: Sequence[str], value: Node, place: Place) -> Node:
    node = value
    for part in reversed(path):
        node = Map({part: Entry(place, node)}, place, patch=True)
    return node


def _over(base: Map, patch: Node, problems: Problems) -> Map:
    merged = lay_over(base, patch, problems)
    if not isinstance(merged, Map):
        problems.add(patch.place, "expected a mapping.")
        return base
    return replace(merged, place=base.place)
