"""Running the whole program as a user does: a subprocess, a scenario file, a run, a clean machine."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

STUB = Path(__file__).parents[1] / "servers" / "llama_stub.py"
QUICK_LM_EVAL = STUB.with_name("quick_lm_eval.py")
MARK = "HARNESS_RUN_MARK"
DOCS = 16
LIMIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one invocation left: exit code, output, the newest run directory, and its summary as it was then
    (a later `judge` writes it anew)."""

    code: int
    stdout: str
    stderr: str
    run: Path | None
    found: dict[str, Any] | None = None

    @classmethod
    def of(cls, code: int, stdout: str, stderr: str, run: Path | None) -> "Outcome":
        file = run / "summary.json" if run else None
        there = file is not None and file.is_file()
        found = json.loads(file.read_text(encoding="utf-8")) if file and there else None
        return cls(code, stdout, stderr, run, found)

    @property
    def summary(self) -> dict[str, Any]:
        assert self.found is not None, self.stderr
        return self.found

    def codes(self) -> set[str]:
        """Every finding code anywhere in the summary."""
        found: set[str] = set()

        def walk(node: object) -> None:
            if isinstance(node, dict):
                if isinstance(node.get("code"), str):
                    found.add(node["code"])
                for value in node.values():
                    walk(value)
            elif isinstance(node, list):
                for value in node:
                    walk(value)

        walk(self.summary)
        return found


@dataclass(slots=True)
class Bench:
    """A scratch directory with a data set, a model file and a way to run `harness`."""

    root: Path
    env: dict[str, str] = field(default_factory=dict)

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    def quick_evaluator(self) -> Path:
        """This interpreter, to be had as HARNESS_LM_EVAL_PYTHON, whose lm-eval is the quick one."""
        script = self.root / "python"
        quick, python = shlex.quote(str(QUICK_LM_EVAL)), shlex.quote(sys.executable)
        script.write_text(
            f'#!/bin/sh\n[ "$2" = lm_eval ] && set -- {quick} "$@"\nexec {python} "$@"\n', encoding="utf-8"
        )
        script.chmod(0o755)
        return script

    def use_plain_evaluator(self) -> None:
        """lm-eval exactly as a user runs it, seconds slower."""
        del self.env["HARNESS_LM_EVAL_PYTHON"]

    def lane(self, fault: str = "", **more: Any) -> dict[str, Any]:
        """A lane on the misbehaving server; `more` is laid over it."""
        env = {
            "STUB_ANSWERS": str(self.root / "data" / "test.jsonl"),
            "STUB_ACCURACY": "0.75",
            "STUB_FAULT": fault,
        }
        lane: dict[str, Any] = {
            "engine": "llamacpp",
            "binary": str(STUB),
            "model": {"path": str(self.root / "model.gguf"), "served_name": "stub"},
            "env": env,
            "timeouts": {"start_s": 4, "start_cap_s": 20, "request_s": 10, "stop_s": 1},
            "checks": {"gsm8k": self.check()},
        }
        return lane | more

    def check(self, **more: Any) -> dict[str, Any]:
        base = {
            "dataset": str(self.root / "data"),
            "num_concurrent": 4,
            "batch_size": 2,
            "max_gen_toks": 64,
            "max_retries": 2,
            "timeout_s": 10,
            "stall_s": 4,
        }
        return base | more

    def scenario(self, lanes: dict[str, Any], pairs: dict[str, Any] | None = None) -> Path:
        file = self.root / "scenario.yaml"
        file.write_text(yaml.safe_dump({"lanes": lanes, "pairs": pairs or {}}), encoding="utf-8")
        return file

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "harness", *arguments],
            cwd=self.root,
            env={**os.environ, **self.env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=_heed_interrupts,
        )

    def harness(self, *arguments: str, limit_s: float = LIMIT_S) -> Outcome:
        return self.finish(self.start(*arguments), limit_s)

    def finish(self, process: subprocess.Popen[str], limit_s: float = LIMIT_S) -> Outcome:
        try:
            stdout, stderr = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            stdout, stderr = process.communicate(timeout=30)
            pytest.fail(f"harness did not end within {limit_s} s:\n{stdout}\n{stderr}")
        assert "Traceback" not in stderr, stderr
        return Outcome.of(process.returncode, stdout, stderr, self.newest())

    def newest(self) -> Path | None:
        latest = self.runs / "latest"
        return latest.resolve() if latest.exists() else None

    def run(self, lanes: dict[str, Any], pairs: dict[str, Any] | None = None, *more: str) -> Outcome:
        return self.harness("run", str(self.scenario(lanes, pairs)), *more)


def _heed_interrupts() -> None:
    """A test suite that a shell started in the background has SIGINT ignored, and so would its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def marked(run: Path | None) -> list[psutil.Process]:
    """Living processes that carry the mark of this run."""
    if run is None:
        return []
    found = []
    for process in psutil.process_iter():
        try:
            mark = process.environ().get(MARK, "")
            if mark.startswith(f"{run.name}:") and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def assert_clean(run: Path | None, within_s: float = 8.0) -> None:
    """No process of the run is left, and none holds a port that it leased."""
    deadline = time.monotonic() + within_s
    while marked(run) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert marked(run) == []
    if run is None:
        return
    from harness.host.ports import listener

    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    for lane in record["lanes"].values():
        for server in lane["servers"]:
            for port in server["ports"].values():
                holder = listener(port)  # a test beside this one may have leased the port meanwhile
                assert (
                    holder is None
                    or "llama_stub" not in holder.command
                    or _carries_other_mark(holder.pid, run)
                )


def _carries_other_mark(pid: int | None, run: Path) -> bool:
    if pid is None:
        return False
    try:
        mark = psutil.Process(pid).environ().get(MARK, "")
    except psutil.Error:
        return True
    return bool(mark) and not mark.startswith(f"{run.name}:")


def furnished(root: Path) -> Bench:
    """A bench with all that it has, in an empty directory."""
    made = Bench(root)
    (root / "data").mkdir()
    write_documents(root / "data" / "train.jsonl", range(100, 108))
    write_documents(root / "data" / "test.jsonl", range(DOCS))
    (root / "model.gguf").write_bytes(b"GGUF stub")
    made.env["HARNESS_LM_EVAL_PYTHON"] = str(made.quick_evaluator())
    return made


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = furnished(tmp_path)
    yield made
    assert_clean(made.newest())


def write_documents(path: Path, numbers: Sequence[int]) -> None:
    with path.open("w", encoding="utf-8") as out:
        for number in numbers:
            question = f"Mei has {number + 3} apples and buys {2 * number + 1} more. How many has she now?"
            total = 3 * number + 4
            answer = f"{number + 3} + {2 * number + 1} = {total}\n#### {total}"
            out.write(json.dumps({"question": question, "answer": answer}) + "\n")
