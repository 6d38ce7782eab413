"""SGLang: the real server, on GPUs or (with the CPU lab) on a CPU."""

import re
import secrets
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from harness.engines.answers import flatten, reading, without
from harness.engines.arguments import ArgumentList
from harness.engines.base import (
    AcceptCounters,
    CachedTokens,
    GenerateRequest,
    Generation,
    KvCapacity,
    Launch,
    LogFacts,
    ServedModel,
)
from harness.engines.cache_sizes import number, whole_units
from harness.engines.client import Client
from harness.engines.environment import server_environment
from harness.engines.flags import given, render
from harness.engines.metrics import scrape
from harness.engines.python_engine import ONE_PLACE, PLAIN_HTTP, PythonEngine
from harness.engines.sglang_log import GRAMMAR, RETRACTION
from harness.scenario.model import FlagValue, Scalar

PACKAGE = PythonEngine(
    name="sglang",
    distributions=("sglang",),
    remedy="`make lab-sglang` builds one that runs on a CPU",
    owned=("--model-path", "--served-model-name", "--host", "--port", "--nccl-port", "--dist-init-addr"),
    refused={
        "--config": ONE_PLACE,
        **dict.fromkeys(("--api-key", "--ssl-keyfile", "--ssl-certfile"), PLAIN_HTTP),
    },
    fakes=("SGLANG_SIMULATE_", "SGLANG_TEST_", "SGLANG_KV_CANARY_PERTURB_", "SGLANG_DIAG_BYPASS_"),
    forcing=("SGLANG_TEST_RETRACT",),  # makes real retractions happen, fakes nothing
)
DISTRIBUTED = 7  # data-parallel attention: the rendezvous and the six ports behind it

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
FINISH_REASONS = ("stop", "length", "abort")


class Sglang:
    """`python -m sglang.launch_server`.

    `effective_config` is `/server_info`, that is SGLang's resolved arguments under their own names
    (`page_size`, `attention_backend`, `random_seed`, ...) as the scheduler uses them; and as `model`,
    `tokenizer`, `max_length`, `kv_dtype` (that of the pool it allocated, in the words of
    `--kv-cache-dtype`), `kv_tokens`. Give `--random-seed`: without it every start draws another one.

    `counters` needs `--enable-metrics`. Cached tokens of a request come with their tier.
    """

    name = "sglang"
    roles: tuple[str, ...] = ("normal",)
    grammar = GRAMMAR

    def ports(self, role: str, flags: Mapping[str, FlagValue]) -> tuple[str, ...]:
        """HTTP and the rendezvous (`--nccl-port`). With data-parallel attention its processes talk TCP over
        a run of ports; plain data parallelism takes a free rendezvous per replica by itself."""
        del role
        if _attention_parallel(flags):
            return ("http", "nccl", *(f"dist_{n}" for n in range(DISTRIBUTED)))
        return ("http",) if _replicated(flags) else ("http", "nccl")

    def argv(self, launch: Launch) -> list[str]:
        command = [PACKAGE.interpreter(launch), "-m", "sglang.launch_server"]
        command += ["--model-path", launch.model_path, "--served-model-name", launch.served_name]
        command += ["--host", launch.host, "--port", str(launch.ports["http"])]
        if "nccl" in launch.ports:
            command += ["--nccl-port", str(launch.ports["nccl"])]
        if "dist_0" in launch.ports:
            command += ["--dist-init-addr", f"{launch.host}:{launch.ports['dist_0']}"]
        return command + render(launch.flags)

    def environment(self, launch: Launch) -> dict[str, str]:
        environment = {
            **server_environment(launch),
            # A dead scheduler keeps the port open for a minute while these dump; the log says enough.
            "SGLANG_PYSPY_DUMP_BEFORE_CRASH": "0",
            "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0",
        }
        if given(launch.flags, "--device") == "cpu":
            environment["SGLANG_USE_CPU_ENGINE"] = "1"
        return {**environment, **launch.env}

    def problems(self, launch: Launch) -> list[str]:
        return PACKAGE.problems(launch, self.environment(launch))

    def arguments(self, launch: Launch) -> ArgumentList:
        """What its command line accepts, and where that is known from. Raises ConfigError."""
        return PACKAGE.arguments(launch, self.environment(launch))

    def version(self, launch: Launch) -> str:
        return PACKAGE.version(launch) or "unknown"

    def served_model(self, client: Client) -> ServedModel:
        info = client.get_json("/model_info", timeout_s=10)
        models = client.get_json("/v1/models", timeout_s=10)
        with reading(self.name, client, "/model_info", info):
            length = models["data"][0].get("max_model_len")
            return ServedModel(name=info["served_model_name"], max_length=length, path=info["model_path"])

    def effective_config(self, client: Client, log: Path) -> dict[str, Scalar | None]:
        answer = client.get_json("/server_info", timeout_s=120)
        models = client.get_json("/v1/models", timeout_s=10)
        with reading(self.name, client, "/server_info", answer):
            config = _comparable(answer)
            config["max_length"] = models["data"][0].get("max_model_len")
            config["kv_dtype"] = _kv_dtype(str(config["kv_dtype"]), log)
        return config

    def generate(self, client: Client, request: GenerateRequest) -> Generation:
        """Through `/generate`. Token ids must be in the vocabulary: one beyond it kills the whole server."""
        sampling: dict[str, Any] = {
            "max_new_tokens": request.max_tokens,
            "min_new_tokens": request.min_tokens,
            "temperature": request.temperature,
            "ignore_eos": request.ignore_eos,
        }
        if request.stop:
            sampling["stop"] = list(request.stop)
        body: dict[str, Any] = {"sampling_params": sampling, "return_logprob": request.logprobs}
        if isinstance(request.prompt, str):
            body["text"] = request.prompt
        else:
            body["input_ids"] = list(request.prompt)
        if not request.use_cache:
            body["cache_salt"] = secrets.token_hex(8)  # nobody else's pages match
        if request.request_id:
            body["rid"] = request.request_id
        start = time.perf_counter()
        answer = client.post_json("/generate", body)
        latency = time.perf_counter() - start
        with reading(self.name, client, "/generate", answer):
            return _generation(answer, latency)

    def expected_hit(self, tokens: int, config: Mapping[str, Scalar | None]) -> int:
        """Whole pages."""
        return whole_units(tokens, number(config, "page_size"))

    def capacity(self, config: Mapping[str, Scalar | None]) -> KvCapacity:
        """The host's tier is told by a counter (`sglang:hicache_host_total_tokens`); the configuration says
        only whether it is on."""
        host = None if config.get("enable_hierarchical_cache") else 0
        return KvCapacity(device=number(config, "kv_tokens"), host=host)

    def tokenize(self, client: Client, text: str) -> tuple[int, ...] | None:
        """Not asked: the model's directory has the tokenizer."""
        del client, text
        return None

    def log_facts(self, lines: Iterable[tuple[int, str]]) -> LogFacts:
        """Retractions, which name no request."""
        return LogFacts(pauses=tuple(number for number, line in lines if RETRACTION.search(line)))

    def counters(self, client: Client) -> dict[str, float]:
        """`sglang:cached_tokens_total{cache_source=host}`, `sglang:evicted_tokens_total{...}`,
        `sglang:num_retracted_requests_total`, ... A counter is absent until it first counts."""
        return scrape(self.name, client, remedy="give the server --enable-metrics")


def _attention_parallel(flags: Mapping[str, FlagValue]) -> bool:
    if given(flags, "--enable-dp-attention") is not None:
        return True
    return given(flags, "--attn-dp-size") not in (None, 1)


def _replicated(flags: Mapping[str, FlagValue]) -> bool:
    return given(flags, "--dp-size", "--data-parallel-size") not in (None, 1)


def _comparable(answer: Any) -> dict[str, Scalar | None]:
    """The scheduler's own copy is laid over the launcher's: it resolves some values later."""
    states = answer.get("internal_states") or [{}]
    flat = without(flatten({**answer, **states[0]}), LEFT_OUT)
    config = {RENAMED.get(name, name): value for name, value in flat.items()}
    config["kv_tokens"] = answer["max_total_num_tokens"]
    return config


def _kv_dtype(resolved: str, log: Path) -> str:
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


def _generation(answer: Any, latency: float) -> Generation:
    meta = answer["meta_info"]
    finish = meta["finish_reason"]
    reason = finish["type"] if finish["type"] in FINISH_REASONS else "error"
    if reason == "abort" and finish.get("status_code"):
        reason = "error"
    tiers = meta.get("cached_tokens_details") or {}
    logprobs = meta.get("output_token_logprobs") or ()
    return Generation(
        text=answer["text"],
        ids=tuple(answer["output_ids"]),
        finish_reason=reason,
        prompt_tokens=meta["prompt_tokens"],
        completion_tokens=meta["completion_tokens"],
        cached=CachedTokens(
            total=meta.get("cached_tokens"),
            device=tiers.get("device"),
            host=tiers.get("host"),
            storage=tiers.get("storage"),
        ),
        accept=_accepted(meta),
        latency_s=latency,
        logprobs=tuple(entry[0] for entry in logprobs),
        raw=answer,
    )


def _accepted(meta: Any) -> AcceptCounters | None:
    if "spec_verify_ct" not in meta:
        return None
    return AcceptCounters(
        proposed=meta.get("spec_num_proposed_drafts"),
        accepted=meta.get("spec_num_correct_drafts"),
        steps=meta["spec_verify_ct"],
    )
