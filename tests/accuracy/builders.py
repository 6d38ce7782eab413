"""Makes lm-eval outputs that are sound to the last hash, and spoils them on purpose.

    folder = write_evaluation(tmp_path / "a", problems(20), wrong={3, 7})
    edit_samples(folder, lambda lines: lines.pop())              # a document goes missing
    edit_results(folder, lambda results: results["config"].update(limit=20))
    lane = write_lane(tmp_path / "bf16", problems(20))           # as a run leaves it

The shape is that of a real lm-eval 0.4.13 output, which lies in `data/` and is compared in test_samples.py.
Hashes are computed here, not by the code under test; scores come from it, and are held against lm-eval's own
in test_scoring.py.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.accuracy import scoring

REAL_OUTPUT = Path(__file__).parent / "data" / "lm_eval_0_4_13"
TIME = "2026-11-30T11-50-17.156225"
FILTERS = ("strict-match", "flexible-extract")
SHOTS = "".join(
    f"Question: Ann has {n} apples and eats {n - 2}. How many are left?\nAnswer: {'She eats one more. ' * 25}"
    f"\n#### 2\n\n"
    for n in range(3, 8)
)
GENERATION = {"until": ["Question:", "</s>", "<|im_end|>"], "do_sample": False, "temperature": 0.0}

Doc = dict[str, Any]
Line = dict[str, Any]


def problems(count: int) -> list[Doc]:
    """Word problems with their solutions; document i has the answer 1000 + 2 i, with curly quotes inside."""
    return [
        {
            "question": f"Tom’s shelf holds {half} books — he buys {half} more. How many now?",
            "answer": f"He has {half}+{half}=<<{half}*2={2 * half}>>{2 * half}.\n#### {2 * half}",
        }
        for half in range(500, 500 + count)
    ]


def answer(doc: Doc, *, right: bool = True, offset: int = 1) -> str:
    """What a model might say; wrong answers are off by `offset`."""
    number = int(doc["answer"].rpartition("#### ")[2].replace(",", "")) + (0 if right else offset)
    return f" The shelf then holds {number} books.\n#### {number}"


def prompt(doc: Doc) -> str:
    return f"{SHOTS}Question: {doc['question']}\nAnswer:"


def sample_lines(docs: Sequence[Doc], answers: Sequence[str | None]) -> list[Line]:
    """The lines of a samples file, one for each document and filter, in the evaluator's order."""
    return [
        finished(
            {
                "doc_id": number,
                "doc": doc,
                "target": doc["answer"],
                "arguments": {"gen_args_0": {"arg_0": prompt(doc), "arg_1": GENERATION}},
                "resps": [[text]],
                "filtered_resps": [],
                "filter": name,
                "metrics": ["exact_match"],
            }
        )
        for name in FILTERS
        for number, (doc, text) in enumerate(zip(docs, answers, strict=True))
    ]


def finished(line: Line) -> Line:
    """The line with hashes, extracted answer and score that follow from the rest of it."""
    text = line["resps"][0][0] or ""
    found = scoring.extract(text, line["filter"])
    doc = json.dumps(line["doc"], indent=2, ensure_ascii=False)
    return {
        **line,
        "filtered_resps": [found],
        "doc_hash": sha256(doc),
        "prompt_hash": sha256(line["arguments"]["gen_args_0"]["arg_0"]),
        "target_hash": sha256(line["target"]),
        "exact_match": float(scoring.score(found, line["target"])),
    }


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def results_of(lines: Sequence[Line], *, task: str = "gsm8k", model: str = "glm53", port: int = 8001) -> Line:
    """The results file that the evaluator would write for these lines."""
    docs = len({line["doc_id"] for line in lines})
    reported: Line = {"name": task, "alias": task, "sample_len": docs}
    for name in FILTERS:
        points = [line["exact_match"] for line in lines if line["filter"] == name]
        reported[f"exact_match,{name}"] = sum(points) / len(points)
        reported[f"exact_match_stderr,{name}"] = 0.01
    results: Line = json.loads(next(REAL_OUTPUT.rglob("results_*.json")).read_text(encoding="utf-8"))
    config = results["configs"].pop("gsm8k")
    args = {**results["config"]["model_args"], "model": model, "base_url": f"http://127.0.0.1:{port}/v1/x"}
    config["metadata"] |= args
    hashes = "".join(line["doc_hash"] + line["prompt_hash"] + line["target_hash"] for line in lines)
    return {
        **results,
        "results": {task: reported},
        "configs": {task: config},
        "versions": {task: 3.0},
        "n-shot": {task: 5},
        "higher_is_better": {task: {"exact_match": True}},
        "n-samples": {task: {"original": docs, "effective": docs}},
        "config": {**results["config"], "model_args": args},
        "task_hashes": {task: sha256(hashes)},
        "model_name": model,
        "model_name_sanitized": model,
        "date": float(port),  # differs between two runs, as it does in life
    }


def write_evaluation(
    folder: Path,
    docs: Sequence[Doc],
    *,
    wrong: Collection[int] = (),
    answers: Mapping[int, str | None] | None = None,
    task: str = "gsm8k",
    model: str = "glm53",
    port: int = 8001,
    time: str = TIME,
) -> Path:
    """Write an output directory; `wrong` documents are answered wrongly, `answers` replaces some by hand."""
    given = {number: answer(doc, right=number not in wrong) for number, doc in enumerate(docs)}
    lines = sample_lines(docs, list({**given, **(answers or {})}.values()))
    place = folder / model
    place.mkdir(parents=True, exist_ok=True)
    write_lines(place / f"samples_{task}_{time}.jsonl", lines)
    results = results_of(lines, task=task, model=model, port=port)
    (place / f"results_{time}.json").write_text(json.dumps(results, indent=2, ensure_ascii=False), "utf-8")
    return folder


def write_lane(
    folder: Path,
    docs: Sequence[Doc],
    *,
    fingerprint: Mapping[str, Any] | None = None,
    wrong: Collection[int] = (),
    answers: Mapping[int, str | None] | None = None,
) -> Path:
    """A lane directory as a run leaves it: fingerprint, the check's own evidence, lm-eval's output."""
    write_evaluation(folder / "gsm8k" / "lm_eval", docs, wrong=wrong, answers=answers)
    asked = [line for line in read_lines(samples_file(folder)) if line["filter"] == FILTERS[0]]
    write_lines(folder / "gsm8k" / "requests.jsonl", [request(line) for line in asked])
    write_lines(folder / "gsm8k" / "raw_responses.jsonl", [{"http_id": n} for n in range(len(asked))])
    (folder / "eval.log").write_text("done\n", encoding="utf-8")
    own = {
        "dataset.json": {
            "name": "x",
            "docs": len(docs),
            "sha256": {"test.jsonl": "0" * 64},
            "questions": [sha256(doc["question"]) for doc in docs],
        },
        "evaluator.json": {"argv": [], "exit_code": 0},
    }
    for name, value in own.items():
        (folder / "gsm8k" / name).write_text(json.dumps(value), encoding="utf-8")
    keys = {"engine": "fake", "version": "1.0", "flags.--kv-cache-dtype": "auto", **(fingerprint or {})}
    (folder / "fingerprint.json").write_text(json.dumps(keys), encoding="utf-8")
    return folder


def request(line: Line) -> Line:
    """The recorder's line for one sample."""
    text = line["resps"][0][0]
    return {
        "seq": line["doc_id"],
        "http_id": line["doc_id"],
        "index": 0,
        "prompt_sha256": sha256(line["arguments"]["gen_args_0"]["arg_0"]),
        "status": 200,
        "finish_reason": "stop",
        "prompt_tokens": 100,
        "completion_tokens": 10,
        "latency_s": 0.5,
        "ttft_s": None,
        "text_sha256": None if text is None else sha256(text),
        "text_empty": not (text or "").strip(),
        "error": None,
        "attempt": 1,
        "received_at": "2026-11-30T11:50:17.156+00:00",
    }


def samples_file(folder: Path) -> Path:
    return next(folder.rglob("samples_*.jsonl"))


def results_file(folder: Path) -> Path:
    return next(folder.rglob("results_*.json"))


def read_lines(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def write_lines(path: Path, lines: Sequence[Line]) -> None:
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    path.write_bytes(text.encode())


def edit_lines(path: Path, change: Callable[[list[Line]], object]) -> None:
    """Let `change` alter the list of a JSONL file in place."""
    lines = read_lines(path)
    change(lines)
    write_lines(path, lines)


def edit_samples(folder: Path, change: Callable[[list[Line]], object]) -> None:
    edit_lines(samples_file(folder), change)


def edit_results(folder: Path, change: Callable[[Line], object]) -> None:
    path = results_file(folder)
    results = json.loads(path.read_text(encoding="utf-8"))
    change(results)
    path.write_text(json.dumps(results), encoding="utf-8")
