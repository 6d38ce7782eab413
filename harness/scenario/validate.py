"""Checks a tree against a pydantic model and says what is wrong in the words of the file, at its place."""

import inspect
import re
from collections.abc import Iterator
from typing import Any, Final, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from harness.scenario.problems import Place, Problems, quote
from harness.scenario.tree import Leaf, Map, Node, describe, is_empty, plain, walk

Model = TypeVar("Model", bound=BaseModel)

# Text in which something is still to be filled in: its type cannot be judged yet.
UNFILLED: Final = re.compile(r"\$\{|\{[A-Za-z_][A-Za-z0-9_]*\}")

_EXPECTED: Final = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number of sensible size",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "`true` or `false`",
    "bool_parsing": "`true` or `false`",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "list_type": "a list",
    "tuple_type": "a list",
}
_BOUNDS: Final = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}


def validate(
    model: type[Model], tree: Map, at: Place, problems: Problems, *, what: str, lenient: bool = False
) -> Model | None:
    """The tree as a `model`; None, and every problem added, when it is not one.

    `at` is where the whole stands, `what` its name in sentences ("a lane"). `lenient` keeps quiet about
    values that are not filled in yet and about what is missing.
    """
    try:
        return model.model_validate(plain(tree))
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            if not (lenient and _unready(detail, tree)):
                _report(detail, model, tree, at, problems, what)
        return None


def unknown_keys(model: type[BaseModel], tree: Map, problems: Problems, *, what: str) -> None:
    """Report keys that the model would silently ignore; one that forbids or allows extras needs no help."""
    if model.model_config.get("extra", "ignore") != "ignore":
        return
    for key, entry in tree.entries.items():
        if key not in _keys_of(model):
            problems.add(entry.key, f"Unknown key {quote(key)} in {what}.", given=key, known=_keys_of(model))


def no_bools_as_numbers(model: type[BaseModel], tree: Map, problems: Problems, *, what: str) -> None:
    """Report `true` and `false` where the model wants a number: pydantic would read them as 1 and 0."""
    for key, entry in tree.entries.items():
        node, field = entry.node, model.model_fields.get(key)
        if field is None or not isinstance(node, Leaf) or not isinstance(node.value, bool):
            continue
        types = set(_types_in(field.annotation))
        if bool not in types and types & {int, float}:
            sentence = f"{quote(key)} of {what}: expected a number, got {describe(node)}."
            problems.add(node.place, sentence)


def no_empty_values(tree: Map, group: str, problems: Problems) -> None:
    """Report entries of a group that have no value: `--enable-x:` looks like a bare flag and `http_proxy:`
    like an empty text, but YAML reads nothing there."""
    instead = "`true` is a bare flag" if group == "flags" else "write '' for an empty text"
    for key, entry in tree.submap(group).entries.items():
        if is_empty(entry.node):
            sentence = f"{quote(f'{group}.{key}')} has no value; {instead}, null takes out an inherited one."
            problems.add(entry.key, sentence)


def _unready(detail: ErrorDetails, tree: Map) -> bool:
    if detail["type"] == "missing":
        return True
    found = list(walk(tree, detail["loc"]))
    node = found[-1][1] if found else tree
    return isinstance(node, Leaf) and UNFILLED.search(node.text) is not None


def _report(
    detail: ErrorDetails, model: type[BaseModel], tree: Map, at: Place, problems: Problems, what: str
) -> None:
    loc = detail["loc"]
    found = list(walk(tree, loc))
    keys = loc[: len(found)]
    key_places = [place for place, _ in found if place is not None]
    node: Node = found[-1][1] if found else tree
    here = key_places[-1] if key_places else at
    inner = ".".join(map(str, keys[:-1]))
    if detail["type"] == "extra_forbidden":
        owner = f"{quote(inner)} of {what}" if inner else what
        known = _keys_of(_model_at(model, loc[:-1]))
        key = str(loc[-1])
        problems.add(here, f"Unknown key {quote(key)} in {owner}.", given=key, known=known)
    elif detail["type"] == "missing":
        owner = f"{quote('.'.join(map(str, loc[:-1])))} of {what}" if loc[:-1] else what
        problems.add(here, f"{quote(str(loc[-1]))} is missing in {owner}.")
    else:
        place = here if loc[-1:] == ("[key]",) else _value_place(node, here)
        if problems.knows(place):  # such as a placeholder that is set nowhere
            return
        given, known = _choices(detail, node)
        sentence = f"{quote('.'.join(map(str, keys)) or what, 120)}: {_sentence(detail, node)}."
        problems.add(place, sentence, given=given, known=known)


def _value_place(node: Node, key: Place) -> Place:
    return key if isinstance(node, Leaf) and node.text == "" else node.place


def _sentence(detail: ErrorDetails, node: Node) -> str:
    kind = detail["type"]
    context: dict[str, Any] = detail.get("ctx", {})
    got = f", got {describe(node)}"
    if kind == "string_type" and isinstance(node, Leaf) and node.value is not None:
        return f"expected text{got}; put it in quotes"
    if kind in _EXPECTED:
        return f"expected {_EXPECTED[kind]}{got}"
    if kind in _BOUNDS:
        bound, words = _BOUNDS[kind]
        return f"must be {words} {context[bound]:g}{got}"
    if kind in ("literal_error", "enum"):
        return f"{describe(node)} is no choice here"
    if kind == "value_error":
        return str(context.get("error", detail["msg"]))
    message = detail["msg"]
    return f"{message[:1].lower()}{message[1:]}{got}"


def _choices(detail: ErrorDetails, node: Node) -> tuple[str, list[str]]:
    if detail["type"] not in ("literal_error", "enum") or not isinstance(node, Leaf):
        return "", []
    return node.text, re.findall(r"'([^']*)'", str(detail.get("ctx", {}).get("expected", "")))


def _keys_of(model: type[BaseModel] | None) -> list[str]:
    fields = model.model_fields if model else {}
    return [field.alias or name for name, field in fields.items()]


def _model_at(model: type[BaseModel], loc: tuple[str | int, ...]) -> type[BaseModel] | None:
    """The model that describes the mapping at `loc`."""
    current: type[BaseModel] | None = model
    for part in loc:
        field = current.model_fields.get(str(part)) if current else None
        if field is not None:
            types = _types_in(field.annotation)
            current = next((t for t in types if inspect.isclass(t) and issubclass(t, BaseModel)), None)
    return current


def _types_in(annotation: Any) -> Iterator[Any]:
    yield annotation
    for argument in get_args(annotation):
        yield from _types_in(argument)
