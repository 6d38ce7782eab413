"""What the simulated model says."""

import re
from collections.abc import Sequence

import pytest

from harness.simulator.answer_key import AnswerKey, Document
from harness.simulator.language import Language, Speech, last_question
from harness.simulator.tokenizer import ByteTokenizer

TOKENIZER = ByteTokenizer()
DOCUMENTS = [
    Document(f"Ann has {n} pens and buys {n + 1} more. How many?", str(2 * n + 1)) for n in range(40)
]
SHOTS = "".join(f"Question: What is {n} + 1?\nAnswer: It is {n + 1}.\n#### {n + 1}\n\n" for n in range(5))


def say(speech: Speech, most: int = 400, may_stop: bool = True) -> list[int]:
    ids: list[int] = []
    while len(ids) < most and TOKENIZER.eos_id not in ids:
        ids.append(speech.next(may_stop)[0])
    return ids


def language(kv_type: str = "None", answers: AnswerKey | None = None, model_seed: int = 0) -> Language:
    return Language(TOKENIZER, answers, kv_type=kv_type, model_seed=model_seed)


def answer(text: str, kv_type: str, answers: AnswerKey) -> str:
    return TOKENIZER.decode(say(language(kv_type, answers).begin(TOKENIZER.encode(text, False))))


def test_the_same_context_gives_the_same_text() -> None:
    ids = TOKENIZER.encode("Hello there", True)
    assert say(language().begin(ids)) == say(language().begin(ids))


@pytest.mark.parametrize(
    "other",
    [
        lambda ids: language().begin(ids[:-1]),
        lambda ids: language().begin((*ids[:3], ids[3] + 1, *ids[4:])),
        lambda ids: language().begin((ids[1], ids[0], *ids[2:])),
        lambda ids: language().begin(ids, seed=1),
        lambda ids: language("fp8kv_dsa").begin(ids),
        lambda ids: language(model_seed=1).begin(ids),
    ],
)
def test_another_context_gives_another_text(other: object) -> None:
    for number in range(50):
        ids = TOKENIZER.encode(f"Hello there {number}", True)
        assert say(language().begin(ids))[:20] != say(other(ids))[:20]  # type: ignore[operator]


def test_damage_shows_at_once_and_stays() -> None:
    ids = TOKENIZER.encode("Hello there", True)
    whole, damaged = language().begin(ids), language().begin(ids)
    assert [whole.next(True) for _ in range(7)] == [damaged.next(True) for _ in range(7)]
    damaged.corrupt(b"reload")
    one, two = say(whole), say(damaged)
    assert one[:12] != two[:12]
    assert one[-12:] != two[-12:]


def test_texts_end_by_themselves_within_20_to_200_tokens_and_are_readable() -> None:
    lengths = []
    for number in range(300):
        ids = say(language().begin(TOKENIZER.encode(f"Tell me about {number}", True)))
        text = TOKENIZER.decode(ids[:-1])
        assert ids[-1] == TOKENIZER.eos_id
        assert re.fullmatch(r"(?: [a-z]+| ?\.)+\.", text), text
        assert len(set(text.split())) > 2
        lengths.append(len(ids))
    assert 20 <= min(lengths) < 40
    assert 160 < max(lengths) <= 200


def test_it_goes_on_where_it_may_not_stop_and_does_not_loop() -> None:
    ids = say(language().begin(TOKENIZER.encode("Tell me more", True)), 600, may_stop=False)
    assert len(ids) == 600
    assert TOKENIZER.eos_id not in ids
    words = TOKENIZER.decode(ids).split()
    assert len(set(words)) > 40


def test_it_stops_as_soon_as_it_may_after_its_end() -> None:
    speech = language().begin(TOKENIZER.encode("Tell me more", True))
    say(speech, 300, may_stop=False)
    assert len(say(speech)) < 12


def test_logprobs_are_plausible() -> None:
    speech = language().begin(TOKENIZER.encode("Tell me more", True))
    values = [speech.next(False)[1] for _ in range(1000)]
    assert -3 < min(values) < max(values) < 0
    assert -1 < sum(values) / len(values) < -0.1
    assert len(set(values)) > 100


@pytest.mark.parametrize(
    "form",
    [
        SHOTS + "Question: {}\nAnswer:",
        "Question: {}\nAnswer:",
        "<|im_start|>user\n" + SHOTS + "Question: {}\nAnswer:<|im_end|>\n<|im_start|>assistant\n<think>\n",
        "[INST] Question: {}\nAnswer: [/INST]",
        "<|user|>\nQuestion: {}\nAnswer:<|assistant|>\n<think></think>",
    ],
)
def test_the_answer_key_is_found_and_its_accuracy_is_exact(form: str) -> None:
    answers = AnswerKey(DOCUMENTS, {"None": 0.6, "fp8": 0.55}, 0.1)
    for kv_type, expected in (("None", 24), ("fp8", 22)):
        right = 0
        for document in DOCUMENTS:
            text = answer(form.format(document.question), kv_type, answers)
            assert "Question:" not in text
            found = re.search(r"\n#### (-?[0-9.,]+)<\|end\|>$", text)
            assert found, text
            assert re.findall(r"(-?[$0-9.,]{2,})|(-?[0-9]+)", text.removesuffix("<|end|>"))[-1] in [
                (found[1], ""),
                ("", found[1]),
            ]
            right += found[1] == document.answer
        assert right == expected


def test_the_wording_differs_between_kv_types_where_the_answer_does_not() -> None:
    answers = AnswerKey(DOCUMENTS, {"None": 1.0})
    text = f"Question: {DOCUMENTS[0].question}\nAnswer:"
    one, two = (answer(text, kv_type, answers) for kv_type in ("None", "fp8"))
    assert one != two
    assert one.partition("####")[2] == two.partition("####")[2]


@pytest.mark.parametrize(
    "prompt",
    [
        "",
        "\nAnswer:",
        "Question: a?",
        "Question: a?\nAnswer: 3",
        "Question: a?\nAnswer:" + "x" * 80,
        "Answer:",
    ],
)
def test_other_prompts_have_no_question(prompt: str) -> None:
    assert last_question(prompt) is None


def test_a_question_that_is_not_in_the_key_gets_plain_text() -> None:
    answers = AnswerKey(DOCUMENTS, {"None": 1.0})
    assert "####" not in answer("Question: Who are you?\nAnswer:", "None", answers)


def test_a_lost_shot_changes_the_text_and_not_the_answer() -> None:
    answers = AnswerKey(DOCUMENTS, {"None": 1.0})
    text = f"Question: {DOCUMENTS[3].question}\nAnswer:"
    one, two = answer(SHOTS + text, "None", answers), answer(text, "None", answers)
    assert one != two
    assert one.partition("####")[2] == two.partition("####")[2]


def test_adversarial_markers_do_not_take_long() -> None:
    prompts: Sequence[str] = [
        "Question: a\nAnswer:" + "<" * 5000,
        "Question: a\nAnswer:" + "< >" * 3000 + "x",
    ]
    for prompt in prompts:
        assert last_question(prompt) is None
