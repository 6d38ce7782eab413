"""What the harness costs around a lane: how late readiness is seen, evaluation against the bare command, and
what is left of a lane's time besides its server and its evaluator.

    python benchmarks/lane.py [--starts 9] [--rounds 3]

The server is the test suite's look-alike of llama-server with 50 ms per answer, so that the figures are those
of the harness and not of a model. Ratios are taken within one run, in turns; machines are noisy.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

from harness.checks import lm_eval
from harness.checks.base import CheckContext
from harness.checks.gsm8k import Gsm8k, Gsm8kParams
from harness.deploy.deployment import Deployment, deploy
from harness.engines import ENGINES
from harness.engines.base import Launch
from harness.events import Silent
from harness.host.guard import Guard
from harness.host.ports import PortBook
from harness.scenario.model import Timeouts

ROOT = Path(__file__).parents[1]
STUB = ROOT / "tests" / "servers" / "llama_stub.py"
DATA = ROOT / "harness" / "datasets" / "arithmetic"


def launch(folder: Path, port: int, fault: str) -> Launch:
    model = folder / "model.gguf"
    model.write_bytes(b"GGUF benchmark")
    env = {"STUB_FAULT": fault, "STUB_ANSWERS": str(DATA / "test.jsonl"), "STUB_ACCURACY": "0.5"}
    return Launch(
        lane="bench",
        role="normal",
        model_path=str(model),
        served_name="stub",
        flags={},
        env=env,
        ports={"http": port},
        folder=folder,
        binary=str(STUB),
    )


class Prober(threading.Thread):
    """Asks for one token every few milliseconds, and remembers when the first answer came."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.answered: float | None = None
        self._url = f"http://127.0.0.1:{port}/completion"

    def run(self) -> None:
        body = json.dumps({"prompt": "1", "n_predict": 1}).encode()
        while self.answered is None:
            try:
                request = urllib.request.Request(self._url, body, {"Content-Type": "application/json"})
                urllib.request.urlopen(request, timeout=5).read()
                self.answered = time.monotonic()
            except (urllib.error.URLError, OSError):
                time.sleep(0.003)


def readiness(starts: int) -> list[float]:
    """Seconds from the first possible answer to `ready`, for each start."""
    ports = PortBook()
    late = []
    for _ in range(starts):
        with tempfile.TemporaryDirectory() as place, Guard(Path(place)) as guard:
            port = ports.lease(["http"]).ports["http"]
            prober = Prober(port)
            prober.start()
            up = Deployment()
            job = [(ENGINES["llamacpp"], launch(Path(place), port, "slow-start:1"))]
            with deploy(up, job, run_id="bench", timeouts=Timeouts(stop_s=5), guard=guard, watcher=Silent()):
                prober.join(5)
                ready = up.servers[0].started + up.ready[0].ready_s
                late.append(ready - (prober.answered or ready))
    return late


def evaluation(rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of the bare command and of the check, in turns, against one server."""
    params = Gsm8kParams(dataset="arithmetic", num_concurrent=4, batch_size=1, max_gen_toks=64)
    bare: list[float] = []
    recorded: list[float] = []
    with tempfile.TemporaryDirectory() as place, Guard(Path(place)) as guard:
        port = PortBook().lease(["http"]).ports["http"]
        up = Deployment()
        job = [(ENGINES["llamacpp"], launch(Path(place), port, "slow-answers:0.05"))]
        with deploy(up, job, run_id="bench", timeouts=Timeouts(stop_s=5), guard=guard, watcher=Silent()):
            for number in range(rounds + 1):
                folder = Path(place) / f"round{number}"
                folder.mkdir()
                began = time.monotonic()
                Gsm8k().collect(params, context(folder / "gsm8k", up.entry.launch.base_url), None)
                middle = time.monotonic()
                argv = Gsm8k().command(
                    params, base_url=job[0][1].base_url, served_name="stub", folder=folder / "gsm8k"
                )
                run_bare(argv, folder)
                if number:  # the first warms the caches of both
                    recorded.append(middle - began)
                    bare.append(time.monotonic() - middle)
    return bare, recorded


class Program:
    """A check's program, started the plain way."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                list(argv), env={**os.environ, **env}, stdout=output, stderr=output
            )

    def wait(self, tick: Callable[[], None]) -> int:
        del tick
        return self._process.wait()

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait()


def context(folder: Path, base_url: str) -> CheckContext:
    return CheckContext(
        engine=ENGINES["llamacpp"],
        base_url=base_url,
        served_name="stub",
        folder=folder,
        server_log=folder / "server.log",
        start_command=Program,
        progress=lambda *_: None,
    )


def run_bare(argv: list[str], folder: Path) -> int:
    with (folder / "bare.log").open("ab") as log:
        env = {**os.environ, **lm_eval.ENVIRONMENT}
        return subprocess.run(argv, env=env, stdout=log, stderr=log, check=True).returncode


def lane_overhead() -> dict[str, float]:
    """Phases of one lane of a whole `harness run`, in seconds."""
    with tempfile.TemporaryDirectory() as place:
        scenario = {
            "lanes": {
                "bench": {
                    "engine": "llamacpp",
                    "binary": str(STUB),
                    "model": {"path": f"{place}/model.gguf", "served_name": "stub"},
                    "env": {"STUB_ANSWERS": str(DATA / "test.jsonl"), "STUB_FAULT": "slow-answers:0.05"},
                    "checks": {"gsm8k": {"dataset": "arithmetic", "num_concurrent": 4, "batch_size": 1}},
                }
            }
        }
        (Path(place) / "model.gguf").write_bytes(b"GGUF benchmark")
        (Path(place) / "bench.yaml").write_text(json.dumps(scenario), encoding="utf-8")
        argv = [sys.executable, "-m", "harness", "run", "bench.yaml"]
        began = time.monotonic()
        subprocess.run(argv, cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        wall = time.monotonic() - began
        record = json.loads((Path(place) / "runs" / "latest" / "run.json").read_text(encoding="utf-8"))
    phases: dict[str, float] = record["lanes"]["bench"]["phases"]
    return phases | {"wall": wall, "overhead": wall - phases["ready"] - phases["gsm8k"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=9)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    late = readiness(options.starts)
    print(f"ready seen after the first possible answer  median {median(late):.3f} s, worst {max(late):.3f} s")
    bare, recorded = evaluation(options.rounds)
    ratio = median(one / other for one, other in zip(recorded, bare, strict=True))
    print(f"evaluation, bare command                    median {median(bare):.2f} s")
    print(f"evaluation through the check                median {median(recorded):.2f} s, ratio {ratio:.3f}")
    lane = lane_overhead()
    print(f"a whole run of one lane                     {lane['wall']:.2f} s")
    print(f"  server start {lane['ready']:.2f} s, evaluation {lane['gsm8k']:.2f} s")
    print(f"  all the rest                              {lane['overhead']:.2f} s")


if __name__ == "__main__":
    main()
