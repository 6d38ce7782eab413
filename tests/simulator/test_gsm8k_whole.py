"""The whole real test set, five examples before each question, through the scheduler."""

import json
import os
import random
import re
import time
from pathlib import Path

import pytest

from harness.simulator.answer_key import AnswerKey
from harness.simulator.types import Limits
from tests.simulator.core import TOKENIZER, Answer, Engine

FOLDER = Path(os.environ.get("HARNESS_GSM8K_DIR", ""))
LIMITS = Limits(
    max_total_token_num=400_000,
    max_req_total_len=16384,
    page_size=16,
    hash_page=512,
    running_max_req_size=64,
    batch_max_tokens=8192,
    chunked_prefill_size=4096,
    mtp_step=2,
)


def rows(name: str) -> list[dict[str, str]]:
    text = (FOLDER / name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.split("\n") if line]


@pytest.mark.skipif("HARNESS_GSM8K_DIR" not in os.environ, reason="HARNESS_GSM8K_DIR is not set")
def test_accuracies_are_exact_and_one_core_does_it_in_a_minute() -> None:
    key = AnswerKey.load(FOLDER / "test.jsonl", {"None": 0.6, "fp8kv_dsa": 0.55}, 0.12)
    shots, draw = rows("train.jsonl"), random.Random(1234)
    documents = rows("test.jsonl")
    prompts = []
    for document in documents:
        before = "".join(
            f"Question: {s['question']}\nAnswer: {s['answer']}\n\n" for s in draw.sample(shots, 5)
        )
        prompts.append(TOKENIZER.encode(f"{before}Question: {document['question']}\nAnswer:", True))
    right: dict[str, list[bool]] = {}
    for kv_type in ("None", "fp8kv_dsa"):
        started = time.process_time()
        answers = run(Engine(LIMITS, answers=key, kv_type=kv_type), prompts)
        assert time.process_time() - started < 60
        right[kv_type] = [judge(*pair) for pair in zip(answers, documents, strict=True)]
        assert sum(answer.done.reason == "stop" for answer in answers) == len(documents)
    assert [sum(column) for column in right.values()] == [round(0.6 * 1319), round(0.55 * 1319)]
    differing = sum(one != two for one, two in zip(*right.values(), strict=True))
    assert differing == pytest.approx(0.12 * 1319, abs=1.5)


def run(engine: Engine, prompts: list[tuple[int, ...]]) -> list[Answer]:
    answers: list[Answer] = []
    ended = 0
    while ended < len(prompts):
        while len(answers) < len(prompts) and len(answers) - ended < 64:
            answers.append(engine.add(prompts[len(answers)], 256, exactly=False, stop=("Question:",))[1])
        engine.scheduler.step()
        ended = sum(answer.end is not None for answer in answers)
    return answers


def judge(answer: Answer, document: dict[str, str]) -> bool:
    found = re.findall(r"#### (\-?[0-9\.\,]+)", answer.text)
    wanted = document["answer"].rpartition("#### ")[2]
    assert len(found) == 1
    return str(found[0]).replace(",", "") == wanted.replace(",", "")
