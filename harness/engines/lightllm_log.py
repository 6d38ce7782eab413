"""How to read LightLLM's log, from mid 2025 to autumn 2026, all run modes."""

import re

from harness.engines.base import LogGrammar
from harness.engines.log_rules import (
    AND_TRACEBACK,
    COMMON_CAUSES,
    COMMON_NOISE,
    EXCEPTION,
    PORT_IN_USE,
    STOPPING,
    rules,
    unexpected,
)

# `ERROR 09-20 03:04:05 [manager.py:538] message`, repeated on every line of a message, tracebacks included.
_STAMP = r"\d\d-\d\d \d\d:\d\d:\d\d \[[^\]\s]+:\d+\] "
_ANY = rf"(?:[A-Z]+ {_STAMP})?"
_BAD = rf"(?:(?:WARNING|ERROR|CRITICAL) {_STAMP})?"
_ERROR = rf"(?:ERROR|CRITICAL) {_STAMP}"

GRAMMAR = LogGrammar(
    ready=re.compile(
        rf"^(?:{_ANY}server start up ok, loop use is |\[[^\]]+\] \[\d+\] \[INFO\] Running on http"
        r"|.*INFO\W+Uvicorn running on http)"
    ),
    phases=(
        *rules(
            _ANY,
            ("args", r"all start args:"),
            ("processes", r"init func \w+ : init ok"),
            ("loading", r"pid \d+ Loading model weights|.*Loading model weights with \d+ workers"),
            (
                "kv-cache",
                r".*is the profiled max_total_token_num|set shm_max_total_token_num value to "
                r"|Model kv cache using ",
            ),
            ("graphs", r"Capture (?:overlap |repfill |prefill )?cudagraph"),
            ("warmup", r"check max_len \d+ infer ok"),
            ("loaded", r"init func start_router_process : init ok"),
            ("startup", r"server start up$"),
            ("registered", r"Sent registration JSON: |mode: (?:prefill|decode) url: \S+ registed"),
            (STOPPING, r"Received SIG(?:TERM|INT|HUP)"),
        ),
        *rules(r"", ("listening", r"\[[^\]]+\] \[\d+\] \[INFO\] Running on http")),
    ),
    progress=re.compile(r"\d+%\||Loading model weights|Capture .*cudagraph|init func \w+ : init ok"),
    fatal=(
        *rules(
            _BAD,
            (PORT_IN_USE, r"(?:RuntimeError: |AssertionError: )?port \d+ has been used"),
            ("two flags name the same port", rf"(?:{EXCEPTION})?conflicting ports in list: "),
            (
                "KV cache too small for max length",
                r"(?:AssertionError: |RuntimeError: |Exception: )?check max len infer fail",
            ),
            *COMMON_CAUSES,
        ),
        *rules(
            _ERROR,
            ("KV cache exhausted", r"warn no enough cache need_size|(?:AssertionError: )?error alloc state"),
            ("P/D node has no network address", r"pd mode must specify host ip"),
            ("P/D nodes differ in max_req_total_len", r"client dont has same max_req_total_len params"),
        ),
        unexpected(),
        *rules(
            _BAD,
            (
                "KV transfer process died",
                r"kv trans process for device: \d+ dead!!!|Fatal error happened in kv trans",
            ),
            ("server process failed to initialise", r"init func \w+ : (?!init ok)"),
            ("inference stalled", r"(?:PD Master health|Health) check failed: no success"),
            ("server process died", r"Critical LightLLM submodule exited unexpectedly: "),
            ("HTTP server died", r"HTTP server exited unexpectedly with return code"),
        ),
        *rules(
            rf"(?:ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[(?:impl|base_backend|infer_batch)\.py:\d+\] ",
            ("inference thread died; requests hang", r"Traceback \(most recent call last\):"),
        ),
    ),
    benign=(
        *rules(
            _ANY,
            ("P/D master not reachable yet" + AND_TRACEBACK, r"connetion to pd_master(?: .*)? has error"),
            ("one request failed" + AND_TRACEBACK, r"An error occurred: ?"),
            (
                "P/D client left" + AND_TRACEBACK,
                r"client .* removed|mode: (?:prefill|decode) url: \S+ removed",
            ),
            ("shared memory size unknown" + AND_TRACEBACK, r"check_recommended_shm_size error"),
            ("child follows its parent", r"parent is dead, kill self"),
            ("request aborted", r"aborted group_request_id"),
            *COMMON_NOISE,
        ),
    ),
    detect=re.compile(
        r"lightllm|LightLLM|shm_max_total_token_num|all start args:|init func start_\w+ : |ShmPortArgs|"
        r"^api_server(?:\.py)?: error: .*--\w+_\w+|\[--[a-z]+_[a-z_]+ [A-Z_]+\]|pd_master|"
        r"server start up ok, loop use|"
        r"^(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[(?:manager|api_start|start_utils|impl|"
        r"base_backend|infer_batch|model_rpc|basemodel|mem_manager|api_http|api_lightllm)\.py:"
    ),
    timestamp=re.compile(r"^(?:[A-Z]+ (?P<ts>\d\d-\d\d \d\d:\d\d:\d\d) \[[^\]\s]+:\d+\] )?"),
)
