"""Answers of a server: made flat and comparable, or found to be none of this engine's."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

from harness.engines.client import Client
from harness.errors import TargetError
from harness.findings import Code
from harness.scenario.model import Scalar

# A Python object that a server could only print: where it lies differs from start to start.
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
# What reading an answer of an unexpected form raises; see `reading`.
MALFORMED = (
    *(KeyError, IndexError, TypeError, AttributeError, ValueError, StopIteration),
    *(ArithmeticError, RecursionError),  # a number of a thousand digits, a list in a thousand lists
)


def flatten(data: Mapping[str, Any], prefix: str = "") -> dict[str, Scalar | None]:
    """`{"a": {"b": 1}}` becomes `{"a.b": 1}`. Lists, and empty objects, become their JSON text; memory
    addresses are cut out of texts."""
    flat: dict[str, Scalar | None] = {}
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{name}."))
        elif value is None or isinstance(value, (bool, int, float)):
            flat[name] = value
        else:
            text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
            flat[name] = ADDRESS.sub("", text)
    return flat


def without(config: Mapping[str, Scalar | None], patterns: Sequence[str]) -> dict[str, Scalar | None]:
    """The entries whose name matches none of the wildcards."""
    return {
        name: value
        for name, value in config.items()
        if not any(fnmatchcase(name, pattern) for pattern in patterns)
    }


@contextmanager
def reading(engine: str, client: Client, path: str, answer: object) -> Iterator[None]:
    """Around the lines that read an answer: what they raise over its form becomes `strange`."""
    try:
        yield
    except MALFORMED as error:
        raise strange(engine, client, path, answer) from error


def strange(engine: str, client: Client, path: str, answer: object) -> TargetError:
    """The error for an answer that this engine does not give."""
    return TargetError(
        f"{client.base_url}{path} answered in a form that {engine} does not use: {str(answer)[:300]}",
        cause=f"another server holds the port, or this release of {engine} changed the answer",
        code=Code.BAD_ANSWER,
    )
