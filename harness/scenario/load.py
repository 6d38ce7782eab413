"""Scenario files: find them, list them, load them.

    description: BF16 KV against q8_0 KV
    extends: _base.yaml             # a file, relative to this one, or a list of them; later ones win
    params: {MODEL_DIR: /models/x}  # defaults of ${MODEL_DIR}
    lanes:
      _common:                      # a name that starts with _ is a template: not run
        engine: llamacpp
        model: {pull: smollm2-135m, served_name: smol}
        flags: {--ctx-size: 8192, --flash-attn: on}
        env: {LOADWORKER: 8}
        checks: {gsm8k: {num_concurrent: 4}}
      kv-{kv}:                      # becomes kv-bf16 and kv-q8_0
        extends: _common            # a lane of this scenario, or a list of them
        matrix: {kv: [bf16, q8_0]}
        flags: {--cache-type-k: "{kv}"}
    pairs:
      q8: {baseline: kv-bf16, candidate: kv-q8_0, may_differ: [flags.--cache-type-*], max_drop_pp: 1.0}

Every key is described in `written.py`; `harness schema` prints that for editors. In this order:

1. **Files** are read (`yaml_source.py`, YAML 1.2: `on` is text) and laid over one another: mappings merge,
   lists and scalars replace. `null` takes out an inherited value, `false` an inherited flag, check, lane or
   pair; an empty value (`gsm8k:`) leaves an inherited mapping alone.
2. **`--set`** is laid over that (`overrides.py`).
3. **Lanes** follow `extends`, then `matrix` (`expand.py`). `--set lanes.NAME...` with the name of a lane
   that a matrix made is laid over that lane now.
4. **Placeholders** are filled into every text, not into keys nor `extends` (`fill.py`). They are text;
   number fields read numbers from text. Lanes left out by `--lane`, and templates, may lack values.
5. **Types and references** are checked (`written.py`, `validate.py`, `build.py`). Flags and environment
   are kept as written: `0.90` stays `0.90`. They never pass through a shell.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from pydantic import BaseModel

import harness
from harness.errors import ConfigError
from harness.scenario.build import Builder
from harness.scenario.document import read_document
from harness.scenario.exemptions import check_exemptions
from harness.scenario.expand import Expansion, expand
from harness.scenario.fill import Filler
from harness.scenario.model import Lane, Pair, Scenario
from harness.scenario.overrides import override
from harness.scenario.problems import Place, Problems, nearest, printable, quote, suggest
from harness.scenario.tree import Map, as_written, lay_over, places
from harness.scenario.validate import no_empty_values, validate
from harness.scenario.written import WrittenScenario

SUFFIXES: Final = (".yaml", ".yml")


class Listed(NamedTuple):
    """A line of `harness list`; the description of a broken file says what is wrong with it."""

    name: str
    description: str
    path: Path


def load(
    name: str,
    *,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str],
    engines: Collection[str],
    check_params: Mapping[str, type[BaseModel]],
    lanes: Sequence[str] = (),
    more_problems: Callable[[Scenario], Iterable[str]] = lambda _: (),
) -> Scenario:
    """The scenario called `name` (see `find`) with `--set` and `--lane` applied.

    Raises one ConfigError with all problems, each as `file:line:column: sentence. Did you mean ...?`. Where
    there are any, those that `more_problems` finds in the lanes that are sound are told with them, so that
    one look mends all.
    """
    path = find(name)
    problems = Problems()
    document = read_document(path, problems)
    if document is None:
        problems.raise_if_any(name)
        raise ConfigError(f"{quote(str(path))} cannot be read.")
    given = override(document, overrides, problems)
    document = given.document
    filler = Filler(
        given=given.params, environ=environ, defaults=document.submap("params"), problems=problems
    )
    top = _top(document, given.params, path, filler, problems)
    expansion = expand(document.submap("lanes"), given.late, filler, problems)
    if expansion.complete and all(lane.template for lane in expansion.lanes):
        problems.add(document.place, "there are no lanes; a scenario needs at least one under `lanes:`.")
    builder = Builder(engines, check_params, problems)
    wanted = _wanted(expansion, lanes, problems)
    built, sound = _lanes(expansion, wanted, filler, builder)
    pairs = _pairs(document.submap("pairs"), expansion, built, wanted, filler, builder)
    filler.report_unused()
    scenario_name = (top and top.name) or path.stem
    builder.safe_name(scenario_name, document.place, "scenario")
    left_out = tuple(raw.name for raw in expansion.lanes if not raw.template and raw.name not in wanted)
    part = Scenario(
        name=scenario_name, source=path, lanes={lane: built[lane] for lane in sound}, left_out=left_out
    )
    problems.raise_if_any(name, lambda: more_problems(part))
    assert top is not None
    return Scenario(
        name=scenario_name,
        description=top.description or "",
        source=path.resolve(),
        params=filler.params,
        lanes=built,
        pairs=pairs,
        left_out=left_out,
    )


def find(name: str) -> Path:
    """The file of a scenario: a path to a .yaml file, else NAME.yaml in ./scenarios, then the shipped ones.

    Raises ConfigError with the nearest names and the list of what there is.
    """
    given = Path(name)
    as_path = given.suffix in SUFFIXES or "/" in name
    for file in [given] if as_path else [folder / f"{name}.yaml" for folder in _folders()]:
        if _is_file(file):
            return file
    stem = given.stem if as_path else name
    known = [listed.name for listed in available()]
    near = suggest(stem, known) if nearest(stem, known) else ""
    listing = f"the scenarios are: {', '.join(known)}" if known else "there are no scenarios in ./scenarios"
    what = "scenario file" if as_path else "scenario"
    raise ConfigError(f"there is no {what} {quote(name, 200)}. {near}".rstrip(), fix=listing)


def available() -> list[Listed]:
    """Every scenario that can be run by name; a broken one is listed with what is wrong with it.

    Files whose name starts with `_` are parts of others. A file in ./scenarios hides a shipped one.
    """
    found: dict[str, Listed] = {}
    for folder in _folders():
        for path in sorted(folder.glob("*.yaml")):
            if not path.name.startswith("_") and path.stem not in found:
                found[path.stem] = Listed(path.stem, _description(path), path)
    return [found[name] for name in sorted(found)]


def _description(path: Path) -> str:
    problems = Problems()
    document = read_document(path, problems)
    if document is None or problems:
        return f"broken: {problems.texts()[0]}"
    node = document.get("description")
    return " ".join(str(getattr(node, "text", "")).split())


def _folders() -> list[Path]:
    """Where scenarios are looked for: beside the user, then in the package or its checkout."""
    package = Path(harness.__file__).parent
    checkout = package.parent / "scenarios"
    shipped = package / "scenarios"
    folders = [Path("scenarios"), shipped if shipped.is_dir() else checkout]
    return [folder for folder in folders if folder.is_dir()]


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # such as a name longer than file names can be
        return False


def _top(
    document: Map, params: Map, path: Path, filler: Filler, problems: Problems
) -> WrittenScenario | None:
    """Checks the top level; what is inside lanes and pairs is checked once they are expanded."""
    at = Place(printable(str(path)), 1, 1)
    bare = document.without("params", "lanes", "pairs")
    filled = filler.fill(bare, {})
    assert isinstance(filled, Map)
    for key in ("lanes", "pairs"):
        node = document.get(key)
        if node is not None:
            filled = filled.replaced(key, Map({}, node.place) if isinstance(node, Map) else node)
    own = document.get("params") or params
    no_empty_values(document, "params", problems)
    filled = filled.replaced("params", as_written(lay_over(own, params, problems) if params.entries else own))
    return validate(WrittenScenario, filled, at, problems, what="a scenario")


def _wanted(expansion: Expansion, lanes: Sequence[str], problems: Problems) -> set[str]:
    """The lanes to run: those of `--lane`, or all."""
    names = {lane.name for lane in expansion.lanes if not lane.template}
    if not lanes:
        return names
    for name in lanes:
        if name not in names and expansion.complete:
            problems.add(
                Place(f"--lane {printable(name)}"), "there is no such lane.", given=name, known=names
            )
    return names.intersection(lanes)


def _lanes(
    expansion: Expansion, wanted: set[str], filler: Filler, builder: Builder
) -> tuple[dict[str, Lane], list[str]]:
    """All lanes are checked, the wanted ones strictly and returned, with the names of those of them in which
    nothing was found wrong."""
    built = {}
    sound = []
    for raw in expansion.lanes:
        strict = raw.name in wanted
        tree = filler.fill(raw.tree, raw.cell, strict=strict)
        assert isinstance(tree, Map)
        lane = builder.lane(raw.with_tree(tree), strict=strict)
        if lane is not None and strict:
            built[lane.name] = lane
            if not builder.problems.touch([raw.place, *places(tree)]):
                sound.append(lane.name)
        elif strict and not builder.problems:
            # No lane may vanish without a word: a run without it would look complete.
            builder.problems.add(raw.place, f"lane {quote(raw.name)} could not be made; this is a bug.")
    return built, sound


def _pairs(
    pairs: Map,
    expansion: Expansion,
    lanes: dict[str, Lane],
    wanted: set[str],
    filler: Filler,
    builder: Builder,
) -> dict[str, Pair]:
    """All pairs are checked; those whose lanes are both wanted are returned."""
    trees = {raw.name: raw.tree for raw in expansion.lanes if not raw.template}
    built = {}
    for name, entry in pairs.kept().entries.items():
        node = filler.fill(entry.node, {})
        pair = builder.pair(name, entry.key, node, trees if expansion.complete else None)
        if pair is not None and {pair.baseline, pair.candidate} <= wanted:
            built[name] = pair
            if {pair.baseline, pair.candidate} <= set(lanes):
                check_exemptions(pair, lanes, node, builder.problems)
    return built
