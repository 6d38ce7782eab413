"""The rooms of the house: arrows point down only, and each third-party package has one or two homes."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.checks import CHECKS
from harness.engines import ENGINES

ROOT = Path(__file__).parents[1] / "harness"

# A room may import rooms of a lower floor, and its own floor's only where listed.
FLOORS = [
    {"__main__"},
    {"cli"},
    {"executors"},
    {"deploy", "triage", "simulator"},
    {"checks"},
    {"report"},
    {"accuracy"},
    {"engines", "models", "logscan"},
    {"host", "evidence", "datasets"},
    {"scenario", "events"},
    {"errors"},
    {"findings"},
    {"codes"},
    {"verdict"},
]
SIDEWAYS = {
    ("engines", "logscan"),
    ("logscan", "engines"),
    ("report", "deploy"),
    ("accuracy", "engines"),
    ("errors", "findings"),
}

HOMES = {
    "typer": {"cli"},
    "rich": {"report"},
    "httpx": {"engines/client.py"},
    "psutil": {"host"},
    "pynvml": {"host/gpu/nvml.py"},
    "tokenizers": {"checks/prompts.py", "simulator/tokenizer.py"},
    "yaml": {"scenario"},
    "xllamacpp": {"engines/llamacpp/llama_server.py"},
    "lm_eval": set(),
}


def _modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            if node.module == "harness":
                yield from (f"harness.{alias.name}" for alias in node.names)


def _room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def _floor(room: str) -> int:
    return next(number for number, rooms in enumerate(FLOORS) if room in rooms)


@pytest.mark.parametrize("path", _modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_arrows_point_down(path: Path) -> None:
    room = _room(path)
    if room == "__init__":
        return
    for name in _imports(path):
        parts = name.split(".")
        if parts[0] != "harness" or len(parts) == 1:
            continue
        other = parts[1]
        if other == room or other.startswith("__") or (room, other) in SIDEWAYS:
            continue
        assert _floor(other) > _floor(room), f"{path.name} ({room}) imports {name}"


@pytest.mark.parametrize("path", _modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_third_party_packages_stay_in_their_homes(path: Path) -> None:
    place = str(path.relative_to(ROOT))
    for name in _imports(path):
        package = name.split(".")[0]
        if package in HOMES:
            allowed = HOMES[package]
            assert any(place == home or place.startswith(f"{home}/") for home in allowed), f"{place}: {name}"


def _members(family: str) -> set[str]:
    """The file, or the folder, of each entry of a family's table."""
    table: dict[str, object] = {**ENGINES} if family == "engines" else {**CHECKS}
    return {type(member).__module__.split(".")[2] for member in table.values()}


@pytest.mark.parametrize("family", ["engines", "checks"])
def test_members_of_a_family_do_not_import_one_another(family: str) -> None:
    members = _members(family)
    assert members
    for member in members:
        place = ROOT / family / member
        for path in place.glob("*.py") if place.is_dir() else [place.with_suffix(".py")]:
            for name in _imports(path):
                parts = name.split(".")
                is_sibling = (
                    parts[:2] == ["harness", family] and len(parts) > 2 and parts[2] in members - {member}
                )
                assert not is_sibling, f"{path} imports {name}"


def test_an_engine_has_a_folder_of_its_own_and_the_shared_files_know_no_engine() -> None:
    engines = ROOT / "engines"
    members = _members("engines")
    assert all((engines / member).is_dir() for member in members)
    for path in engines.glob("*.py"):
        known = {name.split(".")[2] for name in _imports(path) if name.count(".") > 1} & members
        assert not known or path.name == "__init__.py", f"{path.name} imports {known}"


def test_no_file_is_two_rooms_in_one() -> None:
    for path in _modules():
        lines = len(path.read_text(encoding="utf-8").splitlines())
        assert lines <= 320, f"{path} has {lines} lines"
