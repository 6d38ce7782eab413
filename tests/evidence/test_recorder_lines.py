"""The lines of evidence: strict JSON on one line, whatever was sent."""

import hashlib
import json
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.evidence.recorder.lines import RAW_LIMIT, Body, Exchange, prompt_lines, raw_line
from harness.evidence.recorder.prompts import Dialect, prompt_sha256, read_ask


def strict(line: str) -> dict[str, Any]:
    """Parse as any JSON reader would: no NaN, one line, ASCII."""

    def refuse(word: str) -> None:
        raise ValueError(word)

    assert line.isascii()
    assert len(line.splitlines()) == 1
    loaded: dict[str, Any] = json.loads(line, parse_constant=refuse)
    return loaded


def exchange(request: bytes, answer: bytes, *, encoding: str = "", streamed: bool = False) -> Exchange:
    body = Body(request)
    ask = read_ask(Dialect.COMPLETIONS, body.json)
    made = Exchange(
        http_id=0,
        method="POST",
        path="/v1/completions",
        received_at="2026-01-01T00:00:00+00:00",
        started_s=1.0,
        request=body,
        secrets=('se"cret-key',),
        ask=ask,
        attempts=(1,) * len(ask.prompts),
        status=200,
        encoding=encoding,
        streamed=streamed,
    )
    made.add(answer, 2.0)
    return made


def written(made: Exchange) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    made.finished_s = 3.5
    answer = Body(b"".join(made.chunks), made.encoding)
    assert made.ask is not None
    lines = [strict(json.dumps(line)) for line in prompt_lines(made, made.ask, answer)]
    return lines, strict(raw_line(made, answer))


@settings(deadline=None)  # a busy machine is no failure
@given(
    st.binary(max_size=200) | st.text().map(lambda text: json.dumps({"prompt": text}).encode()), st.binary()
)
def test_any_bytes_become_strict_lines(request: bytes, answer: bytes) -> None:
    for streamed in (False, True):
        written(exchange(request, answer, streamed=streamed))


@pytest.mark.parametrize(
    "answer",
    [
        b'{"choices": [{"index": 0, "text": "x"}], "usage": {"prompt_tokens": NaN}}',
        b'{"choices": [{"index": 0, "text": "x"}], "usage": {"prompt_tokens": 1e999}}',
        b'{"choices": [{"index": 0, "text": "x", "logprobs": [-Infinity]}]}',
        b'{\n"choices": [{"index": 0, "text": "x"}]\r\n}',
        '{"choices": [{"index": 0, "text": "x"}], "a": "\u2028\u4f60"}'.encode(),
    ],
)
def test_odd_json_is_still_read_and_stays_strict(answer: bytes) -> None:
    lines, raw = written(exchange(b'{"prompt": "a"}', answer))
    assert lines[0]["error"] is None
    assert lines[0]["text_chars"] == 1
    assert raw["response"] is not None


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32-be", "utf-8-sig"])
def test_other_encodings_stay_strict(encoding: str) -> None:
    body = '{"prompt": "a"}'.encode(encoding)
    lines, raw = written(exchange(body, body))
    assert raw["response"] is not None
    assert lines[0]["error"] is not None


def test_secret_that_is_a_word_of_the_line_spoils_nothing() -> None:
    made = exchange(b'{"prompt": "a response"}', b'{"error": "response"}')
    made.secrets = ("response",)
    _, raw = written(made)
    assert raw["response"] == {"error": "[redacted]"}


def test_json_on_one_line_is_kept_to_the_byte() -> None:
    answer = b'{"choices": [ ], "x": 1.10, "x": 2e0}'
    made = exchange(b'{"prompt": "a"}', answer)
    assert answer.decode() in raw_line(made, Body(answer))


def test_nan_is_kept_as_the_text_it_was() -> None:
    _, raw = written(exchange(b'{"prompt": "a"}', b'{"p": NaN}'))
    assert raw["response"] == '{"p": NaN}'


def test_big_bodies_are_cut_and_say_so() -> None:
    _, raw = written(exchange(b'{"prompt": "a"}', b"x" * (RAW_LIMIT + 1)))
    assert (raw["truncated"], len(raw["response"])) == (True, RAW_LIMIT)
    _, raw = written(exchange(b'{"prompt": "a"}', b"x" * RAW_LIMIT))
    assert raw["truncated"] is False


def test_endless_answer_is_not_kept_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.evidence.recorder.lines.READ_LIMIT", 2 << 20)
    made = exchange(b'{"prompt": "a"}', b'data: {"choices": []}\n\n', streamed=True)
    for _ in range(4):
        made.add(b"x" * (1 << 20), 2.0)
    assert sum(map(len, made.chunks)) <= 2 << 20
    lines, raw = written(made)
    assert "longer than 2 MiB" in lines[0]["error"]
    assert raw["truncated"] is True


def test_squeezed_bomb_is_not_unfolded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.evidence.recorder.lines.READ_LIMIT", 1 << 20)
    bomb = zlib.compress(b"0" * (5 << 20), 9)
    made = exchange(b'{"prompt": "a"}', bomb, encoding="deflate")
    assert len(Body(bomb, "deflate").data) <= 1 << 20
    lines, _ = written(made)
    assert lines[0]["error"] == "the answer is not JSON"


def test_secret_with_characters_that_json_escapes() -> None:
    made = exchange(b'{"prompt": "my se\\"cret-key"}', b'{"error": "se\\"cret-key"}')
    made.status = 401
    lines, raw = written(made)
    assert lines[0]["error"] == "HTTP 401: [redacted]"
    assert raw["request"]["prompt"] == "my [redacted]"


def test_digests_of_every_kind_of_prompt() -> None:
    assert prompt_sha256("你") == hashlib.sha256("你".encode()).hexdigest()
    assert prompt_sha256([1, 22, 3]) == hashlib.sha256(b"[1,22,3]").hexdigest()
    chat = [{"role": "user", "content": "é"}]
    canonical = '[{"content":"é","role":"user"}]'
    assert prompt_sha256(chat) == hashlib.sha256(canonical.encode()).hexdigest()


@pytest.mark.parametrize(
    ("prompt", "count"),
    [("a", 1), (["a", "b"], 2), ([1, 2], 1), ([[1, 2], [3]], 2), ([], 1), ([12, "a", 34], 1), ([["x"]], 1)],
)
def test_prompts_of_a_batch_are_told_from_token_ids(prompt: Any, count: int) -> None:
    assert len(read_ask(Dialect.COMPLETIONS, {"prompt": prompt}).prompts) == count


def test_settings_leave_out_the_prompts_only() -> None:
    first = read_ask(Dialect.COMPLETIONS, {"prompt": "a", "temperature": 0, "stop": ["x"]})
    same = read_ask(Dialect.COMPLETIONS, {"stop": ["x"], "temperature": 0, "prompt": ["b", "c"]})
    other = read_ask(Dialect.COMPLETIONS, {"prompt": "a", "temperature": 1, "stop": ["x"]})
    assert first.settings == same.settings != other.settings
