"""Whole logs: real ones (tests/data/logs), composed ones, and files that are no logs."""

import json
import os
import random
import threading
from itertools import pairwise
from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.logscan import LogScanner
from harness.logscan.advice import ADVICE
from harness.triage import GRAMMARS, clock, recognise, triage

LOGS = Path(__file__).parent / "data" / "logs"

VLLM_START = "args engine loading loaded kv-cache warmup listening ready"
SGLANG_START = "args parallel-init loading loaded kv-cache startup listening ready"

# name: (engine, ready, first cause, phases)
REAL: dict[str, tuple[str, bool, str | None, str]] = {
    "llamacpp-bad-flag": ("llamacpp", False, "unknown flag", ""),
    "llamacpp-bad-value": ("llamacpp", False, "bad flag or flag value", ""),
    "llamacpp-damaged": ("llamacpp", False, "model file damaged or not a GGUF", "args loading"),
    "llamacpp-huge-context": ("llamacpp", False, "host out of memory", "args loading"),
    "llamacpp-lost-lines": ("llamacpp", False, "server could not start", ""),
    "llamacpp-no-model": ("llamacpp", False, "model file not found", "args loading"),
    "llamacpp-not-gguf": ("llamacpp", False, "model file damaged or not a GGUF", "args loading"),
    "llamacpp-ok": ("llamacpp", True, None, "args loading tensors kv-cache warmup loaded listening ready"),
    "llamacpp-port-used": ("llamacpp", False, "port already in use", "args"),
    "sglang-hicache-on-cpu": (
        "sglang",
        False,
        "no usable CUDA on this host",
        "args parallel-init loading loaded kv-cache",
    ),
    "sglang-ok": ("sglang", True, None, f"{SGLANG_START} stopping"),
    "sglang-pd-decode": (
        "sglang",
        True,
        None,
        "args parallel-init loading loaded kv-cache startup ready listening stopping",
    ),
    "sglang-pd-prefill": ("sglang", True, None, f"{SGLANG_START} stopping"),
    "sglang-pd-router": ("sglang", True, None, "args listening ready stopping"),
    "sglang-port-used": (
        "sglang",
        False,
        "port already in use",
        "args parallel-init loading loaded kv-cache startup",
    ),
    "sglang-requests": ("sglang", True, None, f"{SGLANG_START} stopping"),
    "sglang-bad-flag": ("sglang", False, "unknown flag", ""),
    "sglang-bad-value": ("sglang", False, "bad flag or flag value", ""),
    "sglang-cut-short": ("sglang", False, None, "args parallel-init loading"),
    "sglang-hostile-prompt": (  # and stopped while it warmed up
        "sglang",
        True,
        None,
        "args parallel-init loading loaded kv-cache startup listening stopping ready",
    ),
    "sglang-killed": (
        "sglang",
        False,
        "killed by signal",
        "args parallel-init loading loaded kv-cache startup listening",
    ),
    "sglang-no-model": ("sglang", False, "model directory not found", ""),
    "sglang-unsupported": (
        "sglang",
        False,
        "feature not supported on this host",
        "args parallel-init loading loaded",
    ),
    "vllm-bad-flag": ("vllm", False, "unknown flag", ""),
    "vllm-bad-value": ("vllm", False, "bad flag or flag value", ""),
    "vllm-empty-model": ("vllm", False, "model directory not found", "args"),
    "vllm-hostile-prompt": ("vllm", True, None, f"{VLLM_START} stopping"),
    "vllm-killed": ("vllm", True, "worker process died", VLLM_START),
    "vllm-kv-too-small": (
        "vllm",
        False,
        "KV cache too small for max length",
        "args engine loading loaded",
    ),
    "vllm-max-length": ("vllm", False, "max length beyond what the model allows", "args"),
    "vllm-no-model": ("vllm", False, "model directory not found", "args"),
    "vllm-ok": ("vllm", True, None, f"{VLLM_START} stopping"),
    "vllm-pd-decode": ("vllm", True, None, f"{VLLM_START} stopping"),
    "vllm-pd-prefill": ("vllm", True, None, f"{VLLM_START} stopping"),
    "vllm-port-used": ("vllm", False, "port already in use", "args"),
    "vllm-requests": ("vllm", True, None, f"{VLLM_START} stopping"),
    "vllm-unsupported": (
        "vllm",
        False,
        "feature not supported on this host",
        "args engine loading loaded kv-cache",
    ),
}

INFO = "INFO 09-20 03:04:05 [manager.py:538] "
BAR = "pid 4250 Loading model weights with 1 workers:"
ERROR = "ERROR 09-20 03:05:05 [manager.py:538] "

# No LightLLM server could be run where these tests were written; its lines are known from its source.
START = [
    f"{INFO}all start args:StartArgs(run_mode='normal', host='127.0.0.1', port=18000)",
    f"{INFO}start process pid 4242",
    f"{INFO}ShmPortArgs alloc router_port=41233",
    f"{INFO}init func start_metric_manager : init ok",
]
LOAD = [
    f"{BAR}   0%|          | 0/4 [00:00<?, ?it/s]\r{BAR} 100%|##########| 4/4 [00:09<00:00, 2.4s/it]",
    f"{INFO}mode setting params: fp8kv_dsa",
    f"{INFO}1403772 is the profiled max_total_token_num with the mem_fraction 0.8\r",
    f"{INFO}Capture cudagraph success, batch_size <=32 and max_len_in_batch <= 8192 will infer with it.",
    f"{INFO}check max_len 4096 infer ok",
]
SERVE = [
    f"{INFO}init func start_router_process : init ok",
    f"{INFO}init func start_detokenization_process : init ok",
    f"{INFO}http server pid 4300",
    f"{INFO}server start up",
    f"{INFO}server start up ok, loop use is <uvloop.Loop running=True closed=False debug=False>",
    "[2026-09-20 03:04:05 +0000] [4301] [INFO] Running on http://127.0.0.1:18000 (CTRL + C to quit)",
    f"{INFO}received req X-Request-Id:a X-Session-Id: start_time:2026-09-20 03:04:05 lightllm_req_id:8 ",
    f"{INFO}\x1b[32mPOST /generate 200\x1b[0m",
    f"{INFO}\x1b[31mPOST /generate 417\x1b[0m",
]
STOP = [
    f"{INFO}Received SIGTERM, shutting down gracefully...",
    f"{ERROR}Critical LightLLM submodule exited unexpectedly: name=Process-2 pid=4250 exitcode=-15",
    f"{INFO}HTTP server exited gracefully",
    f"{INFO}All processes terminated gracefully.",
    f"{INFO}cleanup: unlinked 1 POSIX shm segments",
    "/usr/lib/x.py:254: UserWarning: resource_tracker: There appear to be 1 leaked shared_memory objects",
]
STARTED = "args loading kv-cache graphs warmup loaded startup ready listening"


def traceback(prefix: str, last: str, header: str = "") -> list[str]:
    """A traceback as LightLLM logs it: the prefix on every line, each but the last ended by CR."""
    body = [
        f"{header}Traceback (most recent call last):\r",
        '  File "/opt/lightllm/lightllm/server/router/manager.py", line 99, in start\r',
        "    raise error\r",
        last,
    ]
    return [prefix + line for line in body]


COMPOSED: dict[str, tuple[list[str], bool, str | None, str]] = {
    "clean": ([*START, *LOAD, *SERVE, *STOP], True, None, f"{STARTED} stopping"),
    "serving": ([*START, *LOAD, *SERVE], True, None, STARTED),
    "out of memory": (
        [
            *START,
            *traceback(
                ERROR,
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\r",
                "init func start_router_process : ",
            ),
            "RuntimeError: child failed",
        ],
        False,
        "GPU out of memory",
        "args",
    ),
    "a child's own exception": (
        [*START, *traceback(ERROR, "KeyError: 'rope'\r", "init func start_router_process : ")],
        False,
        "unexpected exception: KeyError: 'rope'",
        "args",
    ),
    "port used": (
        [
            *START[:1],
            "Traceback (most recent call last):",
            '  File "/opt/lightllm/lightllm/server/api_start.py", line 1, in validate_ports',
            "RuntimeError: port 18000 has been used",
        ],
        False,
        "port already in use",
        "args",
    ),
    "port stolen while loading": (
        [
            *START,
            *LOAD,
            *SERVE[:5],
            "OSError: [Errno 98] Address already in use",
            f"{ERROR}HTTP server exited unexpectedly with return code 1",
        ],
        False,
        "port already in use",
        "args loading kv-cache graphs warmup loaded startup",
    ),
    "killed while serving": (
        [
            *START,
            *LOAD,
            *SERVE,
            f"{ERROR}Critical LightLLM submodule exited unexpectedly: name=Process-2 pid=4250 exitcode=-9",
        ],
        True,
        "killed by signal",
        STARTED,
    ),
    "inference thread died": (
        [
            *START,
            *LOAD,
            *SERVE,
            *traceback(
                "ERROR 09-20 03:09:05 [impl.py:211] ", "RuntimeError: CUDA error: an illegal access\r"
            ),
        ],
        True,
        "CUDA error",
        STARTED,
    ),
    "child killed before it reports": ([*START, *LOAD[:1]], False, None, "args loading"),
    "stopped while loading": ([*START, *LOAD[:1], STOP[0]], False, None, "args loading stopping"),
    "bad flag": (
        [
            "usage: api_server.py [-h] [--run_mode {normal,prefill,decode}] [--model_dir MODEL_DIR]",
            "api_server.py: error: unrecognized arguments: --page_size 16",
        ],
        False,
        "unknown flag",
        "",
    ),
    "P/D node waits for its master": (
        [
            *START,
            *LOAD,
            *SERVE,
            f"{ERROR}connetion to pd_master has error",
            "ERROR 09-20 03:05:05 [pd_loop.py:99] [Errno 111] Connect call failed ('127.0.0.1', 1)",
            *traceback(
                "ERROR 09-20 03:05:05 [manager.py:539] ", "ConnectionRefusedError: [Errno 111] refused\r"
            ),
            f"{INFO}Sent registration JSON: {{'node_id': 5, 'mode': 'prefill', 'start_args': {{}}}}",
        ],
        True,
        None,
        f"{STARTED} registered",
    ),
    "P/D lengths differ": (
        [
            *START,
            f"{ERROR}client dont has same max_req_total_len params, but pd master is 8192client is 16384",
        ],
        False,
        "P/D nodes differ in max_req_total_len",
        "args",
    ),
    "one request's own error": (
        [
            *START,
            *LOAD,
            *SERVE,
            *traceback(
                "ERROR 09-20 03:05:05 [api_http.py:7] ", "ValueError: too long\r", "An error occurred: "
            ),
            "ERROR 09-20 03:05:06 [api_http.py:7] An error occurred: x\r",
            *traceback("ERROR 09-20 03:05:06 [api_http.py:7] ", "KeyError: 'parameters'\r"),
        ],
        True,
        None,
        STARTED,
    ),
}


def write(path: Path, lines: list[str]) -> Path:
    path.write_bytes("\n".join(lines).encode() + b"\n")
    return path


def lines_of(name: str) -> list[str]:
    """A real log's lines as an editor numbers them: a carriage return ends none."""
    return (LOGS / f"{name}.txt").read_bytes().decode(errors="replace").split("\n")


# whole logs


@pytest.mark.parametrize("name", REAL)
def test_real_logs(name: str) -> None:
    engine, ready, cause, phases = REAL[name]
    path = LOGS / f"{name}.txt"
    report = triage(path)
    assert report.engine == engine
    assert report.ready is ready
    assert (report.fatal[0].cause if report.fatal else None) == cause
    assert " ".join(phase.name for phase in report.phases) == phases
    assert report.exit_code == (0 if ready and cause is None else 1)
    lines = lines_of(name)
    for fatal in report.fatal:
        assert fatal.text[:40] in lines[fatal.line - 1], "the line number does not lead to the evidence"


def test_no_real_log_is_left_untested() -> None:
    assert {path.stem for path in LOGS.glob("*.txt")} == set(REAL)


@pytest.mark.parametrize("name", COMPOSED)
def test_composed_lightllm_logs(name: str, tmp_path: Path) -> None:
    lines, ready, cause, phases = COMPOSED[name]
    report = triage(write(tmp_path / "server.log", lines))
    assert report.engine == "lightllm"
    assert report.ready is ready
    assert (report.fatal[0].cause if report.fatal else None) == cause
    assert " ".join(phase.name for phase in report.phases) == phases


@pytest.mark.parametrize("name", [name for name, (_, ready, cause, _) in REAL.items() if ready and not cause])
def test_no_rule_finds_a_failure_in_a_sound_log(name: str) -> None:
    report = triage(LOGS / f"{name}.txt")
    scanner = LogScanner(GRAMMARS[report.engine])
    for number, line in enumerate(lines_of(name)[: report.stopping_line], 1):
        scanner.feed(number, line)
        assert scanner.fatal == [], f"line {number}: {line}"


@pytest.mark.parametrize("name", [name for name, (_, _, cause, _) in REAL.items() if cause])
def test_access_lines_between_all_others_change_nothing(name: str) -> None:
    engine, _, cause, _ = REAL[name]
    access = 'INFO:     127.0.0.1:33440 - "POST /v1/completions HTTP/1.1" 200 OK'
    scanner = LogScanner(GRAMMARS[engine])
    for number, line in enumerate(lines_of(name), 1):
        scanner.feed(2 * number - 1, line)
        scanner.feed(2 * number, access)
    scanner.close()
    assert scanner.causes()[0].cause == cause


@pytest.mark.parametrize("name", REAL)
def test_another_engines_grammar_finds_no_readiness(name: str) -> None:
    """Reading a log with the wrong grammar must not end in success."""
    for engine in set(GRAMMARS) - {REAL[name][0]}:
        if (engine, REAL[name][0]) == ("lightllm", "vllm"):
            continue  # both may be served by uvicorn
        report = triage(LOGS / f"{name}.txt", engine)
        assert not report.ready
        assert f"it looks like {REAL[name][0]}'s log" in report.render()


# what is said


def test_json_has_exactly_the_promised_keys() -> None:
    said = json.loads(json.dumps(triage(LOGS / "sglang-port-used.txt").to_json()))
    assert set(said) == {"engine", "ready", "phases", "fatal"}
    assert said["engine"] == "sglang"
    assert said["ready"] is False
    assert set(said["fatal"][0]) == {"line", "text", "cause"}
    assert set(said["phases"][0]) == {"name", "line", "time"}


def test_text_names_the_cause_first_then_consequences_and_counts_noise() -> None:
    text = triage(LOGS / "vllm-unsupported.txt").render()
    lines = text.splitlines()
    assert lines[1] == "never became ready: feature not supported on this host"
    assert lines[3].startswith("cause      line 78: NotImplementedError: FP8 KV cache on CPU requires")
    assert text.count("also       line") == 5
    assert "benign lines: " in text
    assert "(EngineCore pid" in text


def test_text_warns_of_a_server_that_only_says_it_is_ready() -> None:
    report = triage(LOGS / "sglang-port-used.txt")
    assert f"beware     line {report.claimed_ready_line} says that it is ready" in report.render()


def test_text_of_a_log_that_just_stops(tmp_path: Path) -> None:
    lines, *_ = COMPOSED["child killed before it reports"]
    report = triage(write(tmp_path / "server.log", lines))
    text = report.render()
    assert report.exit_code == 1
    assert "never became ready, and no failure is named" in text
    assert "stopped    during `loading` (line 5), at line 5" in text
    assert "progress   last seen: pid 4250 Loading model weights with 1 workers: 100%" in text


def test_text_tells_a_death_after_readiness_from_one_before(tmp_path: Path) -> None:
    lines, *_ = COMPOSED["killed while serving"]
    assert "became ready, then failed: killed by signal" in triage(write(tmp_path / "a.log", lines)).render()


def test_phases_are_timed(tmp_path: Path) -> None:
    text = triage(LOGS / "vllm-ok.txt").render()
    row = next(line for line in text.splitlines() if line.strip().startswith("loading"))
    assert row.split()[-2:] == ["19", "s"]


def test_hostile_text_cannot_steer_the_terminal(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_bytes(START[0].encode() + b"\nRuntimeError: port 1 has been used \x9b2J\xe2\x80\xae\x07\n")
    text = triage(log).render()
    assert not {"\x9b", "\x07", "\u202e"} & set(text)


def test_every_piece_of_advice_is_for_a_cause_that_exists() -> None:
    causes = {rule.label for grammar in GRAMMARS.values() for rule in grammar.fatal}
    assert set(ADVICE) <= causes


@pytest.mark.parametrize(
    ("earlier", "later", "seconds"),
    [
        ("11-30 10:30:29", "11-30 10:31:30", 61),
        ("2026-11-30 23:59:59", "2026-12-01 00:00:01", 2),
        ("02-28 23:59:59", "03-01 00:00:00", 86401),
        ("0.59.999.500", "1.00.000.500", 0.001),
    ],
)
def test_clock(earlier: str, later: str, seconds: float) -> None:
    first, second = clock(earlier), clock(later)
    assert first is not None
    assert second is not None
    assert second - first == pytest.approx(seconds, abs=1e-6)


def test_clock_of_another_form() -> None:
    assert clock("yesterday") is None
    assert clock("13-45 25:61:61") is None


# which engine


@pytest.mark.parametrize("name", REAL)
def test_each_log_is_recognised_by_its_first_lines(name: str) -> None:
    assert recognise(lines_of(name)[:30]) == REAL[name][0]


def test_the_same_program_name_is_told_apart_by_its_flags() -> None:
    assert recognise(["api_server.py: error: unrecognized arguments: --page_size 16"]) == "lightllm"
    vllm = [
        "usage: api_server.py [-h] [--headless] [--api-server-count API_SERVER_COUNT]",
        "api_server.py: error: unrecognized arguments: --no-such-flag",
    ]
    assert recognise(vllm) == "vllm"


def test_an_engine_that_does_not_exist() -> None:
    with pytest.raises(ConfigError, match="did you mean `sglang`"):
        triage(LOGS / "sglang-ok.txt", "slang")


def test_an_unrecognised_log_lists_the_engines(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--engine lightllm\|llamacpp\|sglang\|vllm"):
        triage(write(tmp_path / "x.log", ["nothing", "known"]))


# files that are no logs


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no file"):
        triage(tmp_path / "none.log")


def test_a_directory_names_its_logs(tmp_path: Path) -> None:
    write(tmp_path / "server.log", ["x"])
    with pytest.raises(ConfigError, match=r"is a directory\n.*server\.log"):
        triage(tmp_path)


def test_an_unreadable_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        triage(Path("/proc/self/mem"), "vllm")


def test_an_empty_log(tmp_path: Path) -> None:
    empty = tmp_path / "server.log"
    empty.touch()
    with pytest.raises(ConfigError, match="is empty"):
        triage(empty)
    report = triage(empty, "vllm")
    assert (report.ready, report.exit_code, report.fatal) == (False, 1, ())
    assert "the log is empty" in report.render()


def test_binary_junk_around_a_failure(tmp_path: Path) -> None:
    junk = random.Random(1).randbytes
    log = tmp_path / "server.log"
    log.write_bytes(junk(300_000) + b"\n" + b"\0" * 2_000_000 + b"\n\0\0MemoryError\n" + junk(1000))
    assert [fatal.cause for fatal in triage(log, "vllm").fatal] == ["host out of memory"]


def test_a_log_can_come_through_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    data = (LOGS / "vllm-port-used.txt").read_bytes()
    writer = threading.Thread(target=pipe.write_bytes, args=(data,))
    writer.start()
    report = triage(pipe)
    writer.join(timeout=10)
    assert report.fatal[0].cause == "port already in use"


def test_lines_beyond_the_head_are_read(tmp_path: Path) -> None:
    filler = [f"{INFO}DEBUG line {number}" for number in range(20_000)]
    log = write(tmp_path / "server.log", [*START, *LOAD, *SERVE, *filler, "MemoryError"])
    report = triage(log)
    assert report.fatal[0].line == report.lines == len(START + LOAD + SERVE) + 20_001
    assert all(earlier.line <= later.line for earlier, later in pairwise(report.phases))
