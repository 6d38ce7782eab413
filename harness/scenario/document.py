"""A scenario file with everything it `extends`, merged into one document.

Paths are relative to the file that names them. Of several files later ones win, the file itself most.
`name` and `description` are not inherited. Placeholders are not looked at here.
"""

from pathlib import Path
from typing import Final

from harness.scenario.expand import names_in
from harness.scenario.problems import Place, Problems, nearest, printable, quote
from harness.scenario.tree import Leaf, Map, Node, lay_over
from harness.scenario.yaml_source import read_file

MAX_CHAIN: Final = 16


def read_document(path: Path, problems: Problems) -> Map | None:
    """The merged document; None, and every problem added, when a file of it cannot be read."""
    return _Files(problems).merged(path, Place(printable(str(path))))


class _Files:
    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._done: dict[Path, Map | None] = {}
        self._open: list[Path] = []

    def merged(self, path: Path, named_at: Place) -> Map | None:
        try:
            key = path.resolve()
        except (OSError, RuntimeError):  # RuntimeError: symbolic links in a circle
            self._problems.add(named_at, f"{quote(str(path))} cannot be read.")
            return None
        if key in self._open:
            circle = " -> ".join(printable(file.name) for file in [*self._open[self._open.index(key) :], key])
            self._problems.add(named_at, f"files extend one another in a circle: {circle}.")
            return None
        if len(self._open) > MAX_CHAIN:
            self._problems.add(named_at, f"more than {MAX_CHAIN} files extend one another in a row.")
            return None
        if key not in self._done:
            self._open.append(key)
            self._done[key] = self._read(path)
            self._open.pop()
        return self._done[key]

    def _read(self, path: Path) -> Map | None:
        own = read_file(path, self._problems)
        if own is None:
            return None
        parents = names_in(own.get("extends"), "a file or a list of files", self._problems)
        complete = parents is not None
        merged: Node = Map({}, own.place)
        for parent in parents or ():
            inherited = self._parent(path, parent)
            complete = complete and inherited is not None
            if inherited is not None:
                merged = lay_over(merged, inherited.without("name", "description"), self._problems)
        if not complete:
            return None
        merged = lay_over(merged, own.without("extends"), self._problems)
        assert isinstance(merged, Map)
        return merged

    def _parent(self, path: Path, parent: Leaf) -> Map | None:
        file = path.parent / parent.text
        if "\0" in parent.text or not file.is_file():
            # Compared without the suffix, in which all names are alike.
            siblings = sorted(other.stem for other in path.parent.glob("*.yaml") if other.name != path.name)
            near = [f"{stem}.yaml" for stem in nearest(Path(parent.text).stem, siblings)]
            sentence = f"extends {quote(parent.text)}, but there is no such file beside this one."
            self._problems.add(parent.place, sentence, given=parent.text, known=near)
            return None
        return self.merged(file, parent.place)
