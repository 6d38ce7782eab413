"""What a server's flags say of its size, before it is started: its GPUs, and the length of a request."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from harness.engines.flags import given
from harness.scenario.model import FlagValue

_NUMBER = re.compile(r"([0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?)([kKmMgGtT]?)(i?)")
_LONGEST = 20  # characters: more is no size of anything
_POWERS = "kmgt"


@dataclass(frozen=True, slots=True)
class Told:
    """A number of GPUs or tokens, and the flags that say so."""

    number: int
    by: str


def whole(value: FlagValue) -> int | None:
    """A number as the engines write it: 4096, 4k (4000), 4K or 4Ki (4096). None for anything else, `auto` or
    a negative number for instance."""
    match = _NUMBER.fullmatch(str(value).strip())
    if match is None or isinstance(value, bool) or len(match[0]) > _LONGEST:
        return None
    digits, unit, binary = match.groups()
    base = 1024 if binary or unit.isupper() else 1000
    return int(float(digits) * base ** (_POWERS.index(unit.lower()) + 1 if unit else 0))


def told(flags: Mapping[str, FlagValue], *names: str, less: int = 0) -> tuple[Told, ...]:
    """The number above 0 that one of these spellings gives, less what the server keeps of it for itself."""
    for name in names:
        number = whole(given(flags, name))
        if number:
            kept = f" less {less}" if less else ""
            return (Told(max(number - less, 0), f"{name} {flags[name]}{kept}"),)
    return ()


def product(flags: Mapping[str, FlagValue], *sizes: tuple[str, ...]) -> Told | None:
    """GPUs of a server that needs one for each rank of these parallel sizes, which are 1 where no spelling of
    them is set. None where one of them is no number; that is told elsewhere."""
    number, said = 1, []
    for names in sizes:
        if given(flags, *names) is None:
            continue
        found = told(flags, *names)
        if not found:
            return None
        number *= found[0].number
        said.append(found[0].by)
    return Told(number, " x ".join(said) or f"{sizes[0][0]} is not given")
