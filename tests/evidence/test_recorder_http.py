"""Where HTTP messages begin and end, however the bytes are cut into pieces."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.evidence.recorder.http import (
    HEAD_LIMIT,
    BadMessage,
    BodyReader,
    answer_body,
    read_head,
    request_body,
    status_of,
)


def chunked(content: bytes, sizes: list[int]) -> bytes:
    framed = b""
    for size in sizes:
        piece, content = content[:size], content[size:]
        if piece:
            framed += f"{len(piece):X};x=1\r\n".encode() + piece + b"\r\n"
    if content:
        framed += f"{len(content):04x} \r\n".encode() + content + b"\r\n"
    return framed + b"0\r\nTrailer: x\r\n\r\n"


def read_all(reader: BodyReader, data: bytes, cuts: list[int]) -> tuple[bytes, int]:
    """The content and how many bytes it took, feeding pieces of these sizes as a connection would."""
    content, total = b"", 0
    while data and not reader.done:
        size = cuts.pop() if cuts else len(data)
        piece, used = reader.feed(data[:size])
        content += piece
        total += used
        assert used == min(size, len(data)) or reader.done
        data = data[size:]
    return content, total


@settings(deadline=None)
@given(
    st.binary(max_size=300),
    st.lists(st.integers(1, 40), max_size=8),
    st.lists(st.integers(1, 9), max_size=80),
    st.binary(max_size=20),
)
def test_chunks_in_any_pieces(content: bytes, sizes: list[int], cuts: list[int], after: bytes) -> None:
    framed = chunked(content, sizes)
    reader = BodyReader(length=None, chunked=True)
    assert read_all(reader, framed + after, cuts) == (content, len(framed))
    assert reader.done


@settings(deadline=None)
@given(st.binary(max_size=300), st.lists(st.integers(1, 50), max_size=20), st.binary(max_size=20))
def test_a_length_in_any_pieces(content: bytes, cuts: list[int], after: bytes) -> None:
    reader = BodyReader(length=len(content), chunked=False)
    assert read_all(reader, content + after, cuts) == (content, len(content))
    assert reader.done


@settings(deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_are_a_message_or_a_bad_one(data: bytes) -> None:
    for framing in (request_body, lambda head: answer_body(head, "GET")):
        try:
            head = read_head(data + b"\r\n\r\n")
            assert head is not None
            framing(head).feed(data)
        except BadMessage:
            pass


def test_head_is_read_where_it_begins() -> None:
    raw = b"HTTP/1.1 404 Not  Found\r\nA: 1\r\na:2\t\r\nEmpty:\r\n\r\nbody"
    head = read_head(b"xx" + raw, 2)
    assert head is not None
    assert head.words == ("HTTP/1.1", "404", "Not  Found")
    assert head.fields == {"a": "1, 2", "empty": ""}
    assert head.size == len(raw) - len(b"body")
    assert status_of(head) == 404
    assert read_head(raw[:30]) is None


def head_of(first: str, *fields: str) -> bytes:
    return "\r\n".join([first, *fields, "", ""]).encode()


@pytest.mark.parametrize(
    ("fields", "closes", "length"),
    [
        ((), True, None),
        (("Content-Length: 7",), False, 7),
        (("Content-Length: 7", "Content-Length: 7"), False, 7),
        (("Transfer-Encoding: chunked",), False, None),
    ],
)
def test_framing_of_answers(fields: tuple[str, ...], closes: bool, length: int | None) -> None:
    head = read_head(head_of("HTTP/1.1 200 OK", *fields))
    assert head is not None
    reader = answer_body(head, "POST")
    assert reader.ends_with_connection is closes
    assert reader._length == length
    assert answer_body(head, "HEAD").done
    none = read_head(head_of("HTTP/1.1 204 X", *fields))
    assert none is not None
    assert answer_body(none, "POST").done


@pytest.mark.parametrize(
    "fields",
    [
        ("Content-Length: -1",),
        ("Content-Length: 1_0",),
        ("Content-Length: 1, 2",),
        ("Content-Length: ",),
        ("Content-Length: 5", "Transfer-Encoding: chunked"),
        ("Transfer-Encoding: gzip",),
        ("No colon",),
        (" folded: x",),
        ("sp ace: x",),
    ],
)
def test_framing_that_could_be_read_in_two_ways_is_refused(fields: tuple[str, ...]) -> None:
    with pytest.raises(BadMessage):
        _request("POST / HTTP/1.1", *fields)


@pytest.mark.parametrize(
    "first", ["", "nonsense", "HTTP/1.1 2000 X", "HTTP/2 200", "SSH-2.0 200 x", "HTTP/1.1 -20"]
)
def test_first_lines_that_are_no_answer(first: str) -> None:
    with pytest.raises(BadMessage):
        _answer(first)


@pytest.mark.parametrize(
    "first", ["\x16\x03 tls HTTP/1.1", "GET /", "GET / HTTP/2", "PRI * HTTP/2.0", " / HTTP/1.1"]
)
def test_first_lines_that_are_no_request(first: str) -> None:
    with pytest.raises(BadMessage):
        _request(first)


def _request(*lines: str) -> BodyReader:
    head = read_head(head_of(*lines))
    assert head is not None
    return request_body(head)


def _answer(*lines: str) -> int:
    head = read_head(head_of(*lines))
    assert head is not None
    return status_of(head)


@pytest.mark.parametrize(
    "body", [b"zz\r\n", b"-1\r\n", b"0x5\r\n", b"\r\n", b"1_0\r\n", b"2\r\nabc\r\n", b"f" * 16 + b"\r\n"]
)
def test_bad_chunks(body: bytes) -> None:
    with pytest.raises(BadMessage):
        BodyReader(length=None, chunked=True).feed(body)


def test_endless_heads_and_lines_are_given_up() -> None:
    with pytest.raises(BadMessage):
        read_head(b"GET / HTTP/1.1\r\nX: " + b"x" * HEAD_LIMIT)
    with pytest.raises(BadMessage):
        BodyReader(length=None, chunked=True).feed(b"1;" + b"x" * HEAD_LIMIT)
