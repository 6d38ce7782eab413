"""The scanner and the four grammars, line by line."""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from harness.engines.grammar import LogGrammar
from harness.engines.log_rules import AND_TRACEBACK, PORT_IN_USE, STOPPING, UNEXPECTED
from harness.logscan import LogScanner
from harness.triage import GRAMMARS

STAMP = {
    "lightllm": "ERROR 09-20 03:04:05 [manager.py:538] ",
    "llamacpp": "0.06.403.387 E ",
    "sglang": "[2026-11-30 10:24:53 TP0] ",
    "vllm": "(EngineCore pid=31341) ERROR 11-30 10:31:06 [core.py:402] ",
}
INFO = {
    "lightllm": "INFO 09-20 03:04:05 [manager.py:538] ",
    "llamacpp": "0.06.403.387 I srv          init: ",
    "sglang": "[2026-11-30 10:24:53] ",
    "vllm": "(APIServer pid=31201) INFO 11-30 10:31:06 [request_logger.py:65] ",
}

LINES = yaml.safe_load((Path(__file__).parent / "data" / "log_lines.yaml").read_text(encoding="utf-8"))


def examples(kind: str) -> list[tuple[str, str, str]]:
    """(engine, label, line) for every example of one kind, with the engine's prefix filled in."""
    return [
        (engine, label, line.replace("<prefix>", STAMP[engine]))
        for engine in GRAMMARS
        for table in (LINES[kind]["common"], LINES[kind][engine])
        for label, lines in table.items()
        for line in lines
    ]


def scan(engine: str, lines: Iterable[str]) -> LogScanner:
    scanner = LogScanner(GRAMMARS[engine])
    for number, line in enumerate(lines, 1):
        scanner.feed(number, line)
    scanner.close()
    return scanner


def causes(engine: str, lines: Iterable[str]) -> list[str]:
    return [fatal.cause for fatal in scan(engine, lines).causes()]


# the grammars


@pytest.mark.parametrize(("engine", "cause", "line"), examples("fatal"))
def test_every_cause_is_recognised(engine: str, cause: str, line: str) -> None:
    found = scan(engine, ["something before", line]).causes()
    assert [(fatal.line, fatal.cause) for fatal in found] == [(2, cause)]


@pytest.mark.parametrize(("engine", "label", "line"), examples("benign"))
def test_every_benign_line_is_left_out_and_counted(engine: str, label: str, line: str) -> None:
    scanner = scan(engine, [line])
    assert scanner.fatal == []
    assert scanner.benign == {label: 1}


@pytest.mark.parametrize("engine", GRAMMARS)
def test_every_rule_has_an_example(engine: str) -> None:
    grammar = GRAMMARS[engine]
    fatal = {rule.label for rule in grammar.fatal} - {UNEXPECTED}
    assert fatal == {*LINES["fatal"]["common"], *LINES["fatal"][engine]}
    benign = {rule.label.removesuffix(AND_TRACEBACK) for rule in grammar.benign}
    assert benign == {*LINES["benign"]["common"], *LINES["benign"][engine]}


@pytest.mark.parametrize("engine", GRAMMARS)
def test_grammars_keep_the_conventions(engine: str) -> None:
    grammar: LogGrammar = GRAMMARS[engine]
    assert [rule.label for rule in grammar.fatal].count(UNEXPECTED) == 1
    assert any(rule.label == STOPPING for rule in grammar.phases)
    assert any(rule.label == PORT_IN_USE for rule in grammar.fatal)
    for rule in (*grammar.phases, *grammar.fatal, *grammar.benign):
        assert rule.pattern.pattern.startswith("^"), rule.label
        assert not re.match(r"\^\(\?:\)\(\?:(?:\.\*)", rule.pattern.pattern), f"{rule.label} is not anchored"


# text that is not the server's own

HOSTILE = (
    "torch.OutOfMemoryError: CUDA out of memory",
    "RuntimeError: port 80 has been used",
    "OSError: [Errno 98] Address already in use",
    "Traceback (most recent call last):",
    "Segmentation fault",
    "NCCL error",
    "GGML_ASSERT(x)",
    "Scheduler hit an exception",
    "EngineCore failed to start.",
    "exit code -9",
    "Killed",
    "内存不足 CUDA out of memory 端口已被占用",
)


@pytest.mark.parametrize("engine", GRAMMARS)
@pytest.mark.parametrize("text", HOSTILE)
def test_fatal_words_in_a_request_are_not_a_failure(engine: str, text: str) -> None:
    request = {
        "lightllm": f"received req X-Request-Id:{text} X-Session-Id: start_time:2026-09-20 03:04:05",
        "llamacpp": f'request: {{"prompt": "{text}"}}',
        "sglang": f"Receive: obj=GenerateReqInput(rid='1', text='{text}'), sampling_params={{}}",
        "vllm": f"Received request cmpl-1: prompt: {text!r}, params: SamplingParams(n=1)",
    }[engine]
    access = f'127.0.0.1:39104 - "POST /generate?q={text} HTTP/1.1" 500 Internal Server Error'
    answer = f"Finish: obj=GenerateReqInput(text='{text}'), out={{'text': '{text}'}}"
    lines = [INFO[engine] + request, f"INFO:     {access}", INFO[engine] + access, INFO[engine] + answer]
    scanner = scan(engine, lines)
    assert scanner.causes() == []
    assert scanner.ready_line is None


def test_a_message_of_many_lines_below_error_is_not_a_failure() -> None:
    """LightLLM repeats its prefix on each line, so a logged prompt can start a line with anything."""
    lines = [f"INFO 09-20 03:04:05 [manager.py:538] {text}\r" for text in HOSTILE]
    assert causes("lightllm", lines) == []


# tracebacks


def test_a_chain_is_judged_by_its_first_exception() -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "a.py", line 1, in f',
        "    bind()",
        "OSError: [Errno 98] Address already in use",
        "",
        "During handling of the above exception, another exception occurred:",
        "",
        "Traceback (most recent call last):",
        '  File "b.py", line 1, in g',
        "RuntimeError: could not start",
    ]
    found = scan("sglang", lines).causes()
    assert [(fatal.line, fatal.cause) for fatal in found] == [(4, PORT_IN_USE)]


def test_a_chain_whose_later_exception_is_known_is_judged_by_that() -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "a.py", line 1, in f',
        "KeyError: 'x'",
        "",
        "The above exception was the direct cause of the following exception:",
        "",
        "Traceback (most recent call last):",
        '  File "b.py", line 1, in g',
        "ValueError: Unrecognized model in /models/x. Should have a `model_type` key",
    ]
    found = scan("vllm", lines).causes()
    assert [(fatal.line, fatal.cause) for fatal in found] == [(9, "model directory not found")]


def test_an_unknown_exception_is_told_in_its_own_words() -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "a.py", line 1, in f',
        "ZeroDivisionError: division",
    ]
    assert causes("vllm", lines) == ["unexpected exception: ZeroDivisionError: division"]


@pytest.mark.parametrize("engine", GRAMMARS)
def test_an_exception_without_its_traceback_needs_a_known_cause(engine: str) -> None:
    assert causes(engine, ["ZeroDivisionError: a model may say that"]) == []


def test_the_message_of_an_exception_may_go_on() -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "a.py", line 1, in f',
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
        "  Value error, User-specified max_model_len (99999) is greater than the derived max_model_len",
        "    For further information visit the documentation",
    ]
    found = scan("vllm", lines).causes()
    assert found[0].cause == "max length beyond what the model allows"
    assert found[0].line == 3
    assert "99999" in found[0].text


def test_a_prefixed_record_is_one_traceback() -> None:
    prefix = "ERROR 09-20 03:04:05 [impl.py:211] "
    body = [
        "Traceback (most recent call last):\r",
        '  File "/opt/lightllm/a.py", line 1, in f\r',
        "RuntimeError: CUDA error: an illegal memory access was encountered\r",
    ]
    scanner = scan("lightllm", [prefix + line for line in body])
    assert [fatal.cause for fatal in scanner.causes()] == [
        "CUDA error",
        "inference thread died, requests hang",
    ]


def test_ranks_that_write_at_once_are_told_apart() -> None:
    first = "(Worker_TP0 pid=1) ERROR 11-30 10:31:06 [multiproc_executor.py:1] "
    second = "(Worker_TP1 pid=2) ERROR 11-30 10:31:06 [multiproc_executor.py:1] "
    lines = [
        first + "Traceback (most recent call last):",
        second + "Traceback (most recent call last):",
        first + '  File "a.py", line 1, in f',
        "INFO:     127.0.0.1:1 - GET /health",
        second + '  File "b.py", line 1, in g',
        second + "ValueError: the second rank's",
        first + "torch.OutOfMemoryError: CUDA out of memory.",
    ]
    found = scan("vllm", lines).causes()
    assert [(fatal.line, fatal.cause) for fatal in found] == [
        (7, "GPU out of memory"),
        (6, "unexpected exception: ValueError: the second rank's"),
    ]


def test_the_prefix_of_torch_ranks_is_cut_off() -> None:
    lines = [
        "[rank1]: Traceback (most recent call last):",
        '[rank1]:   File "a.py", line 1, in f',
        "[rank0]: Traceback (most recent call last):",
        "[rank1]: torch.OutOfMemoryError: CUDA out of memory.",
        '[rank0]:   File "a.py", line 1, in f',
        "[rank0]: ZeroDivisionError: division",
    ]
    expected = ["GPU out of memory", "unexpected exception: ZeroDivisionError: division"]
    assert causes("sglang", lines) == expected


def test_the_same_failure_on_each_rank_stands_once() -> None:
    lines = [f"torch.OutOfMemoryError: CUDA out of memory. GPU {rank} has a total" for rank in range(8)]
    scanner = scan("vllm", lines)
    assert len(scanner.fatal) == 1
    assert scanner.fatal_count == 8


def test_an_exception_group_is_read() -> None:
    lines = [
        "  + Exception Group Traceback (most recent call last):",
        '  |   File "a.py", line 1, in f',
        "  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)",
        "  +-+---------------- 1 ----------------",
        "    | Traceback (most recent call last):",
        '    |   File "b.py", line 1, in g',
        "    | OSError: [Errno 98] Address already in use",
        "    +------------------------------------",
    ]
    assert causes("sglang", lines) == [PORT_IN_USE]


@pytest.mark.parametrize(
    ("engine", "header"),
    [
        ("sglang", "[2026-11-30 10:25:21] post-warmup freeze_gc failed"),
        ("sglang", "[2026-11-30 10:25:21] ERROR:    Exception in ASGI application"),
        ("vllm", "ERROR:    Exception in ASGI application"),
    ],
)
def test_a_benign_header_covers_its_traceback_and_no_other(engine: str, header: str) -> None:
    traceback = ["Traceback (most recent call last):", '  File "a.py", line 1, in f', "ValueError: x"]
    chained = ["", "During handling of the above exception, another exception occurred:", "", *traceback]
    assert causes(engine, [header, *traceback, *chained]) == []
    assert causes(engine, [header, *traceback, "a line", *traceback]) == [
        "unexpected exception: ValueError: x"
    ]


def test_a_chain_that_ends_in_something_benign_is_taken_back() -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "a.py", line 1, in f',
        "asyncio.exceptions.CancelledError",
        "",
        "During handling of the above exception, another exception occurred:",
        "",
        "Traceback (most recent call last):",
        '  File "b.py", line 1, in g',
        "KeyboardInterrupt",
    ]
    assert causes("vllm", lines[:3]) == ["unexpected exception: asyncio.exceptions.CancelledError"]
    assert causes("vllm", lines) == []


def test_a_refused_request_of_one_process_does_not_excuse_the_crash_of_another() -> None:
    engine_core = "(EngineCore pid=2) ERROR 11-30 10:31:06 [core.py:1] "
    lines = [
        "(APIServer pid=1) ERROR 11-30 10:31:06 [exception.py:16] Exception caught. Request id: None",
        engine_core + "EngineCore encountered a fatal error.",
        engine_core + "Traceback (most recent call last):",
        engine_core + '  File "a.py", line 1, in f',
        engine_core + "ValueError: x",
    ]
    assert causes("vllm", lines) == ["unexpected exception: ValueError: x", "engine died"]


def test_a_log_that_ends_inside_a_traceback_is_a_failure() -> None:
    scanner = LogScanner(GRAMMARS["vllm"])
    scanner.feed(1, "Traceback (most recent call last):")
    scanner.feed(2, '  File "a.py", line 1, in f')
    assert scanner.fatal == []
    scanner.close()
    assert [(fatal.line, fatal.cause) for fatal in scanner.fatal] == [(1, "traceback without its end")]


def test_a_traceback_without_its_end_adds_nothing_to_a_line_that_names_what_failed() -> None:
    line = "init func start_router_process : Traceback (most recent call last):"
    assert causes("lightllm", [STAMP["lightllm"] + line]) == ["server process failed to initialise"]


# the life of a server


def test_a_server_that_lost_its_port_is_not_ready_whenever_it_says_so() -> None:
    bind = "[2026-11-30 10:30:55] ERROR:    [Errno 98] error while attempting to bind on address ('::', 1)"
    ready = "[2026-11-30 10:30:57] The server is fired up and ready to roll!"
    for lines in ([bind, ready], [ready, bind]):
        scanner = scan("sglang", lines)
        assert scanner.ready_line is None
        assert "ready" not in [phase.name for phase in scanner.phases]
        assert scanner.claimed_ready_line == lines.index(ready) + 1


def test_what_dies_after_a_stop_was_asked_for_is_no_failure_but_what_died_before_is() -> None:
    stop = "[2026-11-30 10:27:18] SIGTERM received. signum=None frame=None. Draining requests..."
    crash = (
        "[2026-11-30 10:27:19] Subprocess scheduler_0 (pid=1) crashed with exit code -15. Triggering SIGQUIT"
    )
    assert causes("sglang", [stop, crash]) == []
    assert causes("sglang", [crash, stop]) == ["child process failed"]


def test_a_second_life_in_the_same_file_counts_alone() -> None:
    life = [
        "[2026-11-30 10:00:00] server_args={}",
        "[2026-11-30 10:00:01] The server is fired up and ready to roll!",
    ]
    stop = "[2026-11-30 10:00:02] SIGTERM received. signum=None frame=None. Draining"
    failed = [life[0], "torch.OutOfMemoryError: CUDA out of memory."]
    assert scan("sglang", [*life, stop, *life]).ready_line == 5
    scanner = scan("sglang", [*life, stop, *failed])
    assert scanner.ready_line is None
    assert [fatal.line for fatal in scanner.fatal] == [5]


def test_progress_is_counted_until_ready_also_inside_one_overwritten_line() -> None:
    bar = "\rloading shards:   0% Completed | 0/1\rloading shards: 100% Completed | 1/1"
    lines = [bar, "[2026-11-30 10:00:01] The server is fired up and ready to roll!", "50%|## | 1/2"]
    scanner = scan("sglang", lines)
    assert (scanner.progress_count, scanner.last_progress_line) == (2, 1)
    assert "100%" in scanner.last_progress_text


def test_phases_carry_the_last_time_the_log_named() -> None:
    lines = [
        "(APIServer pid=1) INFO 11-30 10:31:10 [entry.py:140] Starting vLLM server on http://127.0.0.1:18101",
        "INFO:     Application startup complete.",
    ]
    assert [(phase.name, phase.line, phase.time) for phase in scan("vllm", lines).phases] == [
        ("listening", 1, "11-30 10:31:10"),
        ("ready", 2, "11-30 10:31:10"),
    ]


# whatever bytes


def test_colour_nul_and_carriage_return_do_not_hide_a_line() -> None:
    lines = ["\x00\x00\x1b[31mtorch.OutOfMemoryError: CUDA out of memory.\x1b[0m\r"]
    assert causes("vllm", lines) == ["GPU out of memory"]


def test_a_huge_line_costs_little_and_hides_nothing_after_it() -> None:
    huge = "A" * 5_000_000
    assert causes("sglang", [huge, "." * 5_000_000, "a." * 1_000_000, "MemoryError"]) == [
        "host out of memory"
    ]


def test_a_crash_loop_is_kept_in_bounds() -> None:
    lines = (f"RuntimeError: CUDA error: number {'x' * (number % 1000)}" for number in range(5000))
    scanner = scan("vllm", lines)
    assert scanner.fatal_count == 5000
    assert len(scanner.fatal) <= 500


@given(st.lists(st.one_of(st.text(max_size=60), st.sampled_from([line for _, _, line in examples("fatal")]))))
def test_any_lines_can_be_read(lines: list[str]) -> None:
    for engine in GRAMMARS:
        scanner = scan(engine, lines)
        assert len(scanner.causes()) == len(scanner.fatal) <= scanner.fatal_count
