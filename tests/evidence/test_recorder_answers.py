"""What the recorder makes of the answers of each engine, sound and unsound."""

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.evidence.recorder.answers import Answer, error_text, read_answers
from harness.evidence.recorder.prompts import Ask, Dialect, read_ask
from harness.evidence.recorder.stream import has_text, merge_events, read_events

STOP = {"finish_reason": "stop"}


def asked(dialect: Dialect, **body: Any) -> Ask:
    ask = read_ask(dialect, body)
    assert ask.problem is None
    return ask


def completions(*prompts: str, **more: Any) -> Ask:
    return asked(Dialect.COMPLETIONS, prompt=list(prompts), **more)


def test_llama_cpp_completion() -> None:
    counts = {"tokens_predicted": 3, "tokens_evaluated": 7}
    item = {"index": 0, "content": " 5", "stop_type": "limit", "stopping_word": "", **counts}
    ask = asked(Dialect.LLAMACPP, prompt="a", n_predict=3)
    answers, usage = read_answers(ask, item)
    assert answers == [Answer(1, " 5", "length", 7, 3)]
    assert usage is None
    two = asked(Dialect.LLAMACPP, prompt=["a", "b"])
    other = {**item, "index": 1, "content": "!", "stop_type": "eos", "tokens_predicted": 1}
    assert read_answers(two, [other, item])[0] == [
        Answer(1, " 5", "length", 7, 3),
        Answer(1, "!", "stop", 7, 1),
    ]


def test_sglang_generate() -> None:
    def item(text: str, reason: Any) -> dict[str, Any]:
        meta = {"finish_reason": reason, "prompt_tokens": 4, "completion_tokens": 2}
        return {"text": text, "output_ids": [1, 2], "meta_info": meta}

    ask = asked(Dialect.GENERATE, text=["a", "b"], sampling_params={"max_new_tokens": 2})
    abort = {"type": "abort", "message": "x"}
    answers, _ = read_answers(ask, [item("one", {"type": "length", "length": 2}), item("", abort)])
    assert answers[0] == Answer(1, "one", "length", 4, 2)
    assert answers[1] == Answer(1, "", "abort", 4, 2, "finish reason abort")
    ids = asked(Dialect.GENERATE, input_ids=[1, 2, 3])
    assert len(ids.prompts) == 1
    assert read_answers(ids, item("x", {"type": "stop", "matched": 2}))[0] == [Answer(1, "x", "stop", 4, 2)]


def test_lightllm_generate() -> None:
    body = {"generated_text": ["one"], "count_output_tokens": 2, "finish_reason": "stop", "prompt_tokens": 5}
    ask = asked(Dialect.GENERATE, inputs="a", parameters={"max_new_tokens": 2})
    assert read_answers(ask, body)[0] == [Answer(1, "one", "stop", 5, 2)]
    broken = {**body, "finish_reason": "error"}
    assert read_answers(ask, broken)[0][0].error == "finish reason error"
    both = {"generated_text": ["x", "y"], "count_output_tokens": [1, 2], "finish_reason": ["stop", "length"]}
    two = asked(Dialect.GENERATE, inputs="a", parameters={"n": 2})
    assert read_answers(two, both)[0] == [Answer(2, "x", "stop")]


def test_chat() -> None:
    ask = asked(Dialect.CHAT, messages=[{"role": "user", "content": "a"}])
    choice = {"index": 0, "message": {"role": "assistant", "content": "hi"}, **STOP}
    body = {"choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}
    assert read_answers(ask, body)[0] == [Answer(1, "hi", "stop", 3, 1)]
    null = {"choices": [{**choice, "message": {"content": None, "reasoning_content": "hm"}}]}
    assert read_answers(ask, null)[0] == [Answer(1, None, "stop")]


def test_several_choices_to_each_prompt() -> None:
    ask = completions("a", "b", n=2)
    choices = [{"index": place, "text": f"t{place}", **STOP} for place in (3, 2, 0)]
    answers, _ = read_answers(ask, {"choices": choices})
    assert answers[0] == Answer(1, "t0", "stop", error="1 of 2 choices for this prompt are missing")
    assert answers[1] == Answer(2, "t2", "stop")


def test_absurd_number_of_choices_costs_nothing() -> None:
    ask = completions("a", "b", n=10**12)
    answers, _ = read_answers(ask, {"choices": [{"index": 10**12, "text": "x", **STOP}]})
    assert [answer.choices for answer in answers] == [0, 1]
    assert "choices for this prompt are missing" in str(answers[1].error)


@pytest.mark.parametrize(
    "choices",
    [
        [{"index": 0, "text": "x"}, {"index": 0, "text": "y"}, {"index": 1, "text": "z"}],
        [{"index": 0, "text": "x"}, {"index": 1, "text": "y"}, {"index": 7, "text": "z"}],
        [{"index": 0, "text": "x"}, {"index": 1, "text": "y"}, {"index": "2", "text": "z"}],
        [{"text": "x"}, {"text": "y"}, {"text": "z"}],
    ],
)
def test_choice_that_belongs_to_no_prompt_is_an_error(choices: list[dict[str, Any]]) -> None:
    answers, _ = read_answers(completions("a", "b"), {"choices": choices})
    assert answers[0].error == "1 choice(s) in the answer belong to no prompt"
    assert answers[1].error is None


def test_error_inside_a_200() -> None:
    answers, _ = read_answers(completions("a", "b"), {"error": {"message": "overloaded", "code": 503}})
    assert [answer.error for answer in answers] == ["overloaded", "overloaded"]


def test_usage_counts_only_for_a_single_prompt() -> None:
    body = {
        "choices": [{"index": 0, "text": "x", **STOP}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 1},
    }
    one, usage = read_answers(completions("a"), body)
    assert (one[0].prompt_tokens, one[0].completion_tokens, usage) == (3, 1, body["usage"])
    two, usage = read_answers(completions("a", "b"), body)
    assert (two[0].prompt_tokens, usage) == (None, body["usage"])
    odd, _ = read_answers(
        completions("a"), {**body, "usage": {"prompt_tokens": "3", "completion_tokens": True}}
    )
    assert (odd[0].prompt_tokens, odd[0].completion_tokens) == (None, None)


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        ({"error": {"message": "CUDA error", "code": 500}}, "CUDA error"),
        ({"error": "plain"}, "plain"),
        ({"detail": [{"loc": ["body"], "msg": "missing"}]}, '[{"loc": ["body"], "msg": "missing"}]'),
        ({"message": "busy"}, "busy"),
        (" <html>\n", "<html>"),
        ("", ""),
        ("x" * 1000, "x" * 300),
    ],
)
def test_error_text_of_every_shape(payload: Any, text: str) -> None:
    assert error_text(payload) == text


class TestStream:
    def merged(self, ask: Ask, *events: Any) -> list[Answer]:
        return read_answers(ask, merge_events(ask, events), streamed=True)[0]

    def test_openai_pieces_of_two_prompts(self) -> None:
        ask = completions("a", "b")
        events = [
            {"choices": [{"index": 1, "text": "o"}]},
            {"choices": [{"index": 0, "text": "x"}, {"index": 1, "text": "ne", "finish_reason": "length"}]},
            {"choices": [{"index": 0, "text": "", **STOP}]},
        ]
        assert self.merged(ask, *events) == [Answer(1, "x", "stop"), Answer(1, "one", "length")]

    def test_chat_pieces(self) -> None:
        ask = asked(Dialect.CHAT, messages=[])
        events = [
            {"choices": [{"index": 0, "delta": {"role": "assistant", "content": None}}]},
            {"choices": [{"index": 0, "delta": {"content": "Hi"}}]},
            {"choices": [{"index": 0, "delta": {}, **STOP}]},
            {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 1}},
        ]
        assert self.merged(ask, *events) == [Answer(1, "Hi", "stop", 9, 1)]
        assert [has_text(ask, event) for event in events] == [False, True, False, False]

    def test_llama_cpp_pieces(self) -> None:
        ask = asked(Dialect.LLAMACPP, prompt="a")
        last = {"index": 0, "content": "", "stop": True, "stop_type": "eos", "tokens_predicted": 2}
        events = [{"index": 0, "content": "4", "stop": False}, {"index": 0, "content": "2"}, last]
        assert self.merged(ask, *events) == [Answer(1, "42", "stop", None, 2)]

    @pytest.mark.parametrize("texts", [("a", "ab", "abc"), ("a", "b", "c")])
    def test_sglang_whole_and_new_pieces(self, texts: tuple[str, ...]) -> None:
        ask = asked(Dialect.GENERATE, text="p")
        events = [{"text": text, "meta_info": {"finish_reason": None}} for text in texts]
        events[-1]["meta_info"] = {"finish_reason": {"type": "stop"}, "completion_tokens": 3}
        assert self.merged(ask, *events) == [Answer(1, "abc", "stop", None, 3)]

    def test_error_and_nonsense_in_the_middle(self) -> None:
        ask = completions("a")
        first = {"choices": [{"index": 0, "text": "x"}]}
        assert self.merged(ask, first, {"error": {"message": "gone"}})[0].error == "gone"
        assert "not a JSON object" in str(self.merged(ask, first, "garbage")[0].error)

    def test_events_are_found_where_they_end(self) -> None:
        stream = (
            b': ping\r\n\r\ndata: {"a": 1}\r\n\r\nevent: x\ndata:{"b": 2}\n\ndata: [DONE]\n\ndata: half {'
        )
        events = read_events(stream)
        assert [event for _, event in events] == [{"a": 1}, {"b": 2}, "half {"]
        assert [stream[:end].rstrip().endswith(b"}") for end, _ in events] == [True, True, False]
        assert events[-1][0] == len(stream)

    def test_a_long_stream_is_read_in_linear_time(self) -> None:
        ask = asked(Dialect.GENERATE, text="p")
        events = [{"text": f"token{number} "} for number in range(50_000)]
        started = time.process_time()
        assert self.merged(ask, *events)[0].text == "".join(event["text"] for event in events)
        assert time.process_time() - started < 5  # a quadratic reader takes a minute


KEYS = (
    *("choices", "index", "text", "content", "message", "delta", "finish_reason", "usage", "error"),
    *("generated_text", "meta_info", "stop_type", "prompt", "messages", "n", "inputs", "prompt_tokens"),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=25,
)


@settings(deadline=None)  # a busy machine is no failure
@given(st.sampled_from(list(Dialect)), JSON, JSON, st.lists(JSON, max_size=4))
def test_nothing_that_a_client_or_server_sends_raises(
    dialect: Dialect, request: Any, payload: Any, events: list[Any]
) -> None:
    ask = read_ask(dialect, request)
    answers, _ = read_answers(ask, payload)
    assert len(answers) == len(ask.prompts) >= 1
    streamed, _ = read_answers(ask, merge_events(ask, events), streamed=True)
    assert len(streamed) == len(ask.prompts)
    assert isinstance(error_text(payload), str)
    for event in events:
        assert has_text(ask, event) in (True, False)
    data = "".join(f"data: {json.dumps(event)}\n\n" for event in events).encode()
    assert len(read_events(data)) <= len(events)
