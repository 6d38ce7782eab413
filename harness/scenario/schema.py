"""JSON Schema (draft 2020-12) of scenario files as they are written, for editors to complete from.

Made from the types in `written.py` and the parameters of the checks. It describes one file by itself: what
may be inherited is not required, and wherever a number is wanted a text with a placeholder will do.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from harness.scenario.written import WrittenScenario

Schema = dict[str, Any]

DIALECT: Final = GenerateJsonSchema.schema_dialect
_REF: Final = "#/$defs/{model}"
_DROP: Final[Schema] = {"enum": [False, None], "description": "Takes out what is inherited."}
_PLACEHOLDER: Final[Schema] = {
    "type": "string",
    "pattern": r"\$\{|\{[A-Za-z_]",
    "description": "Filled in from ${NAME} or from {key} of the matrix.",
}


def json_schema(engines: Collection[str], check_params: Mapping[str, type[BaseModel]]) -> Schema:
    """The schema, with these engines and these kinds of checks to choose from."""
    models: list[type[BaseModel]] = [WrittenScenario, *check_params.values()]
    refs, schema = models_json_schema([(model, "validation") for model in models], ref_template=_REF)
    defs: Schema = schema["$defs"]
    defs = {name: _fillable(definition) for name, definition in defs.items()}
    scenario = defs.pop("WrittenScenario")
    lane = defs["WrittenLane"]["properties"]
    lane["engine"] = {
        "anyOf": [{"enum": sorted(engines)}, _PLACEHOLDER, {"type": "null"}],
        "description": lane["engine"]["description"],
    }
    own = {kind: str(refs[model, "validation"]["$ref"]) for kind, model in check_params.items()}
    defs |= {f"Check.{kind}": _check(kind, defs[ref.rpartition("/")[2]]) for kind, ref in own.items()}
    lane["checks"] = _checks(list(own), lane["checks"]["description"])
    for name, key in (("WrittenLane", "lanes"), ("WrittenPair", "pairs")):
        defs[name].pop("required", None)
        entry = {"anyOf": [{"$ref": _REF.format(model=name)}, _DROP]}
        scenario["properties"][key] = {
            "type": ["object", "null"],
            "additionalProperties": entry,
            "description": scenario["properties"][key]["description"],
        }
    return {"$schema": DIALECT, **scenario, "title": "Scenario of the harness", "$defs": defs}


def _check(kind: str, params: Schema) -> Schema:
    """Parameters of one kind of check; any of them may be inherited, and `kind` may say which they are."""
    kind_key = {"const": kind, "description": "Kind of the check. Default: the check's name."}
    return {
        "type": ["object", "null"],
        "description": params.get("description", f"Parameters of {kind}."),
        "properties": {"kind": kind_key, **params.get("properties", {})},
        "additionalProperties": params.get("additionalProperties", False),
    }


def _checks(kinds: list[str], description: str) -> Schema:
    refs = {kind: {"$ref": _REF.format(model=f"Check.{kind}")} for kind in kinds}
    named = [{"allOf": [ref, {"type": "object", "required": ["kind"]}]} for ref in refs.values()]
    return {
        "type": ["object", "null"],
        "description": description,
        "properties": {kind: {"anyOf": [ref, _DROP, *named]} for kind, ref in refs.items()},
        # A check under a name of its own may also inherit its kind, so that only parameters are written.
        "additionalProperties": {"anyOf": [*named, {"type": "object"}, {"type": "null"}, _DROP]},
    }


def _fillable(node: Any) -> Any:
    """The same schema in which numbers, booleans and choices may also be text with a placeholder."""
    if isinstance(node, list):
        return [_fillable(item) for item in node]
    if not isinstance(node, dict):
        return node
    inner = {key: _fillable(value) for key, value in node.items() if not _is_noise(key, value)}
    if inner.get("type") not in ("integer", "number", "boolean") and not isinstance(inner.get("enum"), list):
        return inner
    outside = {key: inner.pop(key) for key in ("description", "default") if key in inner}
    return {"anyOf": [inner, _PLACEHOLDER], **outside}


def _is_noise(key: str, value: Any) -> bool:
    """Titles that only repeat the key, and defaults that only say that a key may be left out."""
    return (key == "title" and isinstance(value, str)) or (key == "default" and value is None)
