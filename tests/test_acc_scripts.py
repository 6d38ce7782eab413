"""The scripts for a running server, started as people start them, against the simulated LightLLM."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.checks.exchange import EXCHANGES, FACTS
from tests.checks.small_pool import LARGE, SMALL, byte_tokenizer, serving
from tests.simulator.launched import Launched

pytestmark = pytest.mark.process
FOLDER = Path(__file__).parents[1] / "test" / "acc"
CACHE, PAUSE = "test_glm53_fp8kv", "test_request_pause_resume"
LIMIT_S = 120
CPU_TIER = ("--enable_cpu_cache", "--cpu_cache_storage_size", "1", "--cache_placement_strategy", "legacy")
LOAD = ("--input-tokens", "257", "--output-tokens", "512", "--concurrency", "8")


@dataclass(frozen=True)
class Ran:
    code: int
    stdout: str
    stderr: str
    output: Path

    @property
    def found(self) -> Any:
        return json.loads(self.output.read_bytes())


def run(script: str, output: Path, *flags: str) -> Ran:
    command = [sys.executable, str(FOLDER / f"{script}.py"), "--output", str(output), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, cwd=output.parent)
    return Ran(done.returncode, done.stdout, done.stderr, output)


def of(server: Launched, *, log: bool = True) -> tuple[str, ...]:
    model = ("--model-dir", str(server.path.parent / "model"))
    told = ("--server-log", str(server.path)) if log else ()
    return ("--url", f"http://127.0.0.1:{server.port}/", *model, *told)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    with serving(tmp_path_factory.mktemp("large"), LARGE) as server:
        yield server


def test_page_boundaries_and_the_same_again_from_another_server(large: Launched, tmp_path: Path) -> None:
    first = run(CACHE, tmp_path / "cache.json", *of(large, log=False))
    assert (first.code, first.found["verdict"]) == (0, "PASS"), first.stdout + first.stderr
    check = first.found["checks"]["cache-boundary"]
    hits = {"hit_2304": 2176, "hit_2305": 2304, "hit_2306": 2304, "hit_2307": 2304}
    assert check["metrics"] == {**hits, "logprob_drift": 0}
    assert len(check[EXCHANGES]) == 36
    assert first.found["server"]["config"]["kv_dtype"] == "fp8kv_dsa"
    assert first.stdout.startswith("PASS  ")

    spoilt = first.found
    next(line for line in spoilt["checks"]["cache-boundary"][EXCHANGES] if line["leg"] == "cold")["error"] = (
        "500"
    )
    (tmp_path / "spoilt.json").write_text(json.dumps(spoilt))
    warm = run(CACHE, tmp_path / "warm.json", *of(large), "--reference", str(tmp_path / "spoilt.json"))
    assert warm.code == 5  # this server has seen the prompts: nothing is cold
    assert "COLD_NOT_COLD" in warm.stdout
    assert "REFERENCE_UNFIT: the reference reference/cache-boundary: cold 2304: 500" in warm.stdout

    with serving(tmp_path / "other", LARGE) as other:
        same = run(CACHE, tmp_path / "same.json", *of(other), "--reference", str(first.output))
    assert (same.code, same.found["checks"]["cold-reference"]["verdict"]) == (0, "PASS"), same.stdout
    assert same.found["checks"]["cold-reference"]["metrics"]["compared"] == 4
    assert "transfer=not proven here" in same.stdout


def test_another_output_than_the_reference_is_told(large: Launched, tmp_path: Path) -> None:
    first = run(CACHE, tmp_path / "cache.json", *of(large))
    kept = first.found
    for leg in ("cold", "control"):
        line = next(line for line in kept["checks"]["cache-boundary"][EXCHANGES] if line["leg"] == leg)
        line["ids"][7] += 1
    (tmp_path / "changed.json").write_text(json.dumps(kept))
    with serving(tmp_path / "other", LARGE) as other:
        again = run(CACHE, tmp_path / "again.json", *of(other), "--reference", str(tmp_path / "changed.json"))
    assert again.code == 1
    assert "OUTPUT_DIFFERS: cold 2304 differs from reference: first at token 8 of 32" in again.stdout


def test_pause_and_resume_with_its_control(large: Launched, tmp_path: Path) -> None:
    control = run(PAUSE, tmp_path / "control.json", *of(large), *LOAD, "--expect", "none")
    assert (control.code, control.found["verdict"]) == (0, "PASS"), control.stdout
    reference = ("--reference", str(control.output))
    with serving(tmp_path / "small", SMALL) as small:
        paused = run(PAUSE, tmp_path / "pause-resume.json", *of(small), *LOAD, *reference)
    check = paused.found["checks"]["pause-resume"]
    assert (paused.code, check["verdict"], check["findings"]) == (0, "PASS", [])
    assert check["metrics"]["pauses"] >= 1
    assert any(told["paused"] for told in check[FACTS]["log"]["normal"]["requests"].values())


def test_a_pool_that_holds_the_load_is_told_with_the_numbers(large: Launched, tmp_path: Path) -> None:
    ran = run(PAUSE, tmp_path / "pause-resume.json", *of(large), *LOAD)
    assert (ran.code, ran.found["verdict"]) == (5, "INVALID")
    assert "raise the concurrency to 86, or lower the cache below 6152" in ran.stdout


def test_the_wrong_log_proves_nothing(large: Launched, tmp_path: Path) -> None:
    other = tmp_path / "other.log"
    other.write_text("nothing of this server\n")
    flags = ("--input-tokens", "40", "--output-tokens", "8", "--concurrency", "2", "--expect", "none")
    ran = run(PAUSE, tmp_path / "out.json", *of(large, log=False), "--server-log", str(other), *flags)
    assert ran.code == 5
    assert "is it this server's log?" in ran.stdout


@pytest.mark.parametrize("more", [(), ("--evict-prompts", "2")])
def test_cpu_tier(tmp_path: Path, more: tuple[str, ...]) -> None:
    with serving(tmp_path, SMALL, *CPU_TIER) as server:
        ran = run(CACHE, tmp_path / "cpu-cache.json", *of(server), "--cpu-cache", *more)
    checks = ran.found["checks"]
    assert (ran.code, checks["cache-boundary"]["verdict"]) == (0, "PASS"), ran.stdout
    assert len(checks["cache-boundary"][EXCHANGES]) == 20  # all at once would not fit
    assert checks["cpu-reload"]["metrics"]["hit_host"] == 2304


def test_a_profiled_pool_is_told_by_the_log_alone(tmp_path: Path) -> None:
    with serving(tmp_path, None) as server:
        blind = run(CACHE, tmp_path / "blind.json", *of(server, log=False))
        told = run(CACHE, tmp_path / "told.json", *of(server))
    assert (blind.code, len(blind.found["checks"]["cache-boundary"][EXCHANGES])) == (0, 20), blind.stderr
    assert "not asked all at once: the server's configuration has no number `kv_tokens`" in blind.stderr
    assert (told.code, len(told.found["checks"]["cache-boundary"][EXCHANGES])) == (0, 36), told.stdout


def test_a_configured_tier_that_is_never_read_is_not_enough(tmp_path: Path) -> None:
    with serving(tmp_path, SMALL, *CPU_TIER, fault="cpu-never-read") as server:
        ran = run(CACHE, tmp_path / "cpu-cache.json", *of(server), "--cpu-cache")
    assert (ran.code, ran.found["checks"]["cpu-reload"]["verdict"]) == (5, "INVALID")
    assert "NOT_EXERCISED" in ran.stdout


@pytest.mark.parametrize(
    ("script", "flags", "code", "words"),
    [
        (CACHE, ("--reference", "/dev/null"), 2, "is no output of a script here"),
        (CACHE, ("--cpu-cache",), 2, "--cpu-cache needs --server-log"),
        (CACHE, ("--evict-prompts", "2"), 2, "--evict-prompts is for --cpu-cache"),
        (CACHE, ("--server-log", "/nowhere"), 2, "there is no file /nowhere"),
        (CACHE, ("--model-dir", "/nowhere"), 2, "there is no directory /nowhere"),
        (CACHE, ("--model-dir", str(Path(__file__).parent)), 2, "tokenizer.json, which is not there"),
        (CACHE, ("--url", "127.0.0.1:8000"), 2, "does not begin with http://"),
        (CACHE, ("--cpu",), 2, "unrecognized arguments: --cpu"),
        (PAUSE, (), 2, "--server-log is needed"),
        (PAUSE, ("--server-log", "/dev/null"), 2, "there is no file /dev/null"),
        (PAUSE, ("--server-log", __file__, "--concurrency", "1"), 2, "greater than or equal to 2"),
    ],
)
def test_what_cannot_be_done_is_told_before_anything_is_asked(
    large: Launched, tmp_path: Path, script: str, flags: tuple[str, ...], code: int, words: str
) -> None:
    before = len(large.log)
    ran = run(script, tmp_path / "out.json", *of(large, log=False), *flags)
    assert (ran.code, words in ran.stderr) == (code, True), ran.stderr
    assert "lightllm_req_id" not in large.log[before:]
    assert not ran.output.exists()


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "server.log").touch()
    byte_tokenizer(tmp_path)
    flags = ("--url", "http://127.0.0.1:9", "--model-dir", str(tmp_path))
    ran = run(PAUSE, tmp_path / "out.json", *flags, "--server-log", str(tmp_path / "server.log"))
    assert (ran.code, ran.found["verdict"]) == (5, "INVALID")
    assert "got no answer" in ran.stderr
    assert ran.found["findings"][0]["code"] == "REQUEST_FAILED"


def test_a_server_that_dies_meanwhile(tmp_path: Path) -> None:
    with serving(tmp_path, LARGE, fault="killed") as server:
        ran = run(CACHE, tmp_path / "out.json", *of(server))
    assert ran.code == 5
    assert "REQUEST_FAILED" in ran.stdout
