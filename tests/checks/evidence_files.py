"""Evidence of a functional check, made by hand: a clean story that a test then damages."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.checks.exchange import EXCHANGES, FACTS, MARKS

IDS = list(range(100, 132))


def exchange(leg: str, case: str, **more: Any) -> dict[str, Any]:
    """One sound answer of 32 tokens to a prompt of 600, the same in each leg."""
    made = {
        "leg": leg,
        "case": case,
        "request_id": f"id-{leg}-{case}",
        "asked_tokens": 600,
        "use_cache": not leg.startswith("control"),
        "prompt_tokens": 600,
        "max_tokens": len(IDS),
        "started_s": 1.0,
        "latency_s": 2.0,
        "text": "some words",
        "ids": list(IDS),
        "logprobs": [-0.5] * len(IDS),
        "finish_reason": "length",
        "cached": {"total": 0},
    } | more
    ids, asked = made["ids"], made["asked_tokens"]
    assert isinstance(ids, list)
    assert isinstance(asked, int)
    prompt = [int(case) if case.isdigit() else 0, *range(1, asked)]
    return {"completion_tokens": len(ids), "prompt": prompt} | made


def mark(label: str, line: int = 0, **counters: float) -> dict[str, Any]:
    return {"label": label, "at_s": 0.0, "lines": {"normal": line}, "counters": counters}


@dataclass(slots=True)
class Story:
    """What a check collected; `write` puts it into a folder."""

    exchanges: list[dict[str, Any]] = field(default_factory=list)
    marks: list[dict[str, Any]] = field(default_factory=list)
    log: dict[str, Any] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)

    def of(self, leg: str) -> dict[str, Any]:
        return next(one for one in self.exchanges if one["leg"] == leg)

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        lines = [{"seq": seq} | one for seq, one in enumerate(self.exchanges)]
        for name, rows in ((EXCHANGES, lines), (MARKS, self.marks)):
            (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        facts = {"log": {"normal": self.log}, "config": {"normal": {}}, "notes": self.notes}
        (folder / FACTS).write_text(json.dumps(facts), encoding="utf-8")
        return folder
