"""The configuration that a running SGLang resolved: from `/server_info`, and of its KV pool from its log."""

import re
from pathlib import Path
from typing import Any

from harness.engines.answers import flatten, without
from harness.scenario.model import Scalar

# Entries of /server_info with one stable name over all engines.
RENAMED = {
    "model_path": "model",
    "tokenizer_path": "tokenizer",
    "kv_cache_dtype": "kv_dtype",
    "max_total_num_tokens": "kv_tokens",
}
# Entries that differ between two starts of one server, name its place on this machine, or follow from others.
LEFT_OUT = (
    "host",
    "port",
    "*_port",
    "*_ports",
    "dist_init_addr",
    "launch_command",
    "status",
    "startup_time*",
    "internal_states",
    "memory_usage*",
    "*_memory_gb",
    "last_gen_throughput",
    "avg_spec_accept_length",
    "max_req_input_len",  # the smaller of max_length and kv_tokens, less a few
    "*api_key",
    "*_ipc_name",
    "crash_dump_folder",
    "download_dir",
    "export_metrics_to_file_dir",
)
ALLOCATED = re.compile(r"KV Cache is allocated\. dtype: (?:torch\.)?(\w+)")
ALLOCATED_WITHIN = 100_000  # lines; it is said while the server starts
# The pool's dtype in the words of --kv-cache-dtype. Others (uint8) are containers that do not tell.
POOL_DTYPE = {
    "bfloat16": "bfloat16",
    "float16": "float16",
    "float32": "float32",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
}


def comparable(answer: Any) -> dict[str, Scalar | None]:
    """Flat. The scheduler's own copy is laid over the launcher's: it resolves some values later."""
    states = answer.get("internal_states") or [{}]
    flat = without(flatten({**answer, **states[0]}), LEFT_OUT)
    config = {RENAMED.get(name, name): value for name, value in flat.items()}
    config["kv_tokens"] = answer["max_total_num_tokens"]
    return config


def kv_dtype(resolved: str, log: Path) -> str:
    """What the pool was allocated as, for `auto` is never resolved in the answer, and a log cannot be wrong
    about what was done; but some formats are kept in a container whose dtype does not tell them."""
    allocated = _allocated(log)
    if allocated in POOL_DTYPE:
        return POOL_DTYPE[allocated]
    return allocated if resolved == "auto" and allocated else resolved


def _allocated(log: Path) -> str:
    try:
        with log.open(encoding="utf-8", errors="replace") as lines:
            for _, line in zip(range(ALLOCATED_WITHIN), lines, strict=False):
                if match := ALLOCATED.search(line):
                    return match[1]
    except OSError:  # judged without a log: the answer has to do
        return ""
    return ""
