"""The configuration that a running LightLLM resolved: from `/get_server_info`, else from its log."""

import ast
import json
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from harness.engines.answers import flatten, without
from harness.engines.client import Client, RequestFailed
from harness.engines.lightllm.rules import is_hybrid
from harness.host.logs import clean
from harness.scenario.model import Scalar

# Arguments with one stable name over all engines.
RENAMED = {"model_dir": "model", "llm_kv_type": "kv_dtype", "data_type": "dtype"}
# What differs between two starts of one server, names its place on this machine, or follows from others.
LEFT_OUT = (
    "host",
    "port",
    "*_port",
    "*_ports",
    "*_rpyc_ports",
    "pd_master_ip",
    "nccl_host",
    "config_server_host",
    "*_shm_id",
    "*_node_id",
    "zmq_mode",
    "disk_cache_dir",
    "afs_image_embed_dir",
    "max_total_token_num",  # kv_tokens says it, also where it was profiled
)
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
LOG_LINES = 200_000  # all of this is said while the server starts
ARGS_LINES = 1000  # of one logged argument list, however it is laid out
_STAMP = r"(?:[A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d \[[^\]\s]+:\d+\] )"
_PREFIX = re.compile(rf"^{_STAMP}")
_ARGS = re.compile(rf"^{_STAMP}?all start args:\s*(?P<args>.*)")
# What the log says was done, by the name it gets.
_SAID = {
    "kv_tokens": re.compile(rf"^{_STAMP}set shm_max_total_token_num value to (\d+)"),
    "cpu_tokens": re.compile(rf"^{_STAMP}cache placement capacities in tokens: .*\bcpu=(\d+)"),
    "kv_type": re.compile(rf"^{_STAMP}mode setting params: (\S+)"),
    "mem_manager": re.compile(rf"^{_STAMP}Model kv cache using (?:default, )?mem_manager class: (.*)"),
    "prefill_att_backend": re.compile(rf"^{_STAMP}use prefill att backend: (\w+)"),
    "decode_att_backend": re.compile(rf"^{_STAMP}use decode att backend: (\w+)"),
}


def comparable(answer: Mapping[str, Any], said: Mapping[str, str]) -> dict[str, Scalar | None]:
    """The resolved arguments under their own names, with those of RENAMED, the sizes of the caches, and what
    the log says of the KV cache; `hybrid`: whether a request has a state besides. `answer` is what
    `/get_server_info` or the log has, `said` what `log_says` found."""
    flat = {RENAMED.get(name, name): value for name, value in without(flatten(answer), LEFT_OUT).items()}
    dtype = answer["data_type"]  # a P/D master has none
    flat["dtype"] = DTYPES.get(dtype, dtype)
    flat["kv_dtype"] = _kv_dtype(answer, said) or flat["dtype"]
    flat["kv_tokens"] = int(said["kv_tokens"]) if "kv_tokens" in said else answer.get("max_total_token_num")
    flat["cpu_tokens"] = _cpu_tokens(answer, said)
    hybrid = is_hybrid(str(answer["model_dir"]))
    flat["hybrid"] = hybrid
    flat["hit_unit"] = answer["linear_att_hash_page_size"] if hybrid else answer.get("page_size", 1)
    flat |= {name: said.get(name) for name in ("mem_manager", "prefill_att_backend", "decode_att_backend")}
    return flat


def log_says(log: Path) -> dict[str, str]:
    """What the log says of the KV cache, for each name of `_SAID` the last word; a class by its bare name."""
    said: dict[str, str] = {}
    for line in _lines(log):
        for name, pattern in _SAID.items():
            if match := pattern.match(line):
                said[name] = match[1].strip().removesuffix("'>").rpartition(".")[2]
    return said


def logged_arguments(log: Path) -> dict[str, Any] | None:
    """The arguments of the log line `all start args:`, for a LightLLM that has no `/get_server_info`. None
    without such a line that can be read. A call (`StartArgs(...)`, `Namespace(...)`), a dict or JSON."""
    lines = _lines(log)
    for line in lines:
        if match := _ARGS.match(line):
            text = match["args"]
            for more in islice(lines, ARGS_LINES):
                if (found := _parsed(text)) is not None:
                    return found
                text += "\n" + _PREFIX.sub("", more)
            return _parsed(text)
    return None


def server_info(client: Client) -> Any:
    """All resolved arguments; None from a LightLLM that does not tell them."""
    try:
        return client.get_json("/get_server_info", timeout_s=30)
    except RequestFailed as error:
        if error.status != 404:
            raise
        return None


def _parsed(text: str) -> dict[str, Any] | None:
    text = text.strip()
    if not text.endswith((")", "}")):
        return None
    try:
        answer = json.loads(text)
        return answer if isinstance(answer, dict) else None
    except ValueError:
        pass
    try:
        node = ast.parse(text, mode="eval").body
        if isinstance(node, ast.Call):
            return {word.arg: _literal(word.value) for word in node.keywords if word.arg}
        value = ast.literal_eval(node)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return value if isinstance(value, dict) else None


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:  # some object that could only be printed
        return ast.unparse(node)


def _kv_dtype(answer: Mapping[str, Any], said: Mapping[str, str]) -> str:
    """Empty for a cache in the computing dtype. What the log says was done cannot be wrong about it."""
    kind = said.get("kv_type", str(answer.get("llm_kv_type")))
    return "" if kind in ("None", "[]", "") else kind


def _cpu_tokens(answer: Mapping[str, Any], said: Mapping[str, str]) -> int | None:
    if not answer.get("enable_cpu_cache"):
        return 0
    return int(said["cpu_tokens"]) if "cpu_tokens" in said else None


def _lines(log: Path) -> Iterator[str]:
    try:
        with log.open(encoding="utf-8", errors="replace", newline="\n") as file:
            yield from (clean(line) for line in islice(file, LOG_LINES))
    except OSError:  # judged without a log: the answer has to do
        return
