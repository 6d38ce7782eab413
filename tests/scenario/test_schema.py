"""The JSON Schema knows every key that the loader knows, and the fixtures agree with it."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from harness.scenario import written
from harness.scenario.model import Lane, ModelSpec, Pair, Scenario, ServerSpec, Timeouts
from harness.scenario.schema import json_schema
from tests.scenario.tools import CHECK_PARAMS, ENGINES, FILES

SCHEMA = json_schema(ENGINES, CHECK_PARAMS)
WORDS = {"$ref", "$schema", "$defs", "anyOf", "allOf", "enum", "const", "type", "items", "minItems"}
WORDS |= {
    "properties",
    "additionalProperties",
    "required",
    "pattern",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
}
WORDS |= {"default", "description", "title"}
TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}


def complaints(value: Any, schema: dict[str, Any], at: str = "") -> Iterator[str]:
    """A small validator: only the words that the schema uses, and an error for any other."""
    assert set(schema) <= WORDS, set(schema) - WORDS
    if "$ref" in schema:
        yield from complaints(value, SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]], at)
    for part in schema.get("allOf", ()):
        yield from complaints(value, part, at)
    if "anyOf" in schema:
        branches = [list(complaints(value, part, at)) for part in schema["anyOf"]]
        if all(branches):
            yield min(branches, key=len)[0]
    yield from _unlike(value, schema, at)
    if isinstance(value, dict):
        yield from _members(value, schema, at)
    if isinstance(value, list) and "items" in schema:
        for item in value:
            yield from complaints(item, schema["items"], f"{at}[]")


def _unlike(value: Any, schema: dict[str, Any], at: str) -> Iterator[str]:
    if "enum" in schema and not any(value is item or value == item for item in schema["enum"]):
        yield f"{at}: {value!r} is not one of {schema['enum']}"
    if "const" in schema and value != schema["const"]:
        yield f"{at}: {value!r} is not {schema['const']}"
    if "type" in schema and not _has_type(value, schema["type"]):
        yield f"{at}: {value!r} is no {schema['type']}"
    elif "pattern" in schema and "{" not in value:
        yield f"{at}: {value!r} has no placeholder"


def _has_type(value: Any, types: str | list[str]) -> bool:
    names = [types] if isinstance(types, str) else types
    own = "null" if value is None else TYPES[type(value)]
    return own in names or (own == "integer" and "number" in names)


def _members(value: dict[str, Any], schema: dict[str, Any], at: str) -> Iterator[str]:
    yield from (f"{at}: no {name}" for name in schema.get("required", ()) if name not in value)
    other = schema.get("additionalProperties", True)
    for key, member in value.items():
        if key in schema.get("properties", {}):
            yield from complaints(member, schema["properties"][key], f"{at}.{key}")
        elif other is False:
            yield f"{at}: unknown key {key}"
        elif other is not True:
            yield from complaints(member, other, f"{at}.{key}")


@pytest.mark.parametrize("path", sorted(FILES.glob("*.yaml")), ids=lambda path: path.name)
def test_fixtures_fit_the_schema(path: Any) -> None:
    assert list(complaints(yaml.safe_load(path.read_text()), SCHEMA)) == []


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("lanez: {}", "unknown key lanez"),
        ("lanes: {a: {flgs: {}}}", ".lanes.a"),
        ("lanes: {a: {engine: vlm}}", "'vlm' is not one of"),
        ("lanes: {a: {gpus: four}}", "'four'"),
        ("lanes: {a: {flags: {--x: {y: 1}}}}", "{'y': 1} is no"),
        ("lanes: {a: {servers: [{role: prefil}]}}", "'prefil'"),
        ("lanes: {a: {checks: {gsm8k: {num_concurent: 1}}}}", "num_concurent"),
        ("lanes: {a: {checks: {x: {kind: gsm8k}, y: 5}}}", "5"),
        ("pairs: {p: {baseline: [a]}}", "['a'] is no string"),
    ],
)
def test_the_schema_refuses(text: str, complaint: str) -> None:
    found = list(complaints(yaml.safe_load(text), SCHEMA))
    assert any(complaint in sentence for sentence in found), found


@pytest.mark.parametrize(
    "text",
    [
        'lanes: {a: {gpus: "${G:-4}", cpus: "{c}", engine: "${E}", required: "${R}"}}',
        "lanes: {a: null, b: false}\npairs: {p: false}",
        "lanes: {a: {checks: {gsm8k: null, x: {kind: gsm8k, limit: 3}, y: false}}}",
        "extends: [a.yaml, b.yaml]\nlanes: {a: {extends: b, matrix: {k: [1, x]}}}",
        "lanes: {a: {flags: {--a: 1, --b: [x, 2], --c: true, --d: null}, env: {X: 1}}}",
    ],
)
def test_the_schema_allows(text: str) -> None:
    assert list(complaints(yaml.safe_load(text), SCHEMA)) == []


def test_every_key_is_described() -> None:
    definitions = {"scenario": SCHEMA, **{name: SCHEMA["$defs"][name] for name in SCHEMA["$defs"]}}
    for name, definition in definitions.items():
        if name.startswith("Written") or name == "scenario":
            missing = [key for key, value in definition["properties"].items() if not value.get("description")]
            assert missing == [], name


def test_the_dialect_is_2020_12() -> None:
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_what_is_written_and_what_is_made_of_it_have_the_same_keys() -> None:
    def keys(model: Any) -> set[str]:
        return set(model.model_fields)

    assert keys(written.WrittenModel) == keys(ModelSpec)
    assert keys(written.WrittenServer) == keys(ServerSpec)
    assert keys(written.WrittenTimeouts) == keys(Timeouts)
    assert keys(written.WrittenPair) == keys(Pair) - {"name"}
    assert keys(Lane) - {"name"} <= keys(written.WrittenLane)
    assert keys(Scenario) - {"source", "left_out"} <= keys(written.WrittenScenario)


def test_the_defaults_said_in_descriptions_are_the_real_ones() -> None:
    for name, field in written.WrittenTimeouts.model_fields.items():
        assert f"Default: {Timeouts.model_fields[name].default}." in str(field.description)
    assert f"Default: {ModelSpec.model_fields['served_name'].default}." in str(
        written.WrittenModel.model_fields["served_name"].description
    )
