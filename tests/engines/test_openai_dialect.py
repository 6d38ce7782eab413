"""The two endpoints that all engines share, from recorded forms of their answers."""

from typing import Any

import pytest

from harness.engines.openai_dialect import CHAT, COMPLETIONS, Said, chat, complete
from harness.errors import TargetError
from tests.engines.canned import Canned

USAGE = {"prompt_tokens": 7, "completion_tokens": 3}


def chatting(**message: Any) -> Canned:
    choice = {"finish_reason": "stop", "message": {"role": "assistant", **message}}
    return Canned(v1__chat__completions={"choices": [choice], "usage": USAGE})


def test_a_chat() -> None:
    client = chatting(content="Rome.")
    said = chat(client, "smol", "Where?", max_tokens=9)
    assert said == Said(text="Rome.", finish_reason="stop", prompt_tokens=7, completion_tokens=3)
    path, body, _ = client.asked[0]
    assert path == CHAT
    assert body == {
        "model": "smol",
        "messages": [{"role": "user", "content": "Where?"}],
        "max_tokens": 9,
        "temperature": 0,
    }


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"content": None}, ""),
        ({"content": None, "reasoning_content": "Hm."}, "Hm."),
        ({"content": "Rome", "reasoning": "Hm. "}, "Hm. Rome"),
        ({}, ""),
    ],
)
def test_what_was_thought_counts_as_text(message: dict[str, Any], text: str) -> None:
    assert chat(chatting(**message), "smol", "Where?", max_tokens=9).text == text


def test_a_completion() -> None:
    client = Canned(v1__completions={"choices": [{"text": " Rome", "finish_reason": "length"}]})
    said = complete(client, "smol", "Italy:", max_tokens=9, stop=("\n",))
    assert said == Said(text=" Rome", finish_reason="length", prompt_tokens=None, completion_tokens=None)
    path, body, _ = client.asked[0]
    assert path == COMPLETIONS
    assert body["stop"] == ["\n"]


@pytest.mark.parametrize("answer", [{}, {"choices": []}, {"choices": [{}]}, []])
def test_another_form_is_the_server_s_fault(answer: Any) -> None:
    with pytest.raises(TargetError):
        complete(Canned(v1__completions=answer), "smol", "Italy:", max_tokens=9)
    with pytest.raises(TargetError):
        chat(Canned(v1__chat__completions=answer), "smol", "Where?", max_tokens=9)


@pytest.mark.parametrize(
    ("text", "usage", "said"),
    [
        ("half a \ud83d", None, "half a \\ud83d"),
        (7, {"completion_tokens": "many"}, "7"),
        (None, {}, ""),
        ("nul \0 and \x1b[31m", {"completion_tokens": 1.5}, "nul \0 and \x1b[31m"),
    ],
)
def test_odd_answers_can_be_kept(text: Any, usage: Any, said: str) -> None:
    answer = {"choices": [{"text": text, "finish_reason": "stop"}], "usage": usage}
    got = complete(Canned(v1__completions=answer), "smol", "Italy:", max_tokens=9)
    assert got == Said(text=said, finish_reason="stop", prompt_tokens=None, completion_tokens=None)


@pytest.mark.parametrize("count", [-1, 2**31, 10**3000])
def test_a_number_that_counts_nothing_is_another_form(count: int) -> None:
    answer = {"choices": [{"text": "a", "finish_reason": "stop"}], "usage": {"completion_tokens": count}}
    with pytest.raises(TargetError, match="does not use"):
        complete(Canned(v1__completions=answer), "smol", "Italy:", max_tokens=9)


def test_a_refusal_is_told() -> None:
    with pytest.raises(TargetError, match="500"):
        chat(Canned(v1__chat__completions=500), "smol", "Where?", max_tokens=9)
