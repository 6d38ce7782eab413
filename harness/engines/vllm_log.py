"""How to read vLLM's log (seen: 0.32; older lines where they are known)."""

import re

from harness.engines.base import LogGrammar
from harness.engines.log_rules import (
    AND_TRACEBACK,
    COMMON_CAUSES,
    COMMON_NOISE,
    EXCEPTION,
    STOPPING,
    rules,
    unexpected,
)

# `(EngineCore pid=31341) ERROR 11-30 10:31:06 [core.py:402] message`; stderr of children keeps the first part.
_PROCESS = r"(?:\([\w\-=, ]+ pid=\d+\) )?"
_STAMP = r"\d\d-\d\d \d\d:\d\d:\d\d \[[^\]\s]+:\d+\] ?"
_ANY = rf"{_PROCESS}(?:[A-Z]+ {_STAMP})?"
_BAD = rf"{_PROCESS}(?:(?:ERROR|CRITICAL) {_STAMP})?"

GRAMMAR = LogGrammar(
    ready=re.compile(rf"^{_PROCESS}INFO:\s+Application startup complete\."),
    phases=rules(
        _ANY,
        ("args", r"non-default args: |vLLM API server version"),
        ("engine", r"Initializing a V\d LLM engine|Initializing an LLM engine"),
        ("loading", r"Starting to load model |Loading weights "),
        ("loaded", r"Loading weights took |Model loading took "),
        ("compile", r"Dynamo bytecode transform time|Compiling a graph|torch\.compile takes"),
        ("kv-cache", r"(?:GPU|CPU|XPU|TPU)? ?KV cache size: |# \w+ blocks: "),
        ("graphs", r"Capturing (?:CUDA|cuda) graph|Graph capturing finished"),
        ("warmup", r"init engine \(profile, create kv cache, warmup model\) took"),
        ("listening", r"Starting vLLM (?:API )?server(?: \d+)? on http"),
        (STOPPING, r"\[shutdown\] API server: shutdown triggered|Received signal \d+"),
    ),
    progress=re.compile(
        r"\d+%(?:\||\s+Completed)|^Loading .* shards|Capturing|Compiling|"
        + rf"^{_ANY}(?:Loading|Initializing)"
    ),
    fatal=(
        *rules(
            _BAD,
            (
                "KV cache too small for max length",
                rf"{EXCEPTION}.*(?:To serve at least one request with the model's max seq len"
                r"|No available memory for the cache blocks|is larger than the maximum number of tokens that "
                r"can be stored in KV cache)",
            ),
            (
                "max length beyond what the model allows",
                rf"{EXCEPTION}.*User-specified max_model_len",
            ),
            (
                "GPU memory already taken",
                rf"{EXCEPTION}.*Free memory on device .* is less than desired",
            ),
            (
                "feature not supported on this host",
                rf"{EXCEPTION}.*(?:is currently only supported on|is not supported on|only supported on)",
            ),
            *COMMON_CAUSES,
        ),
        unexpected(),
        *rules(
            _BAD,
            (
                "engine failed to start",
                r"EngineCore failed to start|RuntimeError: Engine core initialization failed"
                r"|RuntimeError: Engine process failed to start|WorkerProc failed to start"
                r"|WorkerProc initialization failed",
            ),
            (
                "engine died",
                r"EngineCore encountered a fatal error|AsyncLLM output_handler failed|EngineCore.* died"
                r"|Worker proc .* died unexpectedly|WorkerProc hit an exception"
                r"|(?:[\w.]+\.)?EngineDeadError",
            ),
        ),
    ),
    benign=(
        *rules(
            _ANY,
            ("limit of open files", r"Found ulimit of "),
            ("Triton is not installed", r"(?:Triton is not installed|Triton not available)"),
            ("one request was refused" + AND_TRACEBACK, r"Exception caught\. Request id: "),
            (
                "one request failed" + AND_TRACEBACK,
                r"Request \S+ failed with |Failing \d+ request\(s\)|NIXL transfer failure: |Error in preprocessing"
                r"|Error in applying chat template",
            ),
            ("deprecation", r".*\bdeprecated\b"),
            ("fallback to a slower kernel", r"Failed to create oneDNN linear"),
            ("shutdown", r"\[shutdown\] "),
            ("development endpoints", r"SECURITY WARNING: Development endpoints"),
        ),
        *rules(_PROCESS, *COMMON_NOISE),
        *rules("", ("native library's note", r"\[?[EWI]\d{4} \d\d:\d\d:\d\d")),
    ),
    detect=re.compile(
        r"^\((?:APIServer|EngineCore|Vllm\w*|Worker)[\w\-=, ]* pid=\d+\)|vLLM API server|V\d LLM engine"
        r"|^usage: vllm|^vllm(?: \w+)?: error:|^usage: api_server\.py \[-h\] \[--headless|/vllm/\w+/"
        r"|^(?:INFO|WARNING|ERROR) \d\d-\d\d \d\d:\d\d:\d\d \[(?:api_server|async_llm|core|core_client|"
        r"gpu_model_runner|gpu_worker|kv_cache_utils|loggers|launcher|default_loader)\.py:"
    ),
    timestamp=re.compile(rf"^{_PROCESS}(?:[A-Z]+ (?P<ts>\d\d-\d\d \d\d:\d\d:\d\d) \[[^\]\s]+:\d+\] ?)?"),
)
