"""The program as a shell sees it: its own process, its own folder, no home but an empty one."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

STUB = Path(__file__).parents[1] / "servers" / "llama_stub.py"
LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Said:
    code: int
    out: str
    err: str


Harness = Callable[..., Said]


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    """Runs `harness ARGUMENTS` in `tmp_path`. Never a traceback, never a control character."""

    def run(*arguments: str | Path, **variables: str) -> Said:
        env = {name: text for name, text in os.environ.items() if not name.startswith(("HARNESS_", "HF_"))}
        done = subprocess.run(
            [sys.executable, "-m", "harness", *map(str, arguments)],
            cwd=tmp_path,
            env={
                **env,
                "HOME": str(tmp_path / "home"),
                "HARNESS_LOCK_DIR": str(tmp_path / "locks"),
                **variables,
            },
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert "Traceback" not in done.stdout + done.stderr, done.stderr
        assert "internal error" not in done.stderr, done.stderr
        assert "\x1b" not in done.stdout + done.stderr
        return Said(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def scenario(tmp_path: Path) -> Callable[..., Path]:
    """Writes a scenario with one lane `a` on the misbehaving server; keywords are laid over the lane."""

    def write(name: str = "mine", **more: Any) -> Path:
        (tmp_path / "model.gguf").write_bytes(b"GGUF")
        lane: dict[str, Any] = {
            "engine": "llamacpp",
            "binary": str(STUB),
            "model": {"path": str(tmp_path / "model.gguf"), "served_name": "stub"},
            "checks": {"gsm8k": {"dataset": "arithmetic"}},
        }
        pair = {"p": {"baseline": "a", "candidate": "b", "max_drop_pp": 1.5}}
        lanes = {"a": lane | more, "b": lane | more}
        file = tmp_path / f"{name}.yaml"
        file.write_text(yaml.safe_dump({"description": "two lanes", "lanes": lanes, "pairs": pair}), "utf-8")
        return file

    return write
