"""A scenario file as a tree in which every key and value remembers where it was written.

Immutable, so that parts are shared freely between lanes. Laying one tree over another (`lay_over`) is how
`extends`, servers and `--set` are merged.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from harness.scenario.problems import Place, Problems, quote

Value: TypeAlias = bool | int | float | str | None


@dataclass(frozen=True, slots=True)
class Leaf:
    """A scalar: `value` as YAML 1.2 reads it, `text` exactly as it was written (`0.90` stays `0.90`)."""

    value: Value
    text: str
    place: Place

    @property
    def dropped(self) -> bool:
        """`null` or `false`: takes out an inherited entry. An empty value adds nothing and drops nothing."""
        return self.value is False or (self.value is None and self.text != "")


@dataclass(frozen=True, slots=True)
class Seq:
    items: "tuple[Node, ...]"
    place: Place


@dataclass(frozen=True, slots=True)
class Entry:
    """One `key: value`; `key` is where the key stands."""

    key: Place
    node: "Node"


@dataclass(frozen=True, slots=True)
class Map:
    """A mapping. A `patch` comes from `--set`: its whole-number keys address items of a list below it."""

    entries: Mapping[str, Entry]
    place: Place
    patch: bool = False

    def get(self, key: str) -> "Node | None":
        entry = self.entries.get(key)
        return None if entry is None else entry.node

    def submap(self, key: str) -> "Map":
        """The mapping under `key`; an empty one where there is none (or something else)."""
        node = self.get(key)
        return node if isinstance(node, Map) else Map({}, self.place)

    def without(self, *keys: str) -> "Map":
        return Map({key: entry for key, entry in self.entries.items() if key not in keys}, self.place)

    def kept(self) -> "Map":
        """Without the entries that `null` or `false` take out."""
        kept = {
            key: entry
            for key, entry in self.entries.items()
            if not (isinstance(entry.node, Leaf) and entry.node.dropped)
        }
        return Map(kept, self.place)

    def replaced(self, key: str, node: "Node") -> "Map":
        entry = self.entries.get(key)
        return Map({**self.entries, key: Entry(entry.key if entry else node.place, node)}, self.place)


Node: TypeAlias = Leaf | Seq | Map


def lay_over(base: Node, over: Node, problems: Problems) -> Node:
    """`over` on top of `base`: mappings merge key by key, anything else replaces.

    `null` replaces too, and means "not given" to all who read it; an empty value (`key:`) leaves an inherited
    mapping alone.
    """
    if isinstance(over, Map) and isinstance(base, Map):
        return _merge(base, over, problems)
    if isinstance(over, Map) and over.patch and isinstance(base, Seq):
        return _patch_items(base, over, problems)
    return over


def is_empty(node: Node) -> bool:
    """Nothing at all stands there; a written `null` is something."""
    return isinstance(node, Leaf) and node.value is None and node.text == ""


def _merge(base: Map, over: Map, problems: Problems) -> Map:
    entries = dict(base.entries)
    for key, entry in over.entries.items():
        inherited = entries.get(key)
        if inherited is None:
            entries[key] = entry
        elif not (is_empty(entry.node) and isinstance(inherited.node, Map)):
            entries[key] = Entry(entry.key, lay_over(inherited.node, entry.node, problems))
    return Map(entries, over.place, patch=base.patch and over.patch)


def _patch_items(base: Seq, over: Map, problems: Problems) -> Node:
    items = list(base.items)
    for key, entry in over.entries.items():
        if key.isascii() and key.isdigit() and len(key) < 9 and int(key) < len(items):
            items[int(key)] = lay_over(items[int(key)], entry.node, problems)
        else:
            sentence = f"{quote(key)} is no item of the list, which has {len(items)}, counted from 0."
            problems.add(entry.key, sentence)
    return Seq(tuple(items), base.place)


def map_leaves(node: Node, change: Callable[[Leaf], Leaf]) -> Node:
    """The same tree with every scalar passed through `change`."""
    if isinstance(node, Leaf):
        return change(node)
    if isinstance(node, Seq):
        return Seq(tuple(map_leaves(item, change) for item in node.items), node.place)
    entries = {key: Entry(entry.key, map_leaves(entry.node, change)) for key, entry in node.entries.items()}
    return Map(entries, node.place, node.patch)


def plain(node: Node) -> Any:
    """The tree as plain Python values."""
    if isinstance(node, Leaf):
        return node.value
    if isinstance(node, Seq):
        return [plain(item) for item in node.items]
    return {key: plain(entry.node) for key, entry in node.entries.items()}


def as_written(node: Node, *, keep: tuple[type, ...] = ()) -> Node:
    """Scalars become their text, except `null` and, at the top of each entry, values of the types `keep`."""

    def text(leaf: Leaf) -> Leaf:
        return leaf if leaf.value is None else Leaf(leaf.text, leaf.text, leaf.place)

    if isinstance(node, Map):
        entries = {
            key: entry
            if isinstance(entry.node, Leaf) and isinstance(entry.node.value, keep)
            else Entry(entry.key, map_leaves(entry.node, text))
            for key, entry in node.entries.items()
        }
        return Map(entries, node.place, node.patch)
    return map_leaves(node, text)


def walk(node: Node, path: tuple[str | int, ...]) -> Iterator[tuple[Place | None, Node]]:
    """The nodes along `path` as far as it goes, each with its key's place (None for items of a list)."""
    for part in path:
        if isinstance(node, Map) and str(part) in node.entries:
            entry = node.entries[str(part)]
            node = entry.node
            yield entry.key, node
        elif isinstance(node, Seq) and isinstance(part, int) and part < len(node.items):
            node = node.items[part]
            yield None, node
        else:
            return


def places(node: Node) -> Iterator[Place]:
    """Of every key and value."""
    yield node.place
    if isinstance(node, Seq):
        for item in node.items:
            yield from places(item)
    elif isinstance(node, Map):
        for entry in node.entries.values():
            yield entry.key
            yield from places(entry.node)


def describe(node: Node) -> str:
    """What stands there, for a message."""
    if isinstance(node, Map):
        items = node.patch and all(key.isdigit() for key in node.entries)
        return "an item of a list that is not there" if items else "a mapping"
    if isinstance(node, Seq):
        return "a list"
    if node.value is None:
        return "nothing"
    return quote(node.text)
