"""What an evaluation ran on, as flat keys and plain values, and how two of them differ.

Everything is compared; what may differ is exempted by name. A key that only one side has is a difference.
"""

import fnmatch
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from harness.errors import HarnessError
from harness.evidence.files import read_bytes, write_json
from harness.findings import Code, Finding

FILE_NAME: Final = "fingerprint.json"
ABSENT: Final = "(absent)"
_SHOWN = 120  # characters of a value in a finding

Value: TypeAlias = str | int | float | bool | None
Fingerprint: TypeAlias = dict[str, Value]


@dataclass(frozen=True, slots=True)
class Difference:
    """One key that is not equal; a side that lacks the key holds ABSENT."""

    key: str
    baseline: Value
    candidate: Value


@dataclass(frozen=True, slots=True)
class IdleExemptions:
    """Entries of a may-differ list that exempted nothing: `unmatched` match no key at all (misspelt?),
    `equal` match only keys that are equal on both sides (is the pair what it claims to be?)."""

    unmatched: tuple[str, ...]
    equal: tuple[str, ...]


def flatten(tree: Mapping[str, Any]) -> Fingerprint:
    """Nested mappings and lists as dotted keys (`a.b.0`). An empty one is kept as `{}` or `[]`; a value
    that is neither a scalar nor a container is kept as its text."""
    return dict(_leaves("", tree))


def diff(baseline: Fingerprint, candidate: Fingerprint, may_differ: Sequence[str] = ()) -> list[Difference]:
    """Keys that differ and are not exempt, sorted. An entry of `may_differ` is a whole key, in which `*`,
    `?` and `[` are wildcards."""
    return [item for item in _differences(baseline, candidate) if not _matches(item.key, may_differ)]


def idle_exemptions(
    baseline: Fingerprint, candidate: Fingerprint, may_differ: Sequence[str]
) -> IdleExemptions:
    """Which entries of `may_differ` did no work."""
    keys = [*baseline, *candidate]
    unequal = [item.key for item in _differences(baseline, candidate)]
    idle = [entry for entry in may_differ if not any(_matches(key, [entry]) for key in unequal)]
    unmatched = [entry for entry in idle if not any(_matches(key, [entry]) for key in keys)]
    return IdleExemptions(tuple(unmatched), tuple(entry for entry in idle if entry not in unmatched))


def parity_findings(
    baseline: Fingerprint, candidate: Fingerprint, may_differ: Sequence[str] = ()
) -> list[Finding]:
    """One PARITY finding for each difference that is not exempt."""
    return [
        Finding(
            code=Code.PARITY,
            message=(
                f"{item.key} differs and is not exempt: "
                f"{_shown(item.baseline)} on the baseline, {_shown(item.candidate)} on the candidate"
            ),
            where=item.key,
        )
        for item in diff(baseline, candidate, may_differ)
    ]


def up_to_check(fingerprint: Fingerprint, checks: Sequence[str], last: str) -> Fingerprint:
    """Without what the checks that ran after `last` were asked with: they cannot have touched it. `checks`
    are all of the lane, in order."""
    later = checks[checks.index(last) + 1 :] if last in checks else []
    fronts = tuple(f"check.{name}." for name in later)
    return {key: value for key, value in fingerprint.items() if not key.startswith(fronts)}


def write_fingerprint(folder: Path, fingerprint: Mapping[str, Value]) -> None:
    """Write `fingerprint.json` into the folder, atomically, keys sorted. Raises HarnessError."""
    write_json(folder / FILE_NAME, dict(sorted(fingerprint.items())))


def read_fingerprint(folder: Path) -> Fingerprint:
    """Read `fingerprint.json` of the folder. Raises HarnessError (EVIDENCE_MISSING) when it is not there, or
    not one flat JSON object, or empty: two empty ones would be equal and prove nothing."""
    path = folder / FILE_NAME
    try:
        found = json.loads(read_bytes(path).decode())
    except OSError as error:
        raise _broken(path, error.strerror or str(error)) from error
    except (ValueError, RecursionError) as error:
        raise _broken(path, f"not JSON: {error}") from error
    if not isinstance(found, dict) or any(isinstance(value, dict | list) for value in found.values()):
        raise _broken(path, "not a flat JSON object")
    if not found:
        raise _broken(path, "it is empty")
    return found


def _broken(path: Path, reason: str) -> HarnessError:
    return HarnessError(
        f"cannot read the fingerprint {path}: {reason}",
        cause="the lane ended before it was written, or the file was changed",
        fix="run the lane again",
        evidence=str(path),
        code=Code.EVIDENCE_MISSING,
    )


def _leaves(prefix: str, value: Any) -> Iterator[tuple[str, Value]]:
    items: Iterable[tuple[object, Any]]
    if isinstance(value, Mapping):
        items, empty = value.items(), "{}"
    elif isinstance(value, list | tuple):
        items, empty = enumerate(value), "[]"
    else:
        scalar = value is None or isinstance(value, str | int | float)
        yield prefix, value if scalar else str(value)
        return
    if not value and prefix:
        yield prefix, empty
    for key, inner in items:
        yield from _leaves(f"{prefix}.{key}" if prefix else str(key), inner)


def _differences(baseline: Fingerprint, candidate: Fingerprint) -> Iterator[Difference]:
    for key in sorted(baseline.keys() | candidate.keys()):
        one, other = baseline.get(key, ABSENT), candidate.get(key, ABSENT)
        if key not in baseline or key not in candidate or not _equal(one, other):
            yield Difference(key, one, other)


def _equal(one: Value, other: Value) -> bool:
    """As JSON sees it: `true` is not 1, and NaN is NaN."""
    if isinstance(one, bool) != isinstance(other, bool):
        return False
    return one == other or (one != one and other != other)  # only NaN differs from itself


def _matches(key: str, entries: Iterable[str]) -> bool:
    return any(key == entry or _pattern(entry).fullmatch(key) for entry in entries)


def _pattern(entry: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(entry))


def _shown(value: Value) -> str:
    text = str(value) if value == ABSENT else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
