"""What the engines' log grammars share: words that the log scanner understands, and causes common to servers
written in Python.

A fatal pattern is anchored to the start of the engine's own line. Words like "CUDA out of memory" inside a
logged prompt, a model's answer or an access line therefore never look like the server's own failure.
"""

import re

from harness.engines.base import LogRule

# Phase: a stop was asked for. What dies afterwards dies because of it.
STOPPING = "stopping"
# Cause: whatever the log says about being ready, somebody else's server answers on that port.
PORT_IN_USE = "port already in use"
# Cause: the last line of a traceback that no other rule knows. Its place in `fatal` is its rank; the rules
# after it name consequences ("a child failed"), which tell less than any exception.
UNEXPECTED = "unexpected exception"
# A benign rule with this at the end of its label covers the traceback that follows its line as well.
AND_TRACEBACK = " (with its traceback)"

EXCEPTION = r"(?:[A-Za-z_]\w*\.)*\w*(?:Error|Exception|Failure|Interrupt|Exit)(?:: |$)"

# (cause, pattern after the line's prefix), most telling first.
_USAGE = (
    ("unknown flag", r"[^:\[]{1,80}: error: unrecognized arguments"),
    (
        "bad flag or flag value",
        r"[^:\[]{1,80}: error: (?:argument |ambiguous option|the following arguments are required|.*invalid)",
    ),
)
_MEMORY = (
    (
        "GPU out of memory",
        rf"(?:torch\.(?:cuda\.)?OutOfMemoryError|{EXCEPTION}.*(?:(?:CUDA|HIP) out of memory"
        r"|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED))",
    ),
    (
        "host out of memory",
        rf"(?:MemoryError\b|{EXCEPTION}.*(?:DefaultCPUAllocator: (?:can't|not enough)|Cannot allocate memory)"
        r"|Out of memory: Killed process)",
    ),
    ("shared memory too small", rf"{EXCEPTION}.*No space left on device: '?/dev/shm|.*Bus error"),
    ("disk full", rf"{EXCEPTION}.*No space left on device"),
)
_PORT = (
    (
        PORT_IN_USE,
        rf"(?:(?:ERROR:\s+)?\[Errno 98\]|{EXCEPTION}.*(?:\[Errno 98\]|[Aa]ddress already in use|EADDRINUSE"
        r"|port \d+ has been used))",
    ),
)
_MODEL = (
    (
        "model directory not found",
        rf"{EXCEPTION}.*(?:Repo id must be|[Rr]epo id must use|is not a local folder and is not a valid"
        r"|Repository Not Found|Can't load the configuration of|does not appear to have a file named"
        r"|Unrecognized model in|Invalid repository ID or local directory"
        r"|Incorrect path_or_model_id|couldn't connect to .* to load th)"
        r"|.*(?:FileNotFoundError|NotADirectoryError): .*(?:config\.json|model|tokenizer)"
        r"|(?:huggingface_hub\.\S*)?(?:LocalEntryNotFoundError|OfflineModeIsEnabled|RepositoryNotFoundError)",
    ),
    (
        "model files damaged or incomplete",
        rf"(?:safetensors_rust\.|{EXCEPTION}.*(?:SafetensorError|HeaderTooLarge|MetadataIncompleteBuffer"
        r"|PytorchStreamReader failed|size mismatch for ))",
    ),
    (
        "model architecture not supported",
        rf"{EXCEPTION}.*(?:[Mm]odel architectures? .* (?:are|is) not supported|does not recognize this "
        r"architecture)",
    ),
)
_CUDA = (
    (
        "CUDA missing on this host",
        rf"{EXCEPTION}.*(?:Torch not compiled with CUDA|Found no NVIDIA driver|No CUDA GPUs are available"
        r"|no kernel image is available|libcuda\.so|CUDA driver version is insufficient"
        r"|Failed to infer device type)",
    ),
    (
        "Python package missing or broken",
        r"(?:ModuleNotFoundError|ImportError|importlib\.metadata\.PackageNotFoundError): ",
    ),
    (
        "CUDA error",
        rf"{EXCEPTION}.*CUDA error: |CUDA error: |.*CUDA kernel errors might be asynchronously reported",
    ),
)
_DEATHS = (
    ("killed by signal", r"(?:Killed$|.*\bexit ?code:? ?-9\b|.*\bexitcode=-9\b)"),
    (
        "NCCL failure",
        rf"{EXCEPTION}.*(?:NCCL error|nccl\w*Error)|.*\[?ProcessGroupNCCL\S*.*(?:timed? ?out|Watchdog caught)",
    ),
    (
        "native crash",
        r"(?:Fatal Python error: |Segmentation fault|Aborted \(core dumped\)|.*\(core dumped\)"
        r"|terminate called after throwing|free\(\): |malloc\(\): |double free or corruption"
        r"|\*\*\* SIG\w+ received|!+ Segfault encountered)",
    ),
)

# In order of what tells most. An engine puts its own rules around these.
COMMON_CAUSES = (*_USAGE, *_MEMORY, *_PORT, *_MODEL, *_CUDA, *_DEATHS)

# Noise of any Python server; the tracebacks that belong to one request are not the server's failure.
COMMON_NOISE = (
    ("leaked objects named at exit", r".*resource_tracker: There appear to be \d+ leaked|nanobind: leaked "),
    ("Python warning", r".*: (?:User|Future|Deprecation|Runtime|Resource|Pending\w*)Warning: "),
    ("one request failed" + AND_TRACEBACK, r"(?:\S+ )*ERROR:\s+Exception in ASGI application"),
    ("HTTP client spoke no HTTP/1.1", r".*WARNING:\s+Invalid HTTP request received"),
)


def rules(prefix: str, *pairs: tuple[str, str]) -> tuple[LogRule, ...]:
    """Rules from (label, pattern) pairs; each pattern must match at the start of a line, after `prefix`."""
    return tuple(LogRule(label, re.compile(rf"^(?:{prefix})(?:{pattern})")) for label, pattern in pairs)


def unexpected() -> LogRule:
    """The rule of last resort; the scanner asks it only about the last line of a traceback."""
    return LogRule(UNEXPECTED, re.compile(r"^[A-Za-z_][\w.]*(?:: .*|:?\s*)$"))
