"""Everything that is wrong with a scenario, each with its place and the nearest thing that would be right."""

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from harness.errors import ConfigError

SHOWN_PROBLEMS = 100
LISTED_NAMES = 25
LISTED_LANES = 8


@dataclass(frozen=True, slots=True)
class Place:
    """Where something was written: a file with line and column, both from 1, or an option (line 0)."""

    source: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.source}:{self.line}:{self.column}" if self.line else self.source


@dataclass(slots=True)
class Problems:
    """Collects problems; the same sentence about the same place is kept once."""

    _found: dict[str, Place] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._found)

    @property
    def many(self) -> bool:
        """More than are shown: looking for near names is over, it takes long in a file full of errors."""
        return len(self._found) > SHOWN_PROBLEMS

    def knows(self, place: Place) -> bool:
        """Whether something is already said about this place of a file."""
        return place.line > 0 and place in self._found.values()

    def touch(self, places: Iterable[Place]) -> bool:
        """Whether something is said about any of these places."""
        return not set(self._found.values()).isdisjoint(places)

    def add(self, place: Place, sentence: str, *, given: str = "", known: Iterable[str] = ()) -> None:
        """`given` is what was written and `known` what could have been: the nearest one is suggested."""
        hint = suggest(given, known) if given and not self.many else ""
        self._found.setdefault(f"{place}: {sentence}{' ' if hint else ''}{hint}", place)

    def texts(self) -> tuple[str, ...]:
        """Options of the command line first, then each file from top to bottom."""
        sources = list(dict.fromkeys(place.source for place in self._found.values()))

        def order(item: tuple[str, Place]) -> tuple[bool, int, int, int]:
            place = item[1]
            return place.line > 0, sources.index(place.source), place.line, place.column

        texts = [text for text, _ in sorted(self._found.items(), key=order)]
        if len(texts) > SHOWN_PROBLEMS:
            texts = [*texts[:SHOWN_PROBLEMS], f"... and {len(texts) - SHOWN_PROBLEMS} more"]
        return tuple(texts)

    def raise_if_any(self, name: str, more: Callable[[], Iterable[str]] = tuple) -> None:
        """Raise one ConfigError with all of them, and with those that `more` finds, asked only then."""
        if self._found:
            others = tuple(more())
            count = len(self._found) + len(others)
            word = "a problem" if count == 1 else f"{count} problems"
            what = f"scenario {quote(name, 200)} has {word}; nothing was started."
            raise ConfigError(what, problems=(*self.texts(), *others))


def by_lane(found: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Lane and sentence to one text for each sentence, with all lanes that it is true of."""
    lanes: dict[str, list[str]] = {}
    for lane, sentence in found:
        names = lanes.setdefault(sentence, [])
        if lane not in names:
            names.append(lane)
    return tuple(f"{_lanes(names)}: {sentence}" for sentence, names in lanes.items())


def _lanes(names: list[str]) -> str:
    shown = ", ".join(quote(name, 100) for name in names[:LISTED_LANES])
    rest = len(names) - LISTED_LANES
    return f"lane{'s' if len(names) > 1 else ''} {shown}" + (f" and {rest} more" if rest > 0 else "")


def suggest(given: str, known: Iterable[str]) -> str:
    """`Did you mean ...?`, or the list of what is known where nothing is near and the list is short."""
    names = list(dict.fromkeys(known))
    near = nearest(given, names)
    if near:
        return f"Did you mean {quote(near[0])}?"
    if 0 < len(names) <= LISTED_NAMES:
        return f"Known: {', '.join(map(printable, names))}."
    return ""


def nearest(given: str, known: Iterable[str]) -> list[str]:
    """Up to three known names that resemble `given`, nearest first; upper and lower case are alike."""
    folded: dict[str, str] = {}
    for name in known:
        folded.setdefault(name.casefold(), name)
    matches = difflib.get_close_matches(given[:200].casefold(), folded, n=3, cutoff=0.6)
    return [folded[match] for match in matches]


def is_unicode(text: str) -> bool:
    """Whether the text can be written as UTF-8; half a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def printable(text: str) -> str:
    """The text with control characters and broken Unicode escaped, safe for any terminal and file."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text
    )


def quote(text: str, limit: int = 60) -> str:
    """The text in backticks, printable, and cut where it is long."""
    shown = printable(text[: limit + 1])
    return f"`{shown}`" if len(shown) <= limit else f"`{shown[: limit - 3]}...`"
