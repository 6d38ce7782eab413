"""Plain-text building blocks. Model output and log lines are hostile: no control character gets through."""

import unicodedata
from collections.abc import Iterable, Sequence

CELL = 400  # characters


def safe(text: str, limit: int = 400) -> str:
    """One line of printable text: control and formatting characters become visible escapes."""
    beginning = text[: limit + 1]  # no character becomes shorter: what comes after it is never shown
    shown = "".join(_visible(char) for char in beginning.replace("\n", " "))
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def safe_block(text: str) -> str:
    """As `safe`, but line breaks stay."""
    return "\n".join(safe(line, 1000) for line in text.split("\n"))


def quoted(lines: Iterable[str]) -> list[str]:
    """Lines behind the first of a text that may be a server's: none of them can pass for a line of the page.
    Those that are quoted already, as the last lines of a log are, look the same."""
    return [f"      | {safe(line.removeprefix('    | '))}".rstrip() for line in lines]


def width(text: str) -> int:
    """Columns on a terminal; Chinese characters take two."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def table(
    rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset(), indent: str = "  "
) -> list[str]:
    """Aligned columns; `right` names the columns that are numbers. The first row is the heading. Cells are
    made `safe` here."""
    if not rows:
        return []
    rows = [[safe(cell, CELL) for cell in row] for row in rows]
    widths = [max(width(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = []
        for column, cell in enumerate(row):
            padding = " " * (widths[column] - width(cell))
            cells.append(padding + cell if column in right else cell + padding)
        lines.append((indent + "  ".join(cells)).rstrip())
    return lines


def seconds(value: float | None) -> str:
    """Durations as people read them: `0.8 s`, `75 s`, `1 h 02 min`."""
    if value is None:
        return "-"
    if value < 10:
        return f"{value:.1f} s"
    if value < 600:
        return f"{value:.0f} s"
    minutes = round(value / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _visible(char: str) -> str:
    if char == "\t":
        return " "
    if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp"):
        return f"\\u{ord(char):04x}"
    return char
