"""Placeholders: `${NAME}` and `${NAME:-default}` from parameters and environment, `{key}` from a matrix.

`--set params.NAME=VALUE` wins over the environment, that over the file's `params`, that over the default. As
in a shell's `:-`, an empty value counts as none wherever there is another. `$$` is a dollar. What was filled
in is never looked at again, and the value of a parameter may use the environment but no other parameter.
"""

import re
from collections.abc import Mapping, Set
from typing import Final

from harness.scenario.problems import Place, Problems, is_unicode, nearest, quote
from harness.scenario.tree import Leaf, Map, Node, as_written, map_leaves

MAX_FILLED: Final = 4 * 1024 * 1024  # characters filled in altogether

_TOKEN = re.compile(
    r"\$\$|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^{}]*))?\}"
    r"|(?P<broken>\$\{)|\{(?P<key>[A-Za-z_][A-Za-z0-9_]*)\}"
)


class Filler:
    """Fills placeholders. `given` are the parameters of `--set`, `defaults` those of the file."""

    def __init__(self, *, given: Map, environ: Mapping[str, str], defaults: Map, problems: Problems) -> None:
        self._problems = problems
        self._given = given
        self._left = MAX_FILLED
        self._used: set[str] = set(defaults.entries)
        own = {**_leaves(defaults), **_leaves(given)}
        # While the parameters themselves are filled in, only the environment is there to look at.
        self._sources: tuple[Mapping[str, str], ...] = (environ,)
        self._names = [*own, *environ]
        filled_given = self._filled_params(_leaves(given))
        overridden = {name for name in own if filled_given.get(name) or environ.get(name)}
        filled_defaults = self._filled_params(_leaves(defaults), overridden)
        self._sources = (filled_given, environ, filled_defaults)
        self.params = {name: self._lookup(name) or "" for name in own}

    def fill(self, node: Node, cell: Mapping[str, str], *, strict: bool = True) -> Node:
        """The tree with everything filled in; `cell` is the combination of the lane's matrix.

        Not strict: what is set nowhere stays as it stands, without a problem.
        """
        return map_leaves(node, lambda leaf: self._leaf(leaf, cell, strict))

    def report_unused(self) -> None:
        """Parameters given with --set that no placeholder asks for: most likely misspelt."""
        for name, entry in self._given.entries.items():
            if name not in self._used:
                sentence = f"no placeholder {quote('${' + name + '}')} stands in this scenario."
                self._problems.add(entry.key, sentence, given=name, known=self._used)

    def _filled_params(self, leaves: Mapping[str, Leaf], skip: Set[str] = frozenset()) -> dict[str, str]:
        return {name: self._leaf(leaf, {}, True).text for name, leaf in leaves.items() if name not in skip}

    def _lookup(self, name: str) -> str | None:
        values = [source[name] for source in self._sources if name in source]
        return next((value for value in values if value), "" if values else None)

    def _leaf(self, leaf: Leaf, cell: Mapping[str, str], strict: bool) -> Leaf:
        if not isinstance(leaf.value, str) or not ("$" in leaf.value or (cell and "{" in leaf.value)):
            return leaf

        def value(match: re.Match[str]) -> str:
            filled = self._token(match, cell, leaf.place, strict)
            self._left -= len(filled)
            if self._left >= 0:
                return filled
            self._problems.add(leaf.place, "too much text once the placeholders are filled in.")
            return ""

        text = _TOKEN.sub(value, leaf.value)
        if text == leaf.value:
            return leaf
        return Leaf(text, text, leaf.place)

    def _token(self, match: re.Match[str], cell: Mapping[str, str], place: Place, strict: bool) -> str:
        whole = match.group()
        if whole == "$$":
            return "$"
        if match["key"] is not None:
            return self._cell(match["key"], cell, place, whole)
        if match["broken"] is not None:
            self._problems.add(
                place, "`${` starts no placeholder: write `${NAME}`, `${NAME:-text}`, or `$$` for a dollar."
            )
            return whole
        name, default = match["name"], match["default"]
        self._used.add(name)
        found = self._lookup(name)
        if found is None or (not found and default):
            found = default
        if found is None and strict:
            self._unset(name, place)
        elif found is not None and not is_unicode(found):
            self._problems.add(place, f"the value of `${{{name}}}` is not UTF-8 text.")
        return whole if found is None else found

    def _cell(self, key: str, cell: Mapping[str, str], place: Place, whole: str) -> str:
        """Braces that name no key of the matrix stay: JSON has them too. What looks like a slip does not."""
        if key not in cell and not self._problems.many and (near := nearest(key, cell)):
            self._problems.add(
                place, f"`{{{key}}}` is no key of the lane's matrix. Did you mean `{{{near[0]}}}`?"
            )
        return cell.get(key, whole)

    def _unset(self, name: str, place: Place) -> None:
        near = nearest(name, self._names) if not self._problems.many else []
        hint = f" Did you mean `${{{near[0]}}}`?" if near else ""
        self._problems.add(
            place,
            f"{quote('${' + name + '}')} is set nowhere: not by --set params.{name}=..., not in the "
            f"environment, not under `params`, and it has no default.{hint}",
        )


def _leaves(params: Map) -> dict[str, Leaf]:
    """Parameters with a value, as written; the others are reported where the file is validated."""
    texts = as_written(params)
    assert isinstance(texts, Map)
    return {
        name: entry.node
        for name, entry in texts.entries.items()
        if isinstance(entry.node, Leaf) and entry.node.value is not None
    }
