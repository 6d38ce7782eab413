"""How to read the log of llama.cpp's server, embedded or `llama-server`, old and new line formats."""

import re

from harness.engines.base import LogGrammar
from harness.engines.log_rules import COMMON_CAUSES, COMMON_NOISE, PORT_IN_USE, STOPPING, rules, unexpected

# `0.00.558.297 I srv          init: message`: minutes.seconds.milliseconds.microseconds since the start, level,
# component, function. Older builds print the function alone: `srv  load_model: message`.
_STAMP = r"(?:\d+\.\d\d\.\d{3}\.\d{3} )?"
_ANY = rf"{_STAMP}(?:[IWEDT] )?(?:(?:\w+ +)?[\w()~]+: +)?(?:\w+: )?"

GRAMMAR = LogGrammar(
    ready=re.compile(rf"^{_ANY}(?:server is listening on http|listening on http|all slots are idle)"),
    phases=rules(
        _ANY,
        ("args", r"build_info: |build: \d+ \(|system_info: |system info: "),
        ("loading", r"loading model"),
        ("tensors", r"loading model tensors"),
        ("kv-cache", r"size = .*cells"),
        ("warmup", r"warming up the model"),
        ("loaded", r"model loaded"),
        ("listening", r"(?:server is )?listening on http|HTTP server is listening"),
        (STOPPING, r"cleaning up before exit|Received (?:second )?interrupt"),
    ),
    progress=re.compile(r"^\.+$|load_tensors: |fitting params|warming up|graph_reserve|sched_reserve"),
    fatal=(
        *rules(
            _ANY,
            ("unknown flag", r"(?:error: )?(?:invalid argument: |unknown argument)"),
            ("bad flag or flag value", r"error while handling argument|error: (?:argument|the argument)"),
            (PORT_IN_USE, r"couldn't bind (?:HTTP server|to server) socket"),
            (
                "model file not found",
                r"failed to open (?:GGUF file|model)|gguf_init_from_file: failed to open|.*No such file or directory",
            ),
            (
                "model file damaged or not a GGUF",
                r"invalid magic|.*(?:tensor data is not within|data is not within the file bounds|model is corrupted"
                r"|key not found in model|invalid GGUF|failed to read (?:magic|key|tensor|tensor info|header))",
            ),
            ("model architecture not supported", r".*unknown model architecture"),
            (
                "GPU out of memory",
                r".*(?:cudaMalloc failed|CUDA error: out of memory|ErrorOutOfDeviceMemory)",
            ),
            ("host out of memory", r".*(?:failed to allocate|unable to allocate|std::bad_alloc)"),
            *COMMON_CAUSES,
            ("CUDA error", r"(?:ggml_cuda_error|CUDA error)"),
            ("assertion failed inside llama.cpp", r".*GGML_ASSERT\("),
        ),
        unexpected(),
        *rules(
            _ANY,
            ("context could not be created", r"failed to (?:create|initialize) (?:the )?context"),
            (
                "model failed to load",
                r"(?:failed|error|unable) (?:to )?load(?:ing)? (?:the )?model|exiting due to",
            ),
        ),
    ),
    benign=rules(
        _ANY,
        ("security note", r"security: "),
        ("context smaller than the model's", r"n_ctx_\w+ \(\d+\) < n_ctx_train"),
        ("prompt fully cached", r".*need to evaluate at least 1 token|.*n_past was set to "),
        *COMMON_NOISE,
    ),
    detect=re.compile(
        r"^\d+\.\d\d\.\d{3}\.\d{3} [IWEDT] |^llama_\w+|^ggml_\w+|^print_info: |^load_tensors: |^build: \d+ \("
        r"|^srv  |^slot |^main: |GGML_ASSERT|^error: (?:invalid argument|unknown argument)|gguf_init"
    ),
    timestamp=re.compile(r"^(?:(?P<ts>\d+\.\d\d\.\d{3}\.\d{3}) [IWEDT] )?"),
)
