"""How to read the log of SGLang's server and of its router (seen: 0.5.23, router 0.3.2)."""

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

# `[2026-11-30 10:24:53 DP0 TP1] message`; the ranks stand there when there is more than one. No level.
# Tracebacks follow without a prefix. The router writes `2026-11-30 10:52:31  INFO smg::server: file:1: message`.
_SERVER = r"(?:\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?: [A-Z]+\d+)*\] )?"
_ROUTER = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\s+[A-Z]+ (?:\w+\{.*?\}: )?[\w:]+: \S+:\d+: "

GRAMMAR = LogGrammar(
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
            ("kv-cache", r"KV Cache is allocated|max_total_num_tokens="),
            ("graphs", r"Capture (?:cuda|cpu|draft\w*|prefill|decode)?.*graph.*begin|Capturing"),
            ("startup", r"INFO:\s+Waiting for application startup"),
            ("listening", r"INFO:\s+Uvicorn running on "),
            (STOPPING, r"SIG(?:TERM|INT) received\. .*Draining"),
        ),
        *rules(
            _ROUTER,
            ("args", r"Starting router on "),
            ("listening", r"Starting server on "),
            (STOPPING, r"Received terminate signal|Received Ctrl"),
        ),
    ),
    progress=re.compile(
        r"\d+%(?:\||\s+Completed)|oading .*shards|^" + _SERVER + r"(?:Capture |Load weight|Capturing)"
    ),
    fatal=(
        *rules(
            _SERVER,
            (
                "KV cache too small for max length",
                rf"(?:{EXCEPTION}.*)?(?:Loaded weights leave no GPU memory for the KV cache"
                r"|Not enough memory\. Please try to increase --mem-fraction-static)",
            ),
            (PORT_IN_USE, r"ERROR:\s+\[Errno 98\]"),
            *COMMON_CAUSES,
            (
                "KV cache exhausted",
                rf"(?:{EXCEPTION}.*)?(?:(?:Prefill|Decode) out of memory\."
                r"|Out of memory\. Try to lower your batch size|\S* ?runs out of memory\.)",
            ),
            ("KV cache leak detected", rf"(?:{EXCEPTION})?.*memory leak detected!"),
            ("graph capture failed", rf"(?:{EXCEPTION})?Capture (?:cuda|cpu) graph failed"),
            ("scheduler stalled", r".*watchdog timeout \(self\.watchdog_timeout="),
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
                r"(?:Scheduler|DetokenizerManager|TokenizerManager|DataParallelController) hit an exception"
                r"|Rank \d+ scheduler died during initialization",
            ),
            (
                "child process failed",
                r"Received sigquit from a child process|SIGQUIT received\."
                r"|Subprocess \S+ \(pid=\d+\) crashed with exit code",
            ),
        ),
    ),
    benign=(
        *rules(
            _SERVER,
            ("post-warmup freeze_gc found no server yet" + AND_TRACEBACK, r"post-warmup freeze_gc failed"),
            ("model class not importable", r"Ignore import error when loading "),
            ("optional API disabled", r"OpenAI Responses API .* disabled: "),
            ("limit of open files", r"Fail to set RLIMIT_NOFILE"),
            ("deprecation", r".*\bis deprecated\b"),
            *COMMON_NOISE,
        ),
        *rules(
            "",
            ("native library's note", r"[EWI]\d{4} \d\d:\d\d:\d\d"),
            ("request refused by the router", r"\S+ \S+\s+(?:ERROR|WARN) http_request\{"),
        ),
    ),
    detect=re.compile(
        r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?: [A-Z]+\d+)*\] |^usage: (?:sglang|launch_server)"
        r"|^(?:sglang(?: \w+)?|launch_server(?:\.py)?|launch_router(?:\.py)?): error:|/sglang/\w+|\bsmg::\w+"
    ),
    timestamp=re.compile(
        r"^(?:\[(?P<ts>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?: [A-Z]+\d+)*\] |"
        r"(?=\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\s+[A-Z]+ ))"
    ),
)
