"""How to read the log of llama.cpp's server, embedded or `llama-server`, in old and new line formats."""

import re

from harness.engines.grammar import LogGrammar
from harness.engines.log_rules import (
    COMMON_CAUSES,
    COMMON_NOISE,
    PORT_IN_USE,
    STOPPING,
    rules,
    unexpected,
)

# `0.00.558.297 I srv          init: message`: minutes.seconds.milliseconds.microseconds since the start,
# level, component, function. Older builds print `srv  load_model: message` or `llama_kv_cache: message`.
_STAMP = r"(?:\d+\.\d\d\.\d{3}\.\d{3} [IWEDT] )?"
_PLACE = r"(?:(?:\w+ +)?[\w()~]+: +)?(?:\w+: )?"
_ANY = _STAMP + _PLACE
_ERROR = rf"(?:\d+\.\d\d\.\d{{3}}\.\d{{3}} E )?{_PLACE}"

# A prompt that had been moved to the host's prompt cache is taken back into a slot.
HOST_LOAD = re.compile(r"load:\s+- found better prompt")

GRAMMAR = LogGrammar(
    ready=re.compile(rf"^{_ANY}(?:(?:server is )?listening on http|all slots are idle)"),
    phases=rules(
        _ANY,
        ("args", r"build_info: ", r"build: \d+ \(", r"system[_ ]info: "),
        ("loading", r"loading model$", r"loading model '"),
        ("tensors", r"loading model tensors"),
        ("kv-cache", r"size = .* cells"),
        ("warmup", r"warming up the model"),
        ("loaded", r"model loaded"),
        ("listening", r"(?:server is )?listening on http", r"HTTP server is listening"),
        (STOPPING, r"[Rr]eceived (?:second )?(?:interrupt|SIG)"),
    ),
    progress=re.compile(r"^\.{2,}$|load_tensors: |fitting params|warming up|sched_reserve: reserving"),
    fatal=(
        *rules(
            _ERROR,
            ("unknown flag", r"(?:error: )?invalid argument: ", r"(?:error: )?unknown argument"),
            (
                "bad flag or flag value",
                r"error while handling argument ",
                r"(?:error: )?expected value for argument",
            ),
            (PORT_IN_USE, r"couldn't bind (?:HTTP )?(?:server )?socket"),
            ("model file not found", r"failed to open GGUF file ", r"failed to open \S+\.gguf"),
            (
                "model file damaged or not a GGUF",
                r"invalid magic characters",
                r"failed to read (?:magic|header|key|tensor|version)",
                r"key '[\w.]+' has invalid GGUF type",
                r"error loading model: .*(?:data is not within the file bounds|model is corrupted)",
                r"error loading model: .*(?:key not found in model|missing tensor|wrong (?:number|shape))",
            ),
            ("model architecture not supported", r"error loading model: .*unknown model architecture"),
            (
                "GPU out of memory",
                r"allocating [\d.]+ MiB on device \d+: cudaMalloc failed",
                r"(?:ggml_vulkan: )?Device memory allocation .* failed",
                r"error loading model: unable to allocate (?:CUDA|ROCm|Vulkan|Metal)",
            ),
            (
                "host out of memory",
                r"insufficient memory \(attempted to allocate",
                r"failed to allocate ",
                r"error loading model: unable to allocate ",
                r"failed to initialize the context: failed to allocate",
            ),
            *COMMON_CAUSES,
            ("assertion failed inside llama.cpp", r"\S*: ?GGML_ASSERT\("),
        ),
        unexpected(),
        *rules(
            _ERROR,
            (
                "context could not be created",
                r"failed to (?:create|initialize)[ _](?:the )?context",
            ),
            (
                "model failed to load",
                r"error loading model: ",
                r"failed to load model",
                r"exiting due to model",
            ),
            (
                "server could not start",
                r"exiting due to ",
                r"(?:error: )?Failed to init server",
            ),
        ),
    ),
    benign=rules(
        _ANY,
        ("security note", r"security: "),
        ("context differs from the model's", r"n_ctx_\w+ \(\d+\) [<>] n_ctx_train"),
        (
            "prompt fully cached",
            r"id +\d+ \| task \d+ \| (?:need to evaluate at least 1 token|n_past was set to )",
        ),
        ("fitting to memory failed", r"encountered an error while trying to fit params"),
        *COMMON_NOISE,
    ),
    detect=re.compile(
        r"^\d+\.\d\d\.\d{3}\.\d{3} [IWEDT] |^(?:llama_\w+|ggml_\w+|gguf_\w+|print_info|load_tensors|main): "
        r"|^build: \d+ \(|^(?:srv|slot|que) +\w+: |GGML_ASSERT|^error: (?:invalid|unknown) argument"
        r"|^error while handling argument|^error: Failed to init server"
    ),
    timestamp=re.compile(r"^(?:(?P<ts>\d+\.\d\d\.\d{3}\.\d{3}) [IWEDT] )?"),
)
