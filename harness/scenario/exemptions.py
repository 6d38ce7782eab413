"""Entries of `may_differ` that can exempt nothing, as far as the scenario alone can tell.

What the servers say of themselves (`config.*`), what a check adds (`check.*`) and versions are known after
the run only, and a wildcard may be meant for them all. A flag is known now: one that neither lane sets is
misspelt. Of the environment only what resembles a variable that differs is told, for engines set some too.
"""

import re
from typing import Final, get_args

from harness.scenario.model import Lane, Pair, Role
from harness.scenario.problems import Place, Problems, nearest, quote
from harness.scenario.tree import Map, Node, Seq

_WILD: Final = re.compile(r"[*?\[]")
_KNOWN_NOW: Final = re.compile(rf"(?:(?:{'|'.join(get_args(Role))})\.)?(?P<group>flags|env)\..+", re.DOTALL)


def check_exemptions(pair: Pair, lanes: dict[str, Lane], node: Node, problems: Problems) -> None:
    """Add a problem for each idle entry of the pair; `node` is the pair as it was written."""
    baseline, candidate = (_settings(lanes[name]) for name in (pair.baseline, pair.candidate))
    known = {**baseline, **candidate}
    differing = [key for key in known if baseline.get(key) != candidate.get(key)]
    for number, entry in enumerate(pair.may_differ):
        match = _KNOWN_NOW.fullmatch(entry)
        if match is None or _WILD.search(entry) or entry in known:
            continue
        if match["group"] == "flags" or nearest(entry, differing):
            sentence = f"`may_differ` of pair {quote(pair.name)}: neither lane sets {quote(entry)}."
            problems.add(_place(node, number), sentence, given=entry, known=differing)


def _settings(lane: Lane) -> dict[str, object]:
    """Flags and environment under the names that parity gives them."""
    found: dict[str, object] = {}
    for server in lane.servers:
        front = "" if len(lane.servers) == 1 else f"{server.role}."
        found |= {f"{front}flags.{name}": value for name, value in server.flags.items()}
        found |= {f"{front}env.{name}": value for name, value in server.env.items()}
    return found


def _place(node: Node, number: int) -> Place:
    entries = node.get("may_differ") if isinstance(node, Map) else None
    if isinstance(entries, Seq) and number < len(entries.items):
        return entries.items[number].place
    return node.place
