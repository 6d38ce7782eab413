"""How to read the log of SGLang's server and of its router (seen on 0.5.23 and router 0.3.2)."""

import re

from harness.engines.grammar import LogGrammar
from harness.engines.log_rules import (
    AND_TRACEBACK,
    COMMON_CAUSES,
    COMMON_NOISE,
    STOPPING,
    raised,
    rules,
    unexpected,
)

# `[2026-11-30 10:24:53 DP0 TP1] message`: no level; ranks only when there is more than one. Tracebacks follow
# without any prefix. The router writes `2026-11-30 10:52:31  INFO smg::server: file:1: message`.
_SERVER = r"(?:\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?: [A-Z]+\d+)*\] )?"
_ROUTER = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d +[A-Z]+ (?:\w+\{.*?\}: )?[\w:]+: \S+:\d+: "

# Requests put aside for want of KV cache.
RETRACTION = re.compile(r"Retract requests\. #retracted_reqs: \d+|Testing retraction\.")

GRAMMAR = LogGrammar(
    # A router listens, and says that it is ready, before it knows a single worker.
    ready=re.compile(
        rf"^(?:{_SERVER}The server is fired up and ready to roll!|{_ROUTER}Activated \d+ worker)"
    ),
    phases=(
        *rules(
            _SERVER,
            ("args", r"server_args="),
            ("parallel-init", r"Init (?:parallel|torch distributed) begin"),
            ("loading", r"Load weight begin"),
            ("loaded", r"Load weight end"),
            ("kv-cache", r"KV Cache is allocated"),
            ("graphs", r"Capture .*graph.*begin"),
            ("startup", r"INFO: +Waiting for application startup"),
            ("listening", r"INFO: +Uvicorn running on "),
            (STOPPING, r"SIG(?:TERM|INT) received\. "),
        ),
        *rules(
            _ROUTER,
            ("args", r"Starting router on "),
            ("listening", r"Starting server on "),
            (STOPPING, r"Received (?:terminate signal|Ctrl)"),
        ),
    ),
    progress=re.compile(rf"\d+%(?:\||\s+Completed)|oading .*shards|^{_SERVER}(?:Capture |Capturing |JIT )"),
    fatal=(
        *rules(
            _SERVER,
            (
                "KV cache too small for max length",
                raised(
                    r"Loaded weights leave no GPU memory for the KV cache",
                    r"Not enough memory\. Please try to increase --mem-fraction-static",
                ),
            ),
            *COMMON_CAUSES,
            (
                "KV cache exhausted",
                r"(?:Prefill |Decode )?[Oo]ut of memory\. Try to lower your batch size",
                r"(?:Prefill|Decode) out of memory\. ",
                raised(r"(?:Prefill|Decode) out of memory", r"alloc_req_slots runs out of memory"),
            ),
            ("KV cache leak detected", raised(r"memory leak detected!"), r"\S* ?memory leak detected!"),
            ("graph capture failed", raised(r"Capture \w+ graph failed"), r"Capture \w+ graph failed"),
            ("scheduler stalled", r"(?:[\w ]+ )?watchdog timeout \(self\."),
            (
                "killed by signal",
                r"Subprocess \S+ \(pid=\d+\) crashed with exit code -9\b",
                r"Rank \d+ scheduler died during initialization \(exit code: -9\)",
            ),
            ("native crash", r"Subprocess \S+ \(pid=\d+\) crashed with exit code -(?:4|6|7|8|11)\b"),
        ),
        unexpected(),
        *rules(
            _SERVER,
            ("P/D peer lost", r"Lost connection with prefill instance"),
            ("warm-up failed", r"Initialization failed\. warmup error"),
            (
                "detokenizer is silent",
                r"Health check failed\. Server couldn't get a response from detokenizer",
            ),
            (
                "server process failed",
                r"(?:Scheduler|DetokenizerManager|TokenizerManager|DataParallelController) hit an exception",
                r"Rank \d+ scheduler died during initialization",
            ),
            (
                "child process failed",
                r"Received sigquit from a child process",
                r"SIGQUIT received\.",
                r"Subprocess \S+ \(pid=\d+\) crashed with exit code",
            ),
        ),
    ),
    benign=(
        *rules(
            _SERVER,
            ("post-warmup freeze_gc found no server yet" + AND_TRACEBACK, r"post-warmup freeze_gc failed"),
            ("model class not importable", r"Ignore import error when loading "),
            ("optional API disabled", r"OpenAI Responses API \S+ disabled: "),
            ("limit of open files", r"Fail to set RLIMIT_NOFILE"),
            ("deprecation", r"'--[\w-]+' is deprecated"),
            (
                "one P/D request failed",
                r"Decode handshake failed for request",
                r"Prefill transfer failed for request",
                r"(?:Error fetching|Could not fetch) prefill ",
            ),
            *COMMON_NOISE,
        ),
        *rules("", ("request refused by the router", r"\S+ \S+ +(?:ERROR|WARN) http_request\{")),
    ),
    detect=re.compile(
        r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?: [A-Z]+\d+)*\] |^usage: (?:sglang|launch_\w+\.py)"
        r"|^(?:sglang(?: \w+)?|launch_server(?:\.py)?|launch_router(?:\.py)?): error:|/sglang/\w+|\bsmg::\w+"
    ),
    timestamp=re.compile(r"^\[?(?P<ts>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:(?: [A-Z]+\d+)*\] )?"),
)
