"""How to read LightLLM's log, from mid 2025 to autumn 2026, in all run modes."""

import re

from harness.engines.grammar import LogGrammar
from harness.engines.log_rules import (
    AND_TRACEBACK,
    COMMON_CAUSES,
    COMMON_NOISE,
    PD_DIFFER,
    PORT_IN_USE,
    STOPPING,
    rules,
    unexpected,
)

# `ERROR 09-20 03:04:05 [manager.py:538] message`, repeated on every line of a message, tracebacks included;
# no year. hypercorn writes `[2026-09-20 03:04:05 +0000] [4301] [INFO] message`, children's stderr is raw.
_STAMP = r"\d\d-\d\d \d\d:\d\d:\d\d \[[^\]\s]+:\d+\] "
_ANY = rf"(?:[A-Z]+ {_STAMP})?"
_BAD = rf"(?:(?:WARNING|ERROR|CRITICAL) {_STAMP})?"
_HYPERCORN = r"\[[^\]]+\] \[\d+\] \[[A-Z]+\] "

GRAMMAR = LogGrammar(
    ready=re.compile(
        rf"^(?:{_ANY}server start up ok, loop use is |{_HYPERCORN}Running on http"
        rf"|(?:{_HYPERCORN}|INFO: +)Application startup complete)"
    ),
    phases=(
        *rules(
            _ANY,
            ("args", r"all start args:"),
            ("loading", r"(?:pid \d+ )?Loading model weights with "),
            (
                "kv-cache",
                r"\d+ is the profiled max_total_token_num",
                r"Model kv cache using ",
                r"set shm_max_total_token_num value to ",
            ),
            ("graphs", r"Capture (?:\w+ )?cudagraph"),
            ("warmup", r"check max_len \d+ infer ok"),
            ("loaded", r"init func start_router_process : init ok"),
            ("startup", r"server start up$"),
            ("registered", r"Sent registration JSON: "),
            ("nodes-joined", r"mode: (?:prefill|decode) url: \S+ registed"),
            (STOPPING, r"Received SIG(?:TERM|INT|HUP)\b"),
        ),
        *rules("", ("listening", rf"{_HYPERCORN}Running on http")),
    ),
    progress=re.compile(r"\d+%\||Loading model weights|Capture \w*|init func \w+ : init ok"),
    fatal=(
        *rules(
            _BAD,
            (PORT_IN_USE, r"(?:\w+Error: )?port \d+ has been used"),
            ("two flags name the same port", r"(?:\w+Error: )?conflicting ports in list: "),
            ("KV cache too small for max length", r"(?:\w+: )?check max len infer fail"),
            *COMMON_CAUSES,
            ("killed by signal", r"Critical LightLLM submodule exited unexpectedly: .*exitcode=-9\b"),
            ("KV cache exhausted", r"warn no enough cache need_size", r"(?:\w+Error: )?error alloc state"),
            ("P/D node has no network address", r"pd mode must specify host ip"),
            (
                PD_DIFFER,
                r"(?:\w+Error: )?client dont has same max_req_total_len params",
            ),
        ),
        unexpected(),
        *rules(
            _BAD,
            (
                "KV transfer process died",
                r"kv trans process for device: \d+ dead!!!",
                r"Fatal error happened in kv trans",
            ),
            ("server process failed to initialise", r"init func \w+ : (?!init ok)"),
            ("inference stalled", r"(?:PD Master health|Health) check failed: no success"),
            ("server process died", r"Critical LightLLM submodule exited unexpectedly: "),
            ("HTTP server died", r"HTTP server exited unexpectedly with return code"),
        ),
        # The thread is gone and nothing supervises it: every request hangs, /health is green for 200 s more.
        *rules(
            r"(?:ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[(?:impl|base_backend|infer_batch)\.py:\d+\] ",
            ("inference thread died, requests hang", r"Traceback \(most recent call last\):"),
        ),
    ),
    benign=rules(
        _ANY,
        ("P/D master not reachable yet" + AND_TRACEBACK, r"connetion to pd_master(?: .*)? has error"),
        ("one request failed" + AND_TRACEBACK, r"An error occurred: ?"),
        ("one P/D request failed", r"trans task ret fail:", r"req_id: \d+ forced to finished \(reason="),
        ("P/D node left" + AND_TRACEBACK, r"client .* removed", r"mode: (?:prefill|decode) url: \S+ removed"),
        ("shared memory size not checked" + AND_TRACEBACK, r"check_recommended_shm_size error"),
        ("child follows its parent", r"parent is dead, kill self"),
        ("request aborted", r"aborted group_request_id"),
        ("P/D nodes not complete yet", r"PD nodes are not ready: "),
        *COMMON_NOISE,
    ),
    detect=re.compile(
        r"[lL]ight[lL][lL][mM]|shm_max_total_token_num|all start args:|init func start_\w+ : |ShmPortArgs"
        r"|^api_server(?:\.py)?: error: .*--[a-z]+_[a-z]|\[--[a-z]+_[a-z_]+ [A-Z_]+\]|pd_master"
        r"|server start up ok, loop use|port \d+ has been used"
        r"|^[A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d \[(?:manager|api_start|start_utils|impl|base_backend"
        r"|infer_batch|model_rpc|basemodel|mem_manager|api_http|api_lightllm)\.py:"
    ),
    timestamp=re.compile(r"^(?:[A-Z]+ (?P<ts>\d\d-\d\d \d\d:\d\d:\d\d) \[[^\]\s]+:\d+\] )?"),
)
