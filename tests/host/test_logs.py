import os
import random
import time
from collections import deque
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.host.logs import LINE_LIMIT, LogLine, LogTail, clean, lines, tail


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "server.log"


def append(log: Path, data: bytes) -> None:
    with log.open("ab") as file:
        file.write(data)


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b[32mINFO\x1b[0m:     Started", "INFO:     Started"),
        ("\x1b[1;38;5;196mfatal\x1b[m\r", "fatal"),
        ("\x1b]0;title\x07text \x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "text link"),
        ("\x1b]never ended, CUDA out of memory", "never ended, CUDA out of memory"),
        ("\x1b(B\x1b=\x1b[?25lhidden cursor\x1b[", "hidden cursor"),
        ("one\r\n", "one"),
        ("ERROR before\r 50%|##", "ERROR before  50%|##"),
        ("a\0b", "ab"),
        ("plain [0m text stays", "plain [0m text stays"),
        ("", ""),
    ],
)
def test_clean(raw: str, shown: str) -> None:
    assert clean(raw) == shown


def test_only_complete_lines_numbered_as_an_editor_does(log: Path) -> None:
    reader = LogTail(log)
    assert reader.read() == []
    append(log, b"one\ntw")
    assert reader.read() == [(1, "one")]
    assert reader.read() == []
    append(log, b"o\r")
    assert reader.read() == []
    append(log, b"\n\nfour")
    assert reader.read() == [(2, "two"), (3, "")]
    assert reader.finish() == [(4, "four")]
    assert reader.finish() == []


def test_a_character_split_between_two_reads(log: Path) -> None:
    reader = LogTail(log)
    whole = "Modell geladen: 模型 ✓\n".encode()
    for byte in whole[:-1]:
        append(log, bytes([byte]))
        assert reader.read() == []
    append(log, whole[-1:])
    assert reader.read() == [(1, "Modell geladen: 模型 ✓")]


def test_a_progress_bar_is_seen_while_it_moves(log: Path) -> None:
    reader = LogTail(log)
    append(log, b"start\n\rLoading:   0%")
    assert reader.read() == [(1, "start")]
    append(log, b"\rLoading:  50%")
    assert reader.read() == [(2, "Loading:   0%")]
    append(log, b"\rLoading: 100%\r\nready\n")
    assert reader.read() == [(2, "Loading:  50%"), (2, "Loading: 100%"), (3, "ready")]


def test_bad_bytes_and_nuls(log: Path) -> None:
    append(log, b"\0\0\0bad \xff\xfe byte\nnext\n")
    assert LogTail(log).read() == [(1, "bad \ufffd\ufffd byte"), (2, "next")]


def test_nuls_do_not_push_a_line_over_its_limit(log: Path) -> None:
    hole = b"\0" * (3 * LINE_LIMIT)  # where the log was emptied under a server that wrote on
    append(log, b"one\n" + hole + b"CUDA out of memory\n" + b"\0" * 9 + b"last" + hole)
    reader = LogTail(log)
    assert reader.read() == [(1, "one"), (2, "CUDA out of memory")]
    assert reader.finish() == [(3, "last")]
    assert list(lines(log)) == [(1, "one"), (2, "CUDA out of memory"), (3, "last")]
    assert tail(log, 2) == ["CUDA out of memory", "last"]


def test_a_giant_line_is_cut_and_its_size_told(log: Path) -> None:
    size = 5 * 1024 * 1024
    append(log, b"a" * size + b"\nafter\n")
    first, after = LogTail(log).read()
    assert first.number == 1
    assert first.text == "a" * LINE_LIMIT + f" [... {size - LINE_LIMIT} bytes more]"
    assert after == (2, "after")
    reader = LogTail(log)
    append(log, b"b" * size)
    assert len(reader.read()) == 2
    append(log, b"b" * 10 + b"\n")
    assert reader.read()[0].text.endswith(f" [... {size + 10 - LINE_LIMIT} bytes more]")
    assert len(tail(log, 1)[0]) < LINE_LIMIT + 50


def test_a_giant_line_costs_neither_memory_nor_time(log: Path) -> None:
    with log.open("wb") as file:
        file.truncate(100 * 1024 * 1024)  # one line of NULs
    began = time.process_time()
    assert LogTail(log).read() == []
    assert LogTail(log).finish() == []
    assert time.process_time() - began < 5


def test_a_truncated_file_is_read_anew(log: Path) -> None:
    reader = LogTail(log)
    append(log, b"one\ntwo\nhalf")
    reader.read()
    log.write_bytes(b"new\n")
    assert reader.read() == [(1, "new")]


def test_a_replaced_file_is_read_anew(log: Path, tmp_path: Path) -> None:
    reader = LogTail(log)
    append(log, b"one\ntwo\n")
    reader.read()
    log.rename(tmp_path / "server.log.1")
    assert reader.read() == []
    append(log, b"first of the new file, which is longer than the old one\n")
    assert reader.read() == [(1, "first of the new file, which is longer than the old one")]


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([b"a", b"\r", b"\n", b"\xc3", b"\xa4", b"\0", b"\x1b[1m"]), max_size=40),
    st.randoms(),
)
def test_where_the_reads_fall_does_not_matter(parts: list[bytes], chance: random.Random) -> None:
    with TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        log.touch()
        reader, found = LogTail(log), list[LogLine]()
        for part in parts:
            append(log, part)
            if chance.random() < 0.5:
                found += reader.read()
        found += reader.finish()
        assert found == list(lines(log))
        newlines = log.read_bytes().count(b"\n")
        assert all(line.number <= newlines + 1 for line in found)


@pytest.mark.parametrize(
    ("data", "n", "last"),
    [
        (b"", 3, []),
        (b"one", 3, ["one"]),
        (b"one\ntwo\n", 1, ["two"]),
        (b"one\ntwo\nthree", 2, ["two", "three"]),
        (b"one\r\n\r\n\x1b[31mthree\x1b[0m\r\n", 3, ["one", "", "three"]),
        (b"x\n 1%\r 50%\r100%\r\n", 1, ["100%"]),
        (b"one\n", 0, []),
    ],
)
def test_tail(log: Path, data: bytes, n: int, last: list[str]) -> None:
    log.write_bytes(data)
    assert tail(log, n) == last


def test_tail_of_a_missing_file(log: Path) -> None:
    assert tail(log, 5) == []


def test_tail_reads_only_the_end(log: Path) -> None:
    with log.open("wb") as file:
        file.seek(4 * 1024**3)  # a sparse file of 4 GiB
        file.write(b"\n" + "".join(f"line {n}\n" for n in range(5000)).encode())
    began = time.process_time()
    assert tail(log, 3) == ["line 4997", "line 4998", "line 4999"]
    assert tail(log, 4000)[0] == "line 1000"
    assert time.process_time() - began < 1
    os.truncate(log, 0)


def test_lines_streams_a_whole_file(log: Path) -> None:
    log.write_bytes(b"".join(b"line %d\n" % n for n in range(200_000)))
    assert deque(lines(log), maxlen=1) == deque([(200_000, "line 199999")])
