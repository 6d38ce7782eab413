"""What the engines' log grammars share: words that the log scanner understands, and causes common to servers
written in Python.

A fatal pattern is anchored to the start of the engine's own line. Words like "CUDA out of memory" inside a
logged prompt, a model's answer or an access line therefore never look like the server's own failure.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from harness.engines.grammar import LogRule

# Phase: a stop was asked for. What dies afterwards dies because of it.
STOPPING = "stopping"
# Cause: whatever the log says about being ready, somebody else's server answers on that port.
PORT_IN_USE = "port already in use"
PD_DIFFER = "P/D nodes differ in max_req_total_len"
# Cause: the last line of a traceback that no other rule knows. Its place in `fatal` is its rank; the rules
# after it name consequences ("a child failed"), which tell less than any exception.
UNEXPECTED = "unexpected exception"
# A benign rule with this at the end of its label covers the traceback that follows its line as well.
AND_TRACEBACK = " (with its traceback)"

_EXCEPTION = r"(?:[A-Za-z_]\w*\.)*\w*(?:Error|Exception|Failure|Interrupt|Exit|OfflineModeIsEnabled)\b"


@dataclass(frozen=True, slots=True)
class PrefixedRule(LogRule):
    """A rule that remembers of what its pattern was made."""

    prefix: str
    core: str


def rule(prefix: str, label: str, *alternatives: str) -> LogRule:
    """A rule whose pattern is one of `alternatives`, at the start of a line, after `prefix`."""
    core = "|".join(alternatives)
    return PrefixedRule(label, rf"^(?:{prefix})(?:{core})", prefix, core)


def rules(prefix: str, *table: tuple[str, ...]) -> tuple[LogRule, ...]:
    """Rules from rows of a label and its alternatives; see `rule`."""
    return tuple(rule(prefix, *row) for row in table)


def any_of(every: Iterable[LogRule], *more: re.Pattern[str]) -> re.Pattern[str]:
    """One pattern that says whether any of these matches. Most lines match nothing and should cost little, so
    that rules of one prefix share one copy of it."""
    cores: dict[str, list[str]] = {}
    for each in every:
        prefix, core = (each.prefix, each.core) if isinstance(each, PrefixedRule) else ("", each.text)
        cores.setdefault(prefix, []).append(core)
    cores.setdefault("", []).extend(pattern.pattern for pattern in more)
    return re.compile("|".join(rf"^(?:{prefix})(?:{'|'.join(found)})" for prefix, found in cores.items()))


def raised(*texts: str) -> str:
    """Pattern of a traceback's last line: any exception whose name or message has one of `texts`."""
    return rf"(?={_EXCEPTION}).*(?:{'|'.join(texts)})"


def unexpected() -> LogRule:
    """The rule of last resort: any line that can end a traceback. It means something only there."""
    suffix = r"(?:[Ee]rror|Exception|Failure|Interrupt|Exit|Iteration|Warning|[Tt]imeout|Group|Fault|Killed)"
    return LogRule(UNEXPECTED, rf"^(?:(?:\w+\.)+[A-Z]*[a-z]\w*|\w*{suffix})(?::\s|:?$)")


# Rows of (cause, pattern, …) in order of what tells most. An engine puts its own rows around these.
COMMON_CAUSES: tuple[tuple[str, ...], ...] = (
    ("unknown flag", r"[^:\[]{1,80}: error: unrecognized arguments"),
    (
        "bad flag or flag value",
        r"[^:\[]{1,80}: error: (?:argument |ambiguous option|the following arguments are required)",
    ),
    (
        "GPU out of memory",
        raised(
            r"OutOfMemoryError",
            r"(?:CUDA|HIP) out of memory",
            r"CUDA error: out of memory",
            r"CUBLAS_STATUS_ALLOC_FAILED",
        ),
    ),
    (
        "host out of memory",
        r"MemoryError\b",
        raised(r"DefaultCPUAllocator: ", r"Cannot allocate memory"),
        r"Out of memory: Killed process",
    ),
    ("shared memory too small", raised(r"No space left on device: '?/dev/shm", r"Bus error")),
    ("disk full", raised(r"No space left on device")),
    (
        PORT_IN_USE,
        r"(?:ERROR:\s+)?\[Errno 98\]",
        raised(r"\[Errno 98\]", r"[Aa]ddress already in use", r"EADDRINUSE"),
    ),
    (
        "model directory not found",
        raised(
            r"Repo id must",
            r"is not a local folder and is not a valid",
            r"Repository Not Found",
            r"Invalid repository ID or local directory",
            r"Can't load (?:the configuration of|tokenizer for|feature extractor for)",
            r"does not appear to have a file named",
            r"Unrecognized model in",
            r"couldn't connect to '?http",
            r"(?:LocalEntryNotFound|OfflineModeIsEnabled|RepositoryNotFound)",
            r"No such file or directory: \S*(?:config\.json|tokenizer|model)",
        ),
    ),
    (
        "model files damaged or incomplete",
        raised(
            r"SafetensorError",
            r"HeaderTooLarge",
            r"MetadataIncompleteBuffer",
            r"PytorchStreamReader failed",
            r"size mismatch for ",
        ),
    ),
    (
        "model architecture not supported",
        raised(
            r"[Mm]odel architectures? .* (?:are|is) not supported", r"does not recognize this architecture"
        ),
    ),
    (
        "no usable CUDA on this host",
        raised(
            r"Torch not compiled with CUDA",
            r"Found no NVIDIA driver",
            r"No CUDA GPUs are available",
            r"no kernel image is available",
            r"libcuda\.so",
            r"CUDA driver version is insufficient",
            r"Failed to infer device type",
        ),
    ),
    (
        "feature not supported on this host",
        r"(?:\w+\.)*NotImplementedError\b",
        raised(
            r"(?:is|are) (?:currently )?only supported on",
            r"is not supported on (?:CPU|this|the)",
            r"(?:requires?|needs) (?:Intel AMX|x86|Hopper|Blackwell|SM ?\d|compute capability)",
        ),
    ),
    (
        "Python package missing or broken",
        r"(?:\w+\.)*(?:ModuleNotFoundError|ImportError|PackageNotFoundError)\b",
    ),
    ("CUDA error", r"CUDA error: ", raised(r"CUDA error: ")),
    ("killed by signal", r"Killed$"),
    (
        "NCCL failure",
        raised(r"NCCL error", r"nccl\w+Error"),
        r"\[?[EF]\d{4} [\d:.]+ +(?:\d+ )?ProcessGroupNCCL\.cpp:\d+\] ",
    ),
    (
        "native crash",
        r"Fatal Python error: ",
        r"(?:Segmentation fault|Aborted|Illegal instruction|Bus error)\b(?: \(core dumped\))?$",
        r"terminate called (?:after throwing|without)",
        r"(?:free|malloc|munmap_chunk|realloc)\(\): ",
        r"double free or corruption",
        r"\*\*\* SIG[A-Z]+ received",
        r"!+ Segfault encountered",
    ),
)

# Rows of noise of any Python server. A traceback that belongs to one request is not the server's failure.
COMMON_NOISE: tuple[tuple[str, ...], ...] = (
    (
        "leaked objects named at exit",
        r".*resource_tracker: There appear to be \d+ leaked",
        r"nanobind: leaked ",
    ),
    ("Python warning", r"\S+:\d+: \w*Warning: "),
    ("one request failed" + AND_TRACEBACK, r"ERROR:\s+Exception in ASGI application"),
    ("interrupted by hand", r"KeyboardInterrupt$"),
    (
        "Python's own clean-up" + AND_TRACEBACK,
        r"Exception ignored (?:in|while)\b",
        r"Error in atexit\._run_exitfuncs:",
        r"--- Logging error ---",
    ),
    ("not an HTTP/1.1 request", r"WARNING:\s+Invalid HTTP request received"),
    ("native library's note", r"\[?[EWI]\d{4} \d\d:\d\d:\d\d(?!.*ProcessGroupNCCL)"),
)
