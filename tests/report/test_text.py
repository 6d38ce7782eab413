"""Hostile text stays text."""

import time

from harness.report.text import quoted, safe, safe_block, seconds, table, width


def test_control_characters_cannot_reach_a_terminal() -> None:
    hostile = "ok\x1b[2J\x1b]0;owned\x07\r\u202egnp\u2028end"
    shown = safe(hostile)
    assert shown.isprintable()
    assert "\\u001b" in shown
    assert "\\u202e" in shown


def test_blocks_keep_their_lines_and_nothing_else() -> None:
    assert safe_block("a\nb\x07") == "a\nb\\u0007"


def test_quoted_lines_are_marked_once() -> None:
    assert quoted(["    | a log line", "verdict   PASS", "\x1b[2J", ""]) == [
        "      | a log line",
        "      | verdict   PASS",
        "      | \\u001b[2J",
        "      |",
    ]


def test_long_text_is_cut_and_shows_it() -> None:
    assert safe("x" * 500, 10) == "x" * 9 + "…"


def test_what_is_not_shown_costs_nothing() -> None:
    """Megabytes of error text, of which a line is shown."""
    began = time.process_time()
    assert len(safe("é\x1b" * 5_000_000, 400)) == 400
    assert time.process_time() - began < 0.5


def test_cells_are_made_safe() -> None:
    assert table([["a"], ["b\x1b[2J\n"]], indent="") == ["a", "b\\u001b[2J"]


def test_columns_align_with_chinese_text() -> None:
    lines = table([["名字", "n"], ["ab", "10"]], right=frozenset({1}), indent="")
    assert lines == ["名字   n", "ab    10"]
    assert width(lines[0]) == width(lines[1])


def test_durations_read_like_people_write_them() -> None:
    assert [seconds(value) for value in (None, 0.84, 75.2, 620, 3720)] == [
        "-",
        "0.8 s",
        "75 s",
        "10 min",
        "1 h 02 min",
    ]
