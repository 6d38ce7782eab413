"""The whole pipeline on the simulated LightLLM: every fault ends in its verdict, and the machine is clean.

Lanes lease described GPUs and run side by side, as on a machine with eight of them.
"""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.engines.lightllm.traces import leftovers_of
from harness.evidence.digests import file_sha256
from harness.executors.simulate import MODEL
from harness.simulator.faults import RUNNING
from tests.e2e.conftest import DOCS, Bench, Outcome, assert_clean, furnished, marked

pytestmark = pytest.mark.e2e

ACCURACY = {"None": 0.75, "fp8kv_dsa": 0.75}
FLAGS = {
    "--tp": 1,
    "--data_type": "bfloat16",
    "--max_total_token_num": 65536,
    "--max_req_total_len": 8192,
    "--running_max_req_size": 32,
    "--batch_max_tokens": 4096,
    "--chunked_prefill_size": 512,
}


def lane(bench: Bench, kv: str = "None", **more: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "engine": "lightllm",
        "model": {"path": str(MODEL), "served_name": "glm53"},
        "gpus": 1,
        "flags": {**FLAGS, "--llm_kv_type": kv},
        "expect": {"kv_dtype": "bfloat16" if kv == "None" else kv},
        "timeouts": {"start_s": 6, "start_cap_s": 40, "request_s": 10, "stop_s": 3},
        "checks": {"gsm8k": bench.check(max_gen_toks=512)},
    }
    return base | more


def run(
    bench: Bench,
    lanes: dict[str, Any],
    pairs: dict[str, Any] | None = None,
    *more: str,
    faults: list[dict[str, Any]] | None = None,
    **settings: Any,
) -> Outcome:
    settings = {"speed": 0, "load_seconds": 0.5, "accuracy": ACCURACY, "faults": faults or []} | settings
    settings.setdefault("answer_key", str(bench.root / "data" / "test.jsonl"))
    file = bench.root / "simulator.json"
    file.write_text(json.dumps(settings), encoding="utf-8")
    bench.env["HARNESS_SIMULATOR"] = str(file)
    return bench.run(lanes, pairs, "--simulate", *more)


@pytest.mark.parametrize(
    ("fault", "exit_code", "verdict", "code"),
    [
        ({}, 0, "REPORTED", None),
        ({"fault": "oom"}, 1, "FAIL", "SERVER_EXITED"),
        ({"fault": "child-killed-launcher-hangs"}, 1, "FAIL", "START_TIMEOUT"),
        ({"fault": "hang-loading"}, 1, "FAIL", "START_TIMEOUT"),
        ({"fault": "slow-but-progressing", "factor": 20}, 0, "PASS", None),  # 10 s, start_s is 6
        ({"fault": "wrong-model-name"}, 5, "INVALID", "WRONG_MODEL"),
        ({"fault": "exits-at-ready"}, 1, "FAIL", "SERVER_EXITED"),
        ({"fault": "kv-type-rewritten", "to": "fp8kv_dsa"}, 5, "INVALID", "CONFIG_REWRITTEN"),
        ({"fault": "fatal-line-while-serving", "after_requests": 4}, 1, "FAIL", "FATAL_LOG"),
        ({"fault": "killed", "after_requests": 6}, 1, "FAIL", "SERVER_DIED"),
        (
            {"fault": "router-killed", "after_requests": 6},
            1,
            "FAIL",
            None,
        ),
        ({"fault": "stall", "after_requests": 6}, 1, "FAIL", "STALLED"),
        ({"fault": "infer-thread-dead", "after_requests": 6}, 1, "FAIL", None),
        ({"fault": "error-500", "share": 0.2, "after_requests": 1}, 5, "INVALID", "REQUEST_FAILED"),
        ({"fault": "busy-429", "share": 0.2, "after_requests": 1}, 5, "INVALID", "REQUEST_FAILED"),
        ({"fault": "null-text", "share": 0.2, "after_requests": 1}, 5, "INVALID", "EMPTY_RESPONSE"),
        ({"fault": "empty-text", "share": 0.2, "after_requests": 1}, 5, "INVALID", "EMPTY_RESPONSE"),
        ({"fault": "zero-tokens", "share": 0.2, "after_requests": 1}, 5, "INVALID", "EMPTY_RESPONSE"),
        ({"fault": "cut-answers", "factor": 16, "after_requests": 1}, 5, "INVALID", "CUT_SHORT"),
        ({"fault": "repeat-answers", "share": 0.3, "after_requests": 1}, 0, "REPORTED", "DEGENERATE"),
        ({"fault": "ignores-sigterm"}, 0, "PASS", "FORCED_KILL"),
        ({"fault": "orphan-holds-port"}, 0, "PASS", None),  # found by its mark, and ended
        ({"fault": "leaves-shm"}, 0, "PASS", "SHM_REMOVED"),
        ({"fault": "leaves-sysv"}, 0, "PASS", "SHM_REMOVED"),
    ],
    ids=lambda value: value.get("fault", "none") if isinstance(value, dict) else None,
)
def test_fault_ends_in_its_verdict(
    bench: Bench, fault: dict[str, Any], exit_code: int, verdict: str, code: str | None
) -> None:
    accuracy = not fault or fault["fault"] in RUNNING
    checks = {"gsm8k": bench.check(max_gen_toks=512)} if accuracy else {"smoke": {}}  # that one is quicker
    outcome = run(bench, {"sim": lane(bench, checks=checks)}, faults=[fault] if fault else [])
    assert outcome.summary["lanes"]["sim"]["verdict"] == verdict, outcome.stdout
    assert outcome.code == exit_code
    assert "SIMULATED" in outcome.codes()
    if code is not None:
        assert code in outcome.codes(), outcome.stdout
    elif not fault:
        assert outcome.summary["lanes"]["sim"]["checks"]["gsm8k"]["metrics"]["n"] == DOCS
        assert outcome.codes() <= {"SIMULATED", "SHM_UNATTRIBUTED"}, outcome.stdout


def test_a_killed_server_leaves_nothing_of_its_own(bench: Bench) -> None:
    """Its names in /dev/shm, its System V segment and its files in /tmp are known by its unique id."""
    cache = {"--enable_cpu_cache": True, "--cpu_cache_storage_size": 1, "--linear_att_page_block_num": 2}
    stranger = Path("/tmp") / f"{os.urandom(8).hex()}_0_somebody.lock"
    stranger.touch()
    try:
        one = lane(bench, flags={**FLAGS, "--llm_kv_type": "None", **cache})
        outcome = run(bench, {"sim": one}, faults=[{"fault": "killed", "after_requests": 6}])
        assert {"SERVER_DIED", "SHM_REMOVED", "FILES_REMOVED"} <= outcome.codes(), outcome.stdout
        assert not any(code.startswith("RELEASE") for code in outcome.codes())
        assert stranger.exists()
    finally:
        stranger.unlink()


def test_a_killed_harness_leaves_nothing_of_a_loading_deaf_server(bench: Bench) -> None:
    """Its guardian is killed first. The server ends by SIGKILL only, so that it clears nothing up itself."""
    deaf = {"faults": [{"fault": "ignores-sigterm"}], "load_seconds": 60}
    (bench.root / "simulator.json").write_text(json.dumps(deaf), encoding="utf-8")
    bench.env["HARNESS_SIMULATOR"] = str(bench.root / "simulator.json")
    patient = {"start_s": 60, "start_cap_s": 90, "stop_s": 3}
    process = bench.start("run", str(bench.scenario({"sim": lane(bench, timeouts=patient)})), "--simulate")
    try:
        _until(lambda: len(marked(bench.newest())) >= 2)
        run_dir = bench.newest()
        assert run_dir is not None
        _until(lambda: _names(run_dir, "/tmp") and _names(run_dir, "/dev/shm"))
        time.sleep(1)  # until the harness too has read the log
        (first,) = _guardians(process.pid)
        os.kill(first, signal.SIGKILL)
        _until(lambda: _guardians(process.pid) - {first})
        time.sleep(1)  # until it knows all
    finally:
        process.kill()
        process.communicate(timeout=10)
    assert_clean(run_dir, within_s=30)
    _until(lambda: (run_dir / "guard.log").is_file())
    assert _names(run_dir, "/tmp") == _names(run_dir, "/dev/shm") == []
    assert "removed files: /tmp/" in (run_dir / "guard.log").read_text()


def _until(condition: Callable[[], object], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.1)


def _names(run: Path, place: str) -> list[str]:
    patterns = leftovers_of(run / "sim" / "server.log").patterns
    names = [path.name for path in Path(place).iterdir()]
    return [name for name in names if any(fnmatchcase(name, each) for each in patterns)]


def _guardians(parent: int) -> set[int]:
    found = (each for each in psutil.Process(parent).children() if each.status() != psutil.STATUS_ZOMBIE)
    return {each.pid for each in found if "harness.host.guardian" in each.cmdline()}


PAIR: dict[str, Any] = {
    "baseline": "bf16",
    "candidate": "fp8",
    "may_differ": ["flags.--llm_kv_type", "config.kv_dtype", "config.mem_manager", "config.*_att_backend"],
}


def both(bench: Bench, **more: Any) -> dict[str, Any]:
    return {"bf16": lane(bench, **more), "fp8": lane(bench, "fp8kv_dsa", **more)}


@pytest.mark.parametrize(
    ("accuracy", "verdict", "exit_code"),
    [
        ({"None": 0.8, "fp8kv_dsa": 0.8}, "PASS", 0),
        ({"None": 0.9, "fp8kv_dsa": 0.2}, "FAIL", 1),
    ],
)
def test_pair_against_a_margin(
    bench: Bench, accuracy: dict[str, float], verdict: str, exit_code: int
) -> None:
    pairs = {"kv": {**PAIR, "max_drop_pp": 40}}  # 16 documents decide no smaller one
    outcome = run(bench, both(bench), pairs, accuracy=accuracy)
    assert outcome.summary["pairs"]["kv"]["verdict"] == verdict, outcome.stdout
    assert outcome.code == exit_code
    assert outcome.summary["verdict"] == ("REPORTED" if verdict == "PASS" else verdict)  # it is simulated


@pytest.mark.parametrize("fault", [{"fault": "swapped-answers"}, {"fault": "half-right-after"}])
def test_answers_that_go_wrong_unseen_are_caught_by_the_pair(bench: Bench, fault: dict[str, Any]) -> None:
    """No request fails, every answer looks sound: only the baseline knows better."""
    aimed = [{**fault, "when": {"llm_kv_type": "fp8kv_dsa"}}]
    accuracy = {"None": 1.0, "fp8kv_dsa": 1.0}
    pairs = {"kv": {**PAIR, "max_drop_pp": 5}}
    outcome = run(bench, both(bench), pairs, accuracy=accuracy, faults=aimed, speed=1)
    pair = outcome.summary["pairs"]["kv"]
    assert pair["verdict"] == "FAIL", outcome.stdout
    assert pair["filters"]["strict-match"]["only_candidate"] == 0


def test_a_gate_cannot_be_passed_on_the_simulator(bench: Bench) -> None:
    pairs = {"kv": {**PAIR, "max_drop_pp": 40}}
    outcome = run(bench, both(bench), pairs, "--require-gate")
    assert outcome.summary["pairs"]["kv"]["verdict"] == "PASS"
    assert outcome.code == 3


def test_a_plain_baseline_cannot_serve_an_mtp_candidate(bench: Bench) -> None:
    lanes = both(bench)
    lanes["fp8"]["flags"] |= {
        "--mtp_mode": "eagle_with_att",
        "--mtp_step": 2,
        "--mtp_draft_model_dir": str(MODEL),
    }
    pair = {**PAIR, "may_differ": [*PAIR["may_differ"], "flags.--mtp_*"]}
    outcome = run(bench, lanes, {"kv": pair})
    assert outcome.summary["pairs"]["kv"]["verdict"] == "INVALID", outcome.stderr
    parity = [text for text in outcome.stdout.splitlines() if "PARITY" in text]
    assert any("mtp_mode" in text for text in parity), outcome.stdout


def test_an_interrupt_releases_every_lane(bench: Bench) -> None:
    settings = {"load_seconds": 30, "speed": 0}
    (bench.root / "simulator.json").write_text(json.dumps(settings), encoding="utf-8")
    bench.env["HARNESS_SIMULATOR"] = str(bench.root / "simulator.json")
    patient = {"start_s": 60, "start_cap_s": 90, "stop_s": 3}
    process = bench.start(
        "run", str(bench.scenario(both(bench, timeouts=patient), {"kv": PAIR})), "--simulate"
    )
    deadline = time.monotonic() + 60
    while len(marked(bench.newest())) < 6 and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    outcome = bench.finish(process, 60)
    assert outcome.code == 130
    assert outcome.summary["status"] == "interrupted"
    assert marked(outcome.run) == []
    assert outcome.run is not None
    assert not (outcome.run / "bf16" / "gsm8k").exists()  # begun early, and given up without a trace


def test_ctrl_c_while_a_server_does_not_answer(bench: Bench) -> None:
    """The warm-up waits for an answer that never comes: ending the run must not wait for it."""
    file = bench.root / "simulator.json"
    file.write_text(json.dumps({"faults": [{"fault": "stall"}], "load_seconds": 0.2}), encoding="utf-8")
    bench.env["HARNESS_SIMULATOR"] = str(file)
    patient = {"start_s": 120, "start_cap_s": 150, "request_s": 120, "stop_s": 3}
    process = bench.start("run", str(bench.scenario({"sim": lane(bench, timeouts=patient)})), "--simulate")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        run_dir = bench.newest()
        log = run_dir / "sim" / "server.log" if run_dir else None
        if log and log.is_file() and "received req" in log.read_text(errors="replace"):
            break
        time.sleep(0.1)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    outcome = bench.finish(process, 45)
    assert outcome.code == 130, outcome.stderr


@dataclass(frozen=True, slots=True)
class Paired:
    """One sound run of both lanes. What it left is only read and copied."""

    bench: Bench
    outcome: Outcome
    run: Path


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Paired:
    bench = furnished(tmp_path_factory.mktemp("paired"))
    outcome = run(bench, both(bench), {"kv": PAIR}, load_seconds=3)
    assert outcome.code == 0, outcome.stdout
    assert outcome.run is not None
    return Paired(bench, outcome, outcome.run)


@pytest.fixture
def paired(shared: Paired) -> Iterator[Paired]:
    yield shared
    assert_clean(shared.bench.newest())


def test_lanes_run_side_by_side_on_gpus_of_their_own(paired: Paired) -> None:
    record = json.loads((paired.run / "run.json").read_text(encoding="utf-8"))
    gpus = [record["lanes"][name]["servers"][0]["gpus"] for name in ("bf16", "fp8")]
    assert len({gpu for own in gpus for gpu in own}) == 2
    spent = sum(lane["phases"]["lane"] for lane in record["lanes"].values())
    events = paired.outcome.stderr.splitlines()
    first_verdict = next(index for index, line in enumerate(events) if "verdict" in line)
    assert sum("loading" in line for line in events[:first_verdict]) == 2, paired.outcome.stderr
    assert spent > 0


def test_a_baseline_is_taken_over_only_where_nothing_speaks_against_it(paired: Paired) -> None:
    """One earlier run, and a copy of it with something wrong: every lane costs an evaluation."""
    bench, earlier = paired.bench, paired.run

    def again(past: Path, lanes: dict[str, Any] | None = None) -> Outcome:
        return run(bench, lanes or both(bench), {"kv": PAIR}, "--baseline", str(past))

    def copied(name: str) -> Path:
        return Path(shutil.copytree(earlier, bench.root / name))

    reused = again(earlier)
    assert "BASELINE_REUSED" in reused.codes(), reused.stdout
    assert "bf16: launching" not in reused.stderr
    assert "fp8: launching" in reused.stderr
    assert reused.summary["pairs"]["kv"]["verdict"] == "REPORTED", reused.stdout
    assert reused.run is not None
    assert (reused.run / "bf16" / "gsm8k" / "requests.jsonl").is_file()  # judged by itself for ever
    assert bench.harness("judge", str(reused.run)).code == 0

    late = copied("late")  # what only a running candidate can tell
    fingerprint = late / "bf16" / "fingerprint.json"
    keys = json.loads(fingerprint.read_text())
    fingerprint.write_text(json.dumps(keys | {"config.batch_max_tokens": 1}))
    digests = late / "bf16" / "digests.json"  # as if that server had resolved it so
    known = json.loads(digests.read_text())
    digests.write_text(json.dumps(known | {"fingerprint.json": file_sha256(fingerprint)}))
    rerun = again(late)
    assert "BASELINE_RERUN" in rerun.codes(), rerun.stdout
    assert "bf16: launching" in rerun.stderr
    assert rerun.summary["pairs"]["kv"]["verdict"] == "REPORTED", rerun.stdout

    assert bench.run(both(bench), {"kv": PAIR}, "--simulate", "--baseline", "/nowhere").code == 2


def test_why_a_baseline_runs_again_is_told_by_the_plan(paired: Paired) -> None:
    bench = paired.bench

    def objections(past: Path, lanes: dict[str, Any] | None = None) -> str:
        file = str(bench.scenario(lanes or both(bench), {"kv": PAIR}))
        said = bench.harness("plan", file, "--simulate", "--baseline", str(past), "--json").stdout
        planned = json.loads(said)["lanes"]["bf16"]
        assert bool(planned["taken_over_from"]) != bool(planned["not_taken_over"])
        return " ".join(planned["not_taken_over"])

    assert objections(paired.run) == ""
    for name in ("missing", "changed"):
        past = Path(shutil.copytree(paired.run, bench.root / name))
        raw = past / "bf16" / "gsm8k" / "raw_responses.jsonl"
        content = raw.read_bytes()
        raw.unlink()
        if name == "changed":
            raw.write_bytes(content + b"\n")
        assert "raw_responses.jsonl" in objections(past)
    lanes = both(bench)
    for one in lanes.values():
        one["flags"] = {**one["flags"], "--running_max_req_size": 16}
    assert "--running_max_req_size" in objections(paired.run, lanes)
    unfinished = Path(shutil.copytree(paired.run, bench.root / "unfinished"))
    record = json.loads((unfinished / "run.json").read_text())
    record["lanes"]["bf16"]["status"] = "interrupted"
    (unfinished / "run.json").write_text(json.dumps(record))
    assert "interrupted" in objections(unfinished)


@pytest.mark.skipif("HARNESS_GSM8K_DIR" not in os.environ, reason="HARNESS_GSM8K_DIR is not set")
@pytest.mark.parametrize(("fp8", "verdict"), [(0.60, {"PASS", "INCONCLUSIVE"}), (0.55, {"FAIL"})])
def test_full_gsm8k(bench: Bench, fp8: float, verdict: set[str]) -> None:
    """1319 documents, both lanes: five points worse is caught at a margin of one, equal is not."""
    key = str(Path(os.environ["HARNESS_GSM8K_DIR"]) / "test.jsonl")
    settings = {
        "speed": 0,
        "answer_key": key,
        "accuracy": {"None": 0.60, "fp8kv_dsa": fp8},
        "discordance": 0.10 if fp8 < 0.60 else 0.01,
    }
    file = bench.root / "simulator.json"
    file.write_text(json.dumps(settings), encoding="utf-8")
    bench.env["HARNESS_SIMULATOR"] = str(file)
    outcome = bench.harness(
        "run", "fp8-mtp", "--simulate", "--set", "pairs.fp8-mtp.max_drop_pp=1", limit_s=900
    )
    assert outcome.summary["pairs"]["fp8-mtp"]["verdict"] in verdict, outcome.stdout
    assert outcome.code == (1 if fp8 < 0.60 else outcome.code)
