"""Expanded trees to the frozen types of `model.py`, with every reference checked."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel

from harness.scenario.expand import RawLane
from harness.scenario.model import Lane, ModelSpec, Pair, ServerSpec, Timeouts
from harness.scenario.problems import Place, Problems, quote
from harness.scenario.tree import Entry, Leaf, Map, Node, Seq, as_written, describe, is_empty, plain, walk
from harness.scenario.validate import UNFILLED, no_bools_as_numbers, no_empty_values, unknown_keys, validate
from harness.scenario.written import NAME, WrittenLane, WrittenPair, WrittenServer

# Roles that only pass requests on: the lane's GPUs are not for them.
ROUTING: Final = ("master", "router")
ORDER: Final = ("normal", "prefill", "decode", *ROUTING)  # of starting; clients talk to the last
RESERVED: Final = re.compile(r".*\.(json|jsonl|txt|log|lock)|pairs", re.IGNORECASE)
PHASES: Final = ("scratch", "lane", "ready", "stop")  # a check's folder and time would be mixed up with them


@dataclass(frozen=True, slots=True)
class Builder:
    """Makes lanes and pairs. Whatever is wrong goes to `problems`; None comes back then."""

    engines: Collection[str]
    check_params: Mapping[str, type[BaseModel]]
    problems: Problems

    def lane(self, raw: RawLane, *, strict: bool) -> Lane | None:
        """A lane whose tree is filled in. Not strict: templates and lanes that are not run, in which
        something may be missing or not filled in."""
        tree = _normalised(raw.tree, self.problems)
        written = validate(WrittenLane, tree, raw.place, self.problems, what="a lane", lenient=not strict)
        engine = tree.get("engine")
        if isinstance(engine, Leaf) and engine.value and not self._unready(engine, strict):
            self._reference(engine.place, "there is no engine", engine.text, self.engines)
        checks = self._checks(tree.submap("checks"), strict=strict)
        if raw.template:
            return None
        self.safe_name(raw.name, raw.place, "lane")
        self._required(raw, tree)
        if written is None:
            return None
        servers = self._servers(raw, tree, written)
        model = self._model(raw, tree, written)
        if not servers or model is None or written.engine is None:
            return None
        given = written.timeouts.model_dump(exclude_none=True) if written.timeouts else {}
        duration = {} if written.minutes is None else {"minutes": written.minutes}
        return Lane(
            name=raw.name,
            description=written.description or "",
            engine=written.engine,
            python=written.python,
            binary=written.binary,
            model=model,
            servers=servers,
            checks=checks,
            timeouts=Timeouts(**given),
            required=written.required is not False,
            requires={key: value for key, value in (written.requires or {}).items() if value is not None},
            skip=written.skip or "",
            **duration,
        )

    def pair(self, name: str, at: Place, node: Node, lanes: Mapping[str, Map] | None) -> Pair | None:
        """A pair; `lanes` are the trees of all lanes by name, None when they are not all known."""
        if not isinstance(node, Map):
            self.problems.add(node.place, f"pair {quote(name)}: expected a mapping.")
            return None
        self.safe_name(name, at, "pair")
        written = validate(WrittenPair, node, at, self.problems, what="a pair")
        baseline, candidate, check = (
            _text(node, key, default)
            for key, default in (("baseline", ""), ("candidate", ""), ("check", "gsm8k"))
        )
        for side, lane in (("baseline", baseline), ("candidate", candidate)):
            if lanes is not None and lane:
                place = _place(node, (side,), at)
                self._reference(place, f"`{side}`: there is no lane", lane, lanes)
                self._pair_check(_place(node, ("check",), at), check, lane, lanes)
        if baseline and baseline == candidate:
            place = _place(node, ("candidate",), at)
            self.problems.add(place, f"pair {quote(name)} compares a lane with itself.")
        if written is None:
            return None
        return Pair(
            name=name,
            baseline=written.baseline,
            candidate=written.candidate,
            check=written.check,
            may_differ=tuple(written.may_differ or ()),
            max_drop_pp=written.max_drop_pp,
        )

    def safe_name(self, name: str, at: Place, what: str) -> None:
        """Names become directories of the run."""
        if "{" in name:
            self.problems.add(at, f"{what} {quote(name)}: its matrix has no key of the name in braces.")
        elif not NAME.fullmatch(name):
            sentence = "letters, digits, `.`, `_` and `-` only, at most 100, a letter or digit first"
            self.problems.add(at, f"{what} name {quote(name)} is no safe directory name: {sentence}.")
        elif RESERVED.fullmatch(name):
            self.problems.add(at, f"{what} name {quote(name)} is taken by the harness's own files.")

    def _unready(self, leaf: Leaf, strict: bool) -> bool:
        """Whether a placeholder is left, about which nothing more can be said."""
        return self.problems.knows(leaf.place) or (not strict and UNFILLED.search(leaf.text) is not None)

    def _reference(self, place: Place, sentence: str, given: str, known: Collection[str]) -> None:
        if given not in known:
            self.problems.add(place, f"{sentence} {quote(given)}.", given=given, known=known)

    def _pair_check(self, place: Place, check: str, lane: str, lanes: Mapping[str, Map]) -> None:
        if lane in lanes:
            known = lanes[lane].submap("checks").kept().entries
            self._reference(place, f"lane {quote(lane)} has no check", check, known)

    def _required(self, raw: RawLane, tree: Map) -> None:
        """What every lane must have in the end; told along with whatever else is wrong in it."""
        hints = {"model": "", "engine": f"; there are {', '.join(self.engines)}"}
        for key, hint in hints.items():
            node = tree.get(key)
            if node is None or (isinstance(node, Leaf) and node.value in (None, "")):
                name = quote(raw.written or raw.name)
                self.problems.add(raw.place, f"lane {name} has no {quote(key)}{hint}.")

    def _model(self, raw: RawLane, tree: Map, written: WrittenLane) -> ModelSpec | None:
        model = written.model
        if model is None:
            return None
        if (model.path is None) == (model.pull is None):
            both = "not both; `null` takes out the inherited one" if model.path else "there is neither"
            place = _place(tree, ("model",), raw.place)
            self.problems.add(place, f"`model` needs either `path` or `pull`: {both}.")
            return None
        return ModelSpec(**model.model_dump(exclude_none=True))

    def _servers(self, raw: RawLane, tree: Map, written: WrittenLane) -> tuple[ServerSpec, ...]:
        own = written.servers if written.servers is not None else [WrittenServer()]
        at = _place(tree, ("servers",), raw.place)
        roles = sorted(server.role for server in own)
        complete = (["normal"], *(sorted(["prefill", "decode", routing]) for routing in ROUTING))
        if roles not in complete:
            given = ", ".join(roles) or "none"
            sentence = "expected one normal server, or prefill, decode and master (or router)"
            self.problems.add(at, f"`servers`: {sentence}, got {given}.")
        ordered = sorted(own, key=lambda server: ORDER.index(server.role))
        return tuple(self._server(written, server) for server in ordered)

    def _server(self, lane: WrittenLane, own: WrittenServer) -> ServerSpec:
        env = {**(lane.env or {}), **(own.env or {})}
        routing = own.role in ROUTING
        inherited = {} if routing else lane.flags or {}
        flags = {**inherited, **(own.flags or {})}
        expect = {**({} if routing else lane.expect or {}), **(own.expect or {})}
        gpus = 0 if routing else lane.gpus or 0
        cpus = None if routing else lane.cpus
        return ServerSpec(
            role=own.role,
            flags={name: value for name, value in flags.items() if value is not None and value is not False},
            env={name: value for name, value in env.items() if value is not None},
            expect={name: value for name, value in expect.items() if value is not None},
            gpus=gpus if own.gpus is None else own.gpus,
            cpus=cpus if own.cpus is None else own.cpus,
            **({"host": own.host} if own.host else {}),
        )

    def _checks(self, checks: Map, *, strict: bool) -> dict[str, dict[str, Any]]:
        found = {}
        for name, entry in checks.entries.items():
            self.safe_name(name, entry.key, "check")
            if name.lower() in PHASES:
                sentence = f"check name {quote(name)} is taken by a folder or a phase that every lane has"
                self.problems.add(entry.key, f"{sentence}; call it otherwise and give its `kind`.")
            if isinstance(entry.node, Map):
                self._check_params(name, entry, entry.node, strict=strict)
                found[name] = dict(plain(entry.node))
        return found

    def _check_params(self, name: str, entry: Entry, tree: Map, *, strict: bool) -> None:
        given = tree.get("kind") or Leaf(name, name, entry.key)
        if not isinstance(given, Leaf) or not isinstance(given.value, str):
            self.problems.add(given.place, f"`kind`: expected text, got {describe(given)}.")
            return
        params = self.check_params.get(given.value)
        if params is None:
            if not self._unready(given, strict):
                self._reference(given.place, "there is no check", given.value, self.check_params)
            return
        rest = tree.without("kind")
        what = f"check {quote(name)}"
        unknown_keys(params, rest, self.problems, what=what)
        no_bools_as_numbers(params, rest, self.problems, what=what)
        validate(params, rest, entry.key, self.problems, what=what, lenient=not strict)


def _normalised(tree: Map, problems: Problems) -> Map:
    """Flags and environment as written text; dropped checks gone, empty ones without parameters."""
    tree = _texts(tree, problems)
    servers = tree.get("servers")
    if isinstance(servers, Seq):
        items = tuple(_texts(item, problems) if isinstance(item, Map) else item for item in servers.items)
        tree = tree.replaced("servers", Seq(items, servers.place))
    checks = tree.get("checks")
    if isinstance(checks, Map):
        entries = {
            name: Entry(entry.key, Map({}, entry.key)) if is_empty(entry.node) else entry
            for name, entry in checks.kept().entries.items()
        }
        tree = tree.replaced("checks", Map(entries, checks.place))
    return tree


def _texts(tree: Map, problems: Problems) -> Map:
    for group in ("flags", "env", "expect"):
        no_empty_values(tree, group, problems)
    for key, kept in (("flags", (bool,)), ("env", ())):
        node = tree.get(key)
        if isinstance(node, Map):
            tree = tree.replaced(key, as_written(node, keep=kept))
    return tree


def _text(tree: Map, key: str, default: str) -> str:
    """The text under `key`, `default` where there is none; empty for anything else."""
    node = tree.get(key) or Leaf(default, default, tree.place)
    return node.value if isinstance(node, Leaf) and isinstance(node.value, str) else ""


def _place(tree: Map, path: Sequence[str | int], otherwise: Place) -> Place:
    found = list(walk(tree, tuple(path)))
    return found[-1][1].place if len(found) == len(path) else otherwise
