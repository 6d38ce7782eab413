"""How long it takes to audit and pair two full GSM8K evaluations, against merely parsing the same files.

    python -m benchmarks.audit_pair [REPEATS]

Uses the real questions where HARNESS_GSM8K_DIR points at them, else made-up ones of the same number.
"""

import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple

from harness.accuracy.audit import audit
from harness.accuracy.pairing import pair_samples
from harness.accuracy.samples import load_samples
from tests.accuracy.builders import Doc, problems, samples_file, write_lane

DOCS = 1319
TARGET_S = 1.5


def documents() -> list[Doc]:
    folder = os.environ.get("HARNESS_GSM8K_DIR")
    if not folder:
        return problems(DOCS)
    with Path(folder, "test.jsonl").open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def answers(docs: list[Doc], seed: int) -> dict[int, str | None]:
    """Long answers, as a model gives them: the gold solution, spoilt in three of ten."""
    chance = random.Random(seed)
    said: dict[int, str | None] = {}
    for number, doc in enumerate(docs):
        reasoning, _, final = doc["answer"].rpartition("#### ")
        wrong = "1" if chance.random() < 0.3 else ""
        said[number] = f" {reasoning}{reasoning[: chance.randrange(200)]}\n#### {wrong}{final}"
    return said


def audit_and_pair(sides: list[Path]) -> None:
    baseline, candidate = (load_samples(side / "gsm8k" / "lm_eval") for side in sides)
    for samples, side in zip((baseline, candidate), sides, strict=True):
        result = audit(samples, expected_docs=DOCS, requests=side / "gsm8k" / "requests.jsonl")
        assert result.metrics["n"] == DOCS
        assert result.verdict == "REPORTED", result.findings[:3]
    paired, _ = pair_samples(baseline, candidate, max_drop_pp=1)
    assert paired.filters["strict-match"].n == DOCS


def parse_only(sides: list[Path]) -> None:
    for side in sides:
        with samples_file(side).open("rb") as lines:
            for line in lines:
                json.loads(line)


class Times(NamedTuple):
    """Seconds."""

    wall: float
    cpu: float


def timed(work: Callable[[list[Path]], None], sides: list[Path], repeats: int) -> tuple[Times, float]:
    """Medians, and the worst wall time."""
    walls, cpus = [], []
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), time.process_time()
        work(sides)
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return Times(median(walls), median(cpus)), max(walls)


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    docs = documents()
    with tempfile.TemporaryDirectory() as place:
        sides = [
            write_lane(Path(place, name), docs, answers=answers(docs, seed))
            for seed, name in enumerate(("baseline", "candidate"))
        ]
        size = sum(samples_file(side).stat().st_size for side in sides)
        print(f"2 x {len(docs)} documents x 2 filters, {size / 1e6:.1f} MB of samples, {repeats} repeats")
        parse, _ = timed(parse_only, sides, repeats)
        whole, worst = timed(audit_and_pair, sides, repeats)
    print(f"load average {os.getloadavg()[0]:.1f}")
    print(f"parse only     {parse.wall:.3f} s, of which CPU {parse.cpu:.3f} s")
    print(f"audit + pair   {whole.wall:.3f} s, of which CPU {whole.cpu:.3f} s; worst {worst:.3f} s")
    print(f"target         {TARGET_S} s: {'met' if whole.wall <= TARGET_S else 'MISSED'}")
    print(f"ratio          {whole.cpu / parse.cpu:.2f} x parsing the same files (CPU)")


if __name__ == "__main__":
    main()
