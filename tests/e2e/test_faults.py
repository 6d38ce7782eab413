"""Every fault of a server ends in the right verdict, names itself, and leaves the machine clean.

The cleanliness is asserted by the `bench` fixture after each test.
"""

import json
import signal
import stat
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import DOCS, STUB, Bench, Outcome, assert_clean, marked

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize(
    ("fault", "exit_code", "verdict", "code"),
    [
        ("exit-at-start:7", 1, "FAIL", "SERVER_EXITED"),
        ("never-ready", 1, "FAIL", "START_TIMEOUT"),
        ("slow-start:6", 0, "PASS", None),  # longer than start_s, but visibly progressing
        ("fatal-log", 1, "FAIL", "FATAL_LOG"),
        ("wrong-model", 5, "INVALID", "WRONG_MODEL"),
        ("warmup-fails", 1, "FAIL", "WARMUP_FAILED"),
        ("garbage-json", 1, "FAIL", "START_TIMEOUT"),
        ("ignore-sigterm", 0, "PASS", "FORCED_KILL"),
        ("setsid-child", 0, "PASS", "FORCED_KILL"),
        ("shm-leak", 0, "PASS", "SHM_REMOVED"),
        ("chinese-log", 0, "PASS", None),
    ],
)
def test_fault_of_the_process_ends_in_its_verdict(
    bench: Bench, fault: str, exit_code: int, verdict: str, code: str | None
) -> None:
    """No evaluation is needed to see these; the probes are quicker."""
    lane = bench.lane(fault, checks={"smoke": {"request_s": 10}})
    assert_verdict(bench.run({"stub": lane}), exit_code, verdict, code)


@pytest.mark.parametrize(
    ("fault", "exit_code", "verdict", "code"),
    [
        ("die-while-loading", 1, "FAIL", "SERVER_EXITED"),  # the evaluator is begun by then
        ("die-after:6", 1, "FAIL", "SERVER_DIED"),
        ("error-share:0.2", 5, "INVALID", "REQUEST_FAILED"),
        ("error-once-share:0.3", 5, "INVALID", "REQUEST_RETRIED"),
        ("null-answers:0.2", 5, "INVALID", "EMPTY_RESPONSE"),
        ("empty-answers:0.2", 5, "INVALID", "EMPTY_RESPONSE"),
        ("drop-choice:0.2", 5, "INVALID", "REQUEST_FAILED"),
        ("cut-answers:0.3", 5, "INVALID", "CUT_SHORT"),
        ("loop-answers:0.3", 0, "REPORTED", "DEGENERATE"),
        ("hang-after:6", 1, "FAIL", "STALLED"),
        ("chatty", 0, "REPORTED", None),
    ],
)
def test_fault_under_evaluation_ends_in_its_verdict(
    bench: Bench, fault: str, exit_code: int, verdict: str, code: str | None
) -> None:
    assert_verdict(bench.run({"stub": bench.lane(fault)}), exit_code, verdict, code)


def test_a_check_has_a_limit_whatever_its_requests_are_allowed(bench: Bench) -> None:
    timeouts = {"start_s": 4, "request_s": 300, "check_s": 2, "stop_s": 1}
    lane = bench.lane("hang-after:2", checks={"cache-boundary": {"lengths": [64]}}, timeouts=timeouts)
    outcome = bench.run({"stub": lane})
    assert_verdict(outcome, 1, "FAIL", "STALLED")
    assert "timeouts.check_s" in outcome.stdout


def test_a_sound_server_is_reported_without_a_finding(bench: Bench) -> None:
    bench.use_plain_evaluator()
    outcome = bench.run({"stub": bench.lane()})
    assert_verdict(outcome, 0, "REPORTED", None)
    assert outcome.codes() - {"SHM_UNATTRIBUTED"} == set()  # other programs of this machine


def assert_verdict(outcome: Outcome, exit_code: int, verdict: str, code: str | None) -> None:
    assert outcome.summary["lanes"]["stub"]["verdict"] == verdict, outcome.stdout
    assert outcome.code == exit_code == outcome.summary["exit_code"]
    assert outcome.summary["status"] == "done"
    if code is not None:
        assert code in outcome.codes(), outcome.stdout
        assert code in outcome.stdout


def test_bad_flag_starts_nothing_and_names_the_nearest(bench: Bench) -> None:
    outcome = bench.run({"stub": bench.lane(flags={"--ctx-sise": 4096})})
    assert outcome.code == 2
    assert "--ctx-sise" in outcome.stderr
    assert "--ctx-size" in outcome.stderr
    assert not bench.runs.exists()


def test_missing_model_starts_nothing(bench: Bench) -> None:
    lane = bench.lane(model={"path": str(bench.root / "absent.gguf"), "served_name": "stub"})
    outcome = bench.run({"stub": lane})
    assert outcome.code == 2
    assert "absent.gguf" in outcome.stderr
    assert not bench.runs.exists()


@pytest.mark.parametrize(
    ("tampering", "code"),
    [
        ("rows = rows[:-3]", "MISSING_DOC"),
        ("rows = rows + rows[:1]", "DUPLICATE_DOC"),
        ("rows[0]['exact_match'] = 1.0 - rows[0]['exact_match']", "SCORE_MISMATCH"),
        ("rows[0]['resps'] = [['It is 5.\\n#### 5']]", "SCORE_MISMATCH"),
        ("rows[0]['arguments']['gen_args_0']['arg_0'] += ' '", "HASH_MISMATCH"),
        ("raise SystemExit(0)", "SAMPLES_UNREADABLE"),
    ],
)
def test_evaluator_that_exits_0_with_wrong_results(bench: Bench, tampering: str, code: str) -> None:
    bench.env["HARNESS_LM_EVAL_PYTHON"] = str(_tampered_evaluator(bench, tampering))
    outcome = bench.run({"stub": bench.lane()})
    assert outcome.summary["lanes"]["stub"]["verdict"] == "INVALID", outcome.stdout
    assert outcome.code == 5
    assert code in outcome.codes()


def test_interrupt_releases_everything_and_says_so(bench: Bench) -> None:
    process = bench.start("run", str(bench.scenario({"stub": bench.lane("slow-answers:1")})))
    _wait_for_requests(bench)
    assert marked(bench.newest())
    process.send_signal(signal.SIGINT)
    outcome = bench.finish(process, 30)
    assert outcome.code == 130
    assert outcome.summary["status"] == "interrupted"
    assert "INTERRUPTED" in outcome.codes()
    assert outcome.summary["verdict"] != "PASS"


def test_killed_harness_leaves_nothing_behind(bench: Bench) -> None:
    process = bench.start("run", str(bench.scenario({"stub": bench.lane("slow-answers:1")})))
    _wait_for_requests(bench)
    run = bench.newest()
    assert marked(run)
    process.kill()
    process.communicate(timeout=10)
    assert_clean(run, within_s=20)
    assert run is not None
    assert json.loads((run / "run.json").read_text(encoding="utf-8"))["status"] == "started"
    judged = bench.harness("judge", str(run))
    assert judged.code != 0
    assert "PASS" not in judged.stdout


def test_worse_candidate_fails_the_margin_and_an_equal_one_does_not_claim_more(bench: Bench) -> None:
    good = bench.lane()
    worse = bench.lane()
    worse["env"] = worse["env"] | {"STUB_ACCURACY": "0.1"}
    pair = {"baseline": "good", "candidate": "worse", "may_differ": ["env.STUB_ACCURACY"]}
    outcome = bench.run({"good": good, "worse": worse}, {"kv": pair | {"max_drop_pp": 1.0}})
    assert outcome.summary["pairs"]["kv"]["verdict"] == "FAIL", outcome.stdout
    assert "MARGIN_EXCEEDED" in outcome.codes()
    assert outcome.code == 1
    strict = outcome.summary["pairs"]["kv"]["filters"]["strict-match"]
    assert strict["n"] == DOCS
    assert strict["delta_pp"] < -30
    assert outcome.run is not None
    lines = (outcome.run / "pairs" / "kv" / "disagreements.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) >= strict["only_baseline"]


def test_difference_that_the_pair_does_not_name_is_parity(bench: Bench) -> None:
    """Of the flag it is known before anything starts; what the server made of it, only then."""
    other = bench.lane(flags={"--ctx-size": 2048})
    pair: dict[str, Any] = {"baseline": "a", "candidate": "b"}
    early = bench.run({"a": bench.lane(), "b": other}, {"kv": pair})
    assert early.code == 2
    assert "pair `kv`: flags.--ctx-size is '2048' on b and is not set on a" in early.stderr
    assert not bench.runs.exists()
    outcome = bench.run({"a": bench.lane(), "b": other}, {"kv": pair | {"may_differ": ["flags.--ctx-size"]}})
    assert outcome.summary["pairs"]["kv"]["verdict"] == "INVALID"
    assert "PARITY" in outcome.codes()
    assert "config.max_length" in outcome.stdout


def test_equal_lanes_are_reported_and_never_pass_without_a_threshold(bench: Bench) -> None:
    pair = {"baseline": "a", "candidate": "b"}
    outcome = bench.run({"a": bench.lane(), "b": bench.lane()}, {"kv": pair})
    assert outcome.summary["pairs"]["kv"]["verdict"] == "REPORTED", outcome.stdout
    assert outcome.code == 0
    assert outcome.run is not None
    (outcome.run / "summary.json").unlink()
    again = bench.harness("judge", str(outcome.run))
    assert again.code == 0
    assert again.summary == outcome.summary
    gate = bench.harness("run", str(bench.root / "scenario.yaml"), "--lane", "a", "--require-gate")
    assert gate.code == 3


def test_setting_that_the_server_rewrote_is_found(bench: Bench) -> None:
    outcome = bench.run({"stub": bench.lane(expect={"max_length": 123456})})
    assert outcome.summary["lanes"]["stub"]["verdict"] == "INVALID"
    assert "CONFIG_REWRITTEN" in outcome.codes()


SECRET = "hf_sesame0000"


@pytest.mark.parametrize("fault", ["", "die-after:2"])
def test_secrets_never_reach_evidence(bench: Bench, fault: str) -> None:
    """Not from a variable, not from a flag, not from the command line, not from what the server prints: in
    its log, on its way down, and in the configuration that it tells."""
    lane = bench.lane(fault, binary=str(_talkative_server(bench.root)))
    lane["flags"] = {"--chat-template": f"{{# {SECRET} #}}"}  # as innocent as a flag's name can be
    lane["env"] = lane["env"] | {"HF_TOKEN": SECRET}
    override = f'lanes.stub.flags."--hf-token"={SECRET}'
    outcome = bench.run({"stub": lane}, None, "--set", override)
    assert outcome.run is not None, outcome.stderr
    assert outcome.code == (1 if fault else 0), outcome.stdout
    log = (outcome.run / "stub" / "server.log").read_text(encoding="utf-8")
    assert "non-default args" in log
    assert "***" in log
    assert SECRET not in outcome.stdout + outcome.stderr
    for file in outcome.run.rglob("*"):
        if file.is_file():
            assert SECRET.encode() not in file.read_bytes(), file


def _talkative_server(root: Path) -> Path:
    """The stub, but it logs its arguments and its token, once more as its last words."""
    script = root / "talkative_server"
    script.write_text(
        f"""#!{sys.executable}
import os, subprocess, sys
arguments = sys.argv[1:]
if "--help" in arguments:
    print("--hf-token TOKEN           token of the hub")
    print("--chat-template TEMPLATE   of a chat")
    sys.exit()
if "--version" not in arguments:
    print("non-default args:", arguments, "token", os.environ["HF_TOKEN"], flush=True)
if "--hf-token" in arguments:
    at = arguments.index("--hf-token")
    del arguments[at : at + 2]
code = subprocess.call([sys.executable, {str(STUB)!r}, *arguments])
print("ended; my token was", os.environ.get("HF_TOKEN"), flush=True)
sys.exit(code % 256)
""",
        encoding="utf-8",
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return script


def _wait_for_requests(bench: Bench, limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        run = bench.newest()
        requests = run / "stub" / "gsm8k" / "requests.jsonl" if run else None
        if requests is not None and requests.exists() and requests.stat().st_size:
            return
        time.sleep(0.05)
    pytest.fail("no request was seen")


def _tampered_evaluator(bench: Bench, tampering: str) -> Path:
    """A program that takes `-m lm_eval …` as Python would, runs it, and then spoils its samples."""
    script, sound = bench.root / "evaluator.py", str(bench.quick_evaluator())
    script.write_text(
        f"""#!{sys.executable}
import json, pathlib, subprocess, sys
tampering = {tampering!r}
if sys.argv[1] != "-m":
    sys.exit(subprocess.call([{sound!r}, *sys.argv[1:]]))
if tampering.startswith("raise"):
    exec(tampering)
code = subprocess.call([{sound!r}, *sys.argv[1:]])
out = pathlib.Path(sys.argv[sys.argv.index("--output_path") + 1])
file = next(out.rglob("samples_*.jsonl"))
rows = [json.loads(line) for line in file.read_text().splitlines()]
exec(tampering)
file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\\n" for row in rows))
sys.exit(code)
""",
        encoding="utf-8",
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return script
