"""What only the log of llama.cpp's server tells of its configuration: KV types, batches, caches."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from harness.scenario.model import Scalar

# A context is made for the model, then for its draft model; before both, perhaps, trial ones to fit memory.
CONTEXT: Mapping[str, re.Pattern[str]] = {
    "n_ctx": re.compile(r"llama_context: n_ctx +=\s*(\d+)"),
    "n_batch": re.compile(r"llama_context: n_batch +=\s*(\d+)"),
    "n_ubatch": re.compile(r"llama_context: n_ubatch +=\s*(\d+)"),
    "flash_attn": re.compile(r"llama_context: flash_attn +=\s*(\w+)"),
    "kv_unified": re.compile(r"llama_context: kv_unified +=\s*(\w+)"),
    "load_mode": re.compile(r"load_tensors: .*\(load_mode = ([\w+]+)\)"),
    "kv_dtype": re.compile(r"llama_kv_cache\w*: size = .*K \((\w+)\):.*V \((\w+)\):"),
}
SERVER: Mapping[str, re.Pattern[str]] = {
    "n_threads": re.compile(r"system_info: n_threads = (\d+)"),
    "n_threads_batch": re.compile(r"system_info: .*n_threads_batch = (\d+)"),
    "cpu_features": re.compile(r"system_info: [^|]*\| (.*?)\s*\|?\s*$"),
    "cache_ram": re.compile(r"prompt cache is (?:enabled, size limit: )?(.+?)(?: - use .*)?$"),
    "context_checkpoints": re.compile(r"context checkpoints enabled, max = (\d+)"),
    "draft.settings": re.compile(r"- (n_max=\d+, n_min=.+)$"),
}
SPECULATIVE = re.compile(
    r"adding speculative implementation '([\w-]+)'|(no) implementations? specified for spec"
)
DRAFT = "loading draft model"
READY = "listening on http"


def from_log(log: Path) -> dict[str, Scalar | None]:
    """The configuration as logged up to readiness; without what the log does not tell (a low verbosity)."""
    try:
        with log.open(encoding="utf-8", errors="replace") as lines:
            return _read(lines)
    except FileNotFoundError:
        return {}


def _read(lines: Iterable[str]) -> dict[str, Scalar | None]:
    found: dict[str, Scalar | None] = {}
    prefix = ""
    for line in lines:
        if DRAFT in line:
            prefix = "draft."
        if READY in line:
            break
        for name, pattern in CONTEXT.items():
            if match := pattern.search(line):
                found[prefix + name] = _value(match)
        for name, pattern in SERVER.items():
            if match := pattern.search(line):
                found[name] = _value(match)
        if match := SPECULATIVE.search(line):
            former = f"{found['speculative']}," if "speculative" in found else ""
            found["speculative"] = former + (match[1] or "none")
    return found


def _value(match: re.Match[str]) -> Scalar:
    """Numbers and truth values as such; K and V types as one word where they are the same."""
    text = "/".join(dict.fromkeys(match.groups()))
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.isdigit() else text
