"""How to read vLLM's log (seen on 0.32; lines of older versions where they are known)."""

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

# `(EngineCore pid=31341) ERROR 11-30 10:31:06 [core.py:402] message`. What a child prints to stderr keeps
# only the first part, and uvicorn's lines may have none.
_PROCESS = r"(?:\([\w\-=, ]+ pid=\d+\) )?"
_STAMP = r"\d\d-\d\d \d\d:\d\d:\d\d \[[^\]\s]+:\d+\] ?"
_ANY = rf"{_PROCESS}(?:[A-Z]+ {_STAMP})?"
_WARNING = rf"{_PROCESS}WARNING {_STAMP}"
_ERROR = rf"{_PROCESS}(?:(?:ERROR|CRITICAL) {_STAMP})?"

GRAMMAR = LogGrammar(
    ready=re.compile(rf"^{_PROCESS}INFO:\s+Application startup complete\."),
    phases=rules(
        _ANY,
        ("args", r"non-default args: ", r"vLLM API server version"),
        ("engine", r"Initializing (?:a V\d|an) LLM engine"),
        ("loading", r"Starting to load model "),
        ("loaded", r"Loading weights took ", r"Model loading took "),
        ("compile", r"Dynamo bytecode transform time", r"Compiling a graph", r"torch\.compile takes"),
        ("kv-cache", r"(?:\w+ )?KV cache size: ", r"# \w+ blocks: "),
        ("graphs", r"Capturing (?:CUDA|cuda) graph", r"Graph capturing finished"),
        ("warmup", r"init engine \(profile, create kv cache, warmup model\) took"),
        ("listening", r"Starting vLLM (?:API )?server(?: \d+)? on http"),
        (STOPPING, r"\[shutdown\] API server: shutdown triggered", r"Received signal \d+"),
    ),
    progress=re.compile(r"\d+%(?:\||\s+Completed)|^Loading .* shards|Capturing CUDA|Compiling|Autotun"),
    fatal=(
        *rules(
            _ERROR,
            (
                "KV cache too small for max length",
                raised(
                    r"To serve at least one request with the model's max seq len",
                    r"No available memory for the cache blocks",
                    r"larger than the maximum number of tokens that can be stored in KV cache",
                ),
            ),
            ("max length beyond what the model allows", raised(r"User-specified max_model_len")),
            ("memory already taken", raised(r"(?:Free|Available) memory on .* is less than desired")),
            *COMMON_CAUSES,
            (
                "killed by signal",
                r"RuntimeError: Engine core initialization failed\..*: -9\b",
                r"(?:Worker|Engine core) proc \S+ died unexpectedly \(exit code: -9\)",
            ),
        ),
        unexpected(),
        *rules(
            _ERROR,
            ("worker process died", r"(?:Worker|Engine core) proc \S+ died unexpectedly"),
            (
                "engine failed to start",
                r"EngineCore failed to start",
                r"RuntimeError: Engine (?:core|process) (?:initialization failed|failed to start)",
                r"(?:Exception: )?(?:WorkerProc|Worker) (?:failed to start|initialization failed)",
            ),
            (
                "engine died",
                r"EngineCore encountered (?:a fatal error|an issue)",
                r"AsyncLLM output_handler failed",
                r"WorkerProc hit an exception",
                r"RuntimeError: (?:Worker failed with error|Executor failed)",
                r"(?:[\w.]+\.)?EngineDeadError",
            ),
        ),
    ),
    benign=(
        *rules(
            _WARNING,
            ("limit of open files", r"Found ulimit of "),
            ("no Triton", r"Triton is (?:not )?installed"),
            ("deprecation", r".*\bdeprecated\b"),
            ("slower kernel used instead", r"Failed to create oneDNN linear"),
            ("development endpoints", r"SECURITY WARNING: Development endpoints"),
        ),
        *rules(
            rf"{_PROCESS}ERROR {_STAMP}",
            ("one request was refused" + AND_TRACEBACK, r"Exception caught\. Request id: "),
            (
                "one request failed" + AND_TRACEBACK,
                r"Request \S+ failed ",
                r"Failing \d+ request\(s\)",
                r"NIXL transfer failure: ",
                r"Error in (?:preprocessing prompt|applying chat template)",
            ),
        ),
        *rules(_PROCESS, *COMMON_NOISE),
        *rules("", ("no Triton", r"W\d{4} .*Triton not available")),
    ),
    detect=re.compile(
        r"^\((?:APIServer|EngineCore|Vllm\w*|Worker)[\w\-=, ]* pid=\d+\)|vLLM API server"
        r"|Initializing a V\d LLM engine"
        r"|^usage: (?:vllm|api_server\.py \[-h\] \[--headless)|^vllm(?: \w+)?: error:"
        r"|/vllm/(?:v1|entrypoints)/"
        r"|^[A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d \[(?:api_server|async_llm|core|core_client|gpu_model_runner"
        r"|gpu_worker|kv_cache_utils|loggers|launcher|default_loader|weight_utils)\.py:"
    ),
    timestamp=re.compile(rf"^{_PROCESS}(?:[A-Z]+ (?P<ts>\d\d-\d\d \d\d:\d\d:\d\d) \[[^\]\s]+:\d+\] ?)?"),
)
