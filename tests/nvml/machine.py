"""A machine with GPUs that a test can change while programs run on it: state for `fake_nvml.c`."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LOST = 15
PRELUDE = """
import json, os, sys, time
from dataclasses import asdict
from harness.host.gpu import book as book_module
from harness.host.gpu import *
from harness.host.gpu.nvml import NvmlSource
book_module.POLL_S = 0.02
source = NvmlSource()
book = GpuBook(source, "run test")
answer = None
"""


@dataclass
class Card:
    """One GPU or slice; memory in MiB; processes as (pid, MiB)."""

    uuid: str
    name: str = "NVIDIA H200"
    total: int = 143771
    used: int = 4
    reserved: int = 600
    sm: int = 90
    numa: int = 0
    bus: str = ""
    mig: int = 0
    error: int = 0
    compute: list[tuple[int, int]] = field(default_factory=list)
    graphics: list[tuple[int, int]] = field(default_factory=list)
    mps: list[tuple[int, int]] = field(default_factory=list)

    def line(self) -> str:
        words = []
        for key, value in vars(self).items():
            if isinstance(value, list):
                words += [f"{key}={pid}:{used}" for pid, used in value]
            elif value != "":
                words.append(f"{key}={str(value).replace(' ', '_')}")
        return " ".join(words)


@dataclass
class Machine:
    folder: Path
    library: Path
    gpus: list[Card] = field(default_factory=list)
    slices: dict[tuple[int, int], Card] = field(default_factory=dict)
    links: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)

    @property
    def state(self) -> Path:
        return self.folder / "machine.txt"

    def write(self) -> None:
        """At once or not at all: programs read the file at any moment."""
        lines = ["version 580.82.07 13.580.82.07"]
        lines += [f"gpu {index} {card.line()}" for index, card in enumerate(self.gpus)]
        lines += [f"slice {index} {number} {card.line()}" for (index, number), card in self.slices.items()]
        lines += [f"link {a} {b} {level} {nvlink}" for (a, b), (level, nvlink) in self.links.items()]
        lines += [f"fail {function} {code}" for function, code in self.failures.items()]
        new = self.state.with_suffix(".new")
        new.write_text("\n".join(lines) + "\n")
        new.replace(self.state)

    def start(self, code: str, **environ: str) -> subprocess.Popen[str]:
        """A program on this machine; it has `source`, `book` and all names of `harness.host.gpu`."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
        return subprocess.Popen(
            [sys.executable, "-c", f"{PRELUDE}\n{code}\nprint(json.dumps(answer), flush=True)"],
            cwd=ROOT,
            env={
                **clean,
                "LD_LIBRARY_PATH": str(self.library.parent),
                "FAKE_NVML_STATE": str(self.state),
                "HARNESS_LOCK_DIR": str(self.folder / "locks"),
                **environ,
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ask(self, code: str, **environ: str) -> Any:
        """What the program's `answer` was."""
        self.write()
        return answer_of(self.start(code, **environ))


def answer_of(program: subprocess.Popen[str]) -> Any:
    """Waits for the program's end."""
    out, err = program.communicate(timeout=60)
    assert program.returncode == 0, err
    return json.loads(out.splitlines()[-1])


def nvswitch(machine: Machine, count: int = 8) -> Machine:
    """Alike GPUs, each joined to each by NVLink, half of them on each socket."""
    machine.gpus = [
        Card(f"GPU-{index}", numa=index * 2 // count, bus=f"00000000:{index + 16:02X}:00.0")
        for index in range(count)
    ]
    machine.links = {(a, b): (50, 1) for a in range(count) for b in range(a)}
    return machine
