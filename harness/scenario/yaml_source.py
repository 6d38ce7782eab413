"""YAML text to a tree with places. The only module that knows YAML.

Read are the scalars of YAML 1.2's core schema: only `true` and `false` are booleans (`on`, `yes` and `no`
are text), `20:30` and dates are text, `0o17` and `0x1f` are whole numbers. Anchors and aliases may be used.
Refused, each with its place: duplicate keys, tags, merge keys (`<<`, use `extends`), keys that are no
scalars, several documents, more than 256 KiB, 10,000 values (aliases counted as often as they are used) or
32 levels.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from harness.scenario.problems import Place, Problems, is_unicode, printable, quote
from harness.scenario.tree import Entry, Leaf, Map, Node, Seq, Value, describe

MAX_BYTES: Final = 256 * 1024
MAX_NODES: Final = 10_000
MAX_DEPTH: Final = 32
MAX_DIGITS: Final = 300

_INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(
    r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)
_BASES: Final = {"0o": 8, "0x": 16}
_WORDS: Final[dict[str, Value]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


def read_file(path: Path, problems: Problems) -> Map | None:
    """The mapping that a YAML file holds; None, and a problem added, when it cannot be read."""
    source = printable(str(path))
    try:
        if not path.is_file():
            problems.add(Place(source), "is not a file that can be read.")
            return None
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        problems.add(Place(source), f"cannot be read: {error.strerror}.")
        return None
    if len(raw) > MAX_BYTES:
        problems.add(Place(source), f"is larger than {MAX_BYTES // 1024} KiB; is this a scenario?")
        return None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # The BOM, when there is one, is not counted in the error's position either.
        before = error.object[: error.start].decode("utf-8", "replace")
        problems.add(_place_of(before, source), "is not UTF-8 text here.")
        return None
    node = read_text(text, source, problems)
    if node is None or isinstance(node, Map):
        return node
    empty = isinstance(node, Leaf) and node.text == ""
    what = "the file is empty" if empty else f"expected a mapping, got {describe(node)}"
    problems.add(node.place, f"{what}; a scenario is a mapping with `lanes:` in it.")
    return None


def read_text(text: str, source: str, problems: Problems) -> Node | None:
    """The tree of one YAML document; None, and a problem added, when it is broken."""
    composer = _Composer(text, source, problems)
    try:
        return composer.document()
    except _Broken as broken:
        problems.add(broken.place, str(broken))
    except yaml.reader.ReaderError as error:
        place = _place_of(text[: error.position], source)
        problems.add(place, f"character U+{ord(text[error.position]):04X} is not allowed in YAML.")
    except yaml.MarkedYAMLError as error:
        problems.add(composer.mark(error.problem_mark or error.context_mark), _syntax(error))
    except (ValueError, OverflowError) as error:
        # The scanner trips over escapes that are no character, such as "\UFFFFFFFF".
        problems.add(composer.place, f"not valid YAML after this place: {error}.")
    return None


def read_value(text: str, place: Place, problems: Problems) -> Node | None:
    """The VALUE of `--set KEY=VALUE`: flow YAML when it starts with a bracket or quote, else one scalar.

    An empty VALUE is the empty text. None, and a problem added, when it is broken.
    """
    if text[:1] in ("[", "{", '"', "'"):
        node = read_text(text, place.source, problems)
        return None if node is None else _moved(node, place)
    return Leaf(resolve(text) if text else "", text, place)


def resolve(text: str) -> Value:
    """What an unquoted scalar means in YAML 1.2's core schema. Numbers of absurd length stay text."""
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > MAX_DIGITS:
        return text
    if _INTEGER.fullmatch(text):
        base = _BASES.get(text[:2], 10)
        return int(text if base == 10 else text[2:], base)
    if _FLOAT.fullmatch(text):
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text


class _Broken(Exception):
    """The document cannot be read any further."""

    def __init__(self, place: Place, sentence: str) -> None:
        super().__init__(sentence)
        self.place = place


class _Composer:
    """Builds the tree from parser events, so that sizes and depths are known before memory is used."""

    def __init__(self, text: str, source: str, problems: Problems) -> None:
        self.source = source
        self.problems = problems
        self.place = Place(source, 1, 1)
        self._events: Iterator[yaml.Event] = yaml.parse(text, Loader=yaml.SafeLoader)
        self._anchors: dict[str, tuple[Node, int] | None] = {}
        self._count = 0

    def mark(self, mark: Any) -> Place:
        return self.place if mark is None else Place(self.source, mark.line + 1, mark.column + 1)

    def document(self) -> Node:
        event = self._next()
        while isinstance(event, (yaml.StreamStartEvent, yaml.DocumentStartEvent)):
            event = self._next()
        if isinstance(event, yaml.StreamEndEvent):
            return Leaf(None, "", Place(self.source, 1, 1))
        node = self._node(event, 0)
        self._next()
        if not isinstance(self._next(), yaml.StreamEndEvent):
            raise _Broken(self.place, "a second document starts here; a scenario is one document.")
        return node

    def _next(self) -> yaml.Event:
        event = next(self._events)
        self.place = self.mark(event.start_mark)
        return event

    def _node(self, event: yaml.Event, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise _Broken(self.place, f"nested deeper than {MAX_DEPTH} levels.")
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        if not isinstance(event, (yaml.ScalarEvent, yaml.SequenceStartEvent, yaml.MappingStartEvent)):
            raise _Broken(self.place, "not valid YAML here.")
        before = self._count
        self._counted(1)
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        if event.tag is not None:
            self.problems.add(self.place, f"tag {quote(event.tag)} is not allowed; write the plain value.")
        node = self._content(event, depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = (node, self._count - before)
        return node

    def _content(
        self, event: yaml.ScalarEvent | yaml.SequenceStartEvent | yaml.MappingStartEvent, depth: int
    ) -> Node:
        place = self.place
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event)
        if isinstance(event, yaml.SequenceStartEvent):
            items = []
            while not isinstance(inner := self._next(), yaml.SequenceEndEvent):
                items.append(self._node(inner, depth + 1))
            return Seq(tuple(items), place)
        entries: dict[str, Entry] = {}
        while not isinstance(inner := self._next(), yaml.MappingEndEvent):
            at = self.place
            key = self._key(inner)
            entry = Entry(at, self._node(self._next(), depth + 1))
            if key in entries:
                first = entries[key].key.line
                self.problems.add(at, f"{quote(key)} is given twice; the first is on line {first}.")
            else:
                entries[key] = entry
        return Map(entries, place)

    def _key(self, event: yaml.Event) -> str:
        plain = isinstance(event, (yaml.ScalarEvent, yaml.AliasEvent))
        node = self._node(event, 0) if plain else None
        if not isinstance(node, Leaf):
            raise _Broken(self.place, "a key must be plain text.")
        if not node.text:
            raise _Broken(node.place, "a key is empty.")
        if node.text == "<<":
            self.problems.add(self.place, "merge keys (`<<`) are not read; use `extends`.")
        return node.text

    def _scalar(self, event: yaml.ScalarEvent) -> Leaf:
        text = event.value
        if not is_unicode(text):
            raise _Broken(self.place, "half a surrogate pair is not a character.")
        return Leaf(text if event.style else resolve(text), text, self.place)

    def _alias(self, event: yaml.AliasEvent) -> Node:
        name = str(event.anchor)
        if name not in self._anchors:
            raise _Broken(self.place, f"alias {quote('*' + name)} stands before any anchor of that name.")
        known = self._anchors[name]
        if known is None:
            raise _Broken(self.place, f"alias {quote('*' + name)} is inside its own anchor.")
        node, count = known
        self._counted(count)
        return node

    def _counted(self, nodes: int) -> None:
        self._count += nodes
        if self._count > MAX_NODES:
            raise _Broken(self.place, f"more than {MAX_NODES} values (aliases count each time).")


def _moved(node: Node, place: Place) -> Node:
    """The same tree with one place for everything: a command-line option has no lines."""
    if isinstance(node, Leaf):
        return Leaf(node.value, node.text, place)
    if isinstance(node, Seq):
        return Seq(tuple(_moved(item, place) for item in node.items), place)
    return Map({key: Entry(place, _moved(entry.node, place)) for key, entry in node.entries.items()}, place)


def _syntax(error: yaml.MarkedYAMLError) -> str:
    problem = error.problem or "broken"
    if "'\\t'" in problem:
        return "a tab stands where YAML wants spaces."
    context = f" {error.context}" if error.context else ""
    if error.context and error.context_mark is not None and error.context_mark is not error.problem_mark:
        context += f" that starts on line {error.context_mark.line + 1}"
    return f"not valid YAML: {printable(problem)}{context}."


def _place_of(before: str, source: str) -> Place:
    return Place(source, before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1)
