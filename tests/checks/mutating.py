"""Every small damage to a check's evidence: lines and keys that are gone, doubled, or hold something else."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

GONE = object()
VALUES = (GONE, None, -1, 10**15, float("nan"), "odd")


def mutants(path: Path) -> Iterator[str]:
    """Damage the file in one way after another, each told in words while it lasts; then it is whole again.

    `leg.entry = value` or `leg.entry gone` of lines, `entry.entry ...` of one document.
    """
    whole = path.read_text(encoding="utf-8")
    lines = path.suffix == ".jsonl"
    value = [json.loads(line) for line in whole.splitlines()] if lines else json.loads(whole)
    for what, damaged in _lines(value) if lines else _changed(value, ()):
        rows = "".join(json.dumps(row) + "\n" for row in damaged) if lines else json.dumps(damaged)
        path.write_text(rows, encoding="utf-8")
        yield what.lstrip(".")
    path.write_text(whole, encoding="utf-8")


def _lines(rows: list[Any]) -> Iterator[tuple[str, list[Any]]]:
    """The first line of each leg stands for the others of it."""
    seen: set[str] = set()
    for at, row in enumerate(rows):
        name = row.get("leg") or row["label"]
        yield f"{name} gone", rows[:at] + rows[at + 1 :]
        yield f"{name} doubled", [*rows[: at + 1], *rows[at:]]
        if name not in seen:
            seen.add(name)
            for what, changed in _changed(row, ()):
                yield f"{name}{what}", [*rows[:at], changed, *rows[at + 1 :]]


def _changed(value: Any, at: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    """Each entry of a tree; of a list and of the requests in a log the first alone."""
    here = _at(value, at)
    keys = list(here) if isinstance(here, dict) else [0] if here else []
    for key in keys[:1] if at[-1:] in (("requests",), ("transfers",)) else keys:
        path = "".join(f".{step}" for step in (*at, key))
        for new in VALUES:
            damaged = copy.deepcopy(value)
            parent = _at(damaged, at)
            if new is GONE:
                del parent[key]
            elif parent[key] == new:
                continue
            else:
                parent[key] = new
            yield f"{path} gone" if new is GONE else f"{path} = {new!r}", damaged
        if isinstance(here[key], dict | list):
            yield from _changed(value, (*at, key))


def _at(value: Any, at: tuple[Any, ...]) -> Any:
    for step in at:
        value = value[step]
    return value
