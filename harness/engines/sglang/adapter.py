"""SGLang: the real server, on GPUs or (with the CPU lab) on a CPU."""

import os
import secrets
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from harness.engines.answers import reading
from harness.engines.arguments import ArgumentList
from harness.engines.base import (
    GenerateRequest,
    Generation,
    KvCapacity,
    Launch,
    LogFacts,
    NoTraces,
    Pausing,
    ServedModel,
    Told,
    TransferTotals,
)
from harness.engines.cache_sizes import filling, number, whole_units
from harness.engines.client import Client
from harness.engines.environment import server_environment
from harness.engines.flags import given, render
from harness.engines.metrics import scrape
from harness.engines.python_engine import ONE_PLACE, PLAIN_HTTP, PythonEngine
from harness.engines.sglang.answers import generation
from harness.engines.sglang.config import comparable, kv_dtype
from harness.engines.sglang.log import GRAMMAR, RETRACTION
from harness.engines.sglang.transfers import MIB, transfers
from harness.engines.sizes import product, told
from harness.scenario.model import FlagValue, Scalar

PACKAGE = PythonEngine(
    name="sglang",
    distributions=("sglang",),
    remedy="`make lab-sglang` builds one that runs on a CPU",
    owned=(
        *("--model-path", "--served-model-name", "--host", "--port", "--nccl-port", "--dist-init-addr"),
        *("--disaggregation-mode", "--disaggregation-bootstrap-port"),
    ),
    refused={
        "--config": ONE_PLACE,
        **dict.fromkeys(("--api-key", "--ssl-keyfile", "--ssl-certfile"), PLAIN_HTTP),
    },
    fakes=("SGLANG_SIMULATE_", "SGLANG_TEST_", "SGLANG_KV_CANARY_PERTURB_", "SGLANG_DIAG_BYPASS_"),
    forcing=("SGLANG_TEST_RETRACT",),  # makes real retractions happen, fakes nothing
)
NODES = ("prefill", "decode")
TRANSFER = "--disaggregation-transfer-backend"
TP, PP, DP = (
    ("--tp-size", "--tensor-parallel-size"),
    ("--pp-size", "--pipeline-parallel-size"),
    ("--dp-size", "--data-parallel-size"),
)
# With these the GPUs are not simply as many as ranks.
SPREAD = ("--nnodes", "--base-gpu-id", "--gpu-id-step", "--dwdp-size")
KEPT = 2  # tokens of the context and of the pool that no request is given
# Drafters that read hidden states: the prefix tree then keeps pairs of tokens, one fewer than tokens.
PAIRING = frozenset({"EAGLE", "EAGLE3", "NEXTN", "FROZEN_KV_MTP"})
DISTRIBUTED = 7  # data-parallel attention: the rendezvous and the six ports behind it


class Sglang:
    """`python -m sglang.launch_server`.

    `effective_config` is `/server_info`, that is SGLang's resolved arguments under their own names
    (`page_size`, `attention_backend`, `random_seed`, ...) as the scheduler uses them; and as `model`,
    `tokenizer`, `max_length`, `kv_dtype` (that of the pool it allocated, in the words of
    `--kv-cache-dtype`), `kv_tokens`. Give `--random-seed`: without it every start draws another one.

    `counters` needs `--enable-metrics`. Cached tokens of a request come with their tier.
    """

    name = "sglang"
    roles: tuple[str, ...] = ("normal", *NODES)
    grammar = GRAMMAR
    must_agree: Mapping[str, tuple[str, ...]] = {
        **dict.fromkeys(
            (
                *("version", "model", "dtype", "kv_dtype", "quantization", "page_size", "tp_size"),
                *("speculative_algorithm", "speculative_num_steps", "speculative_eagle_topk"),
                "speculative_num_draft_tokens",
            ),
            (*NODES, "normal"),
        ),
        **dict.fromkeys(("max_length", "disaggregation_transfer_backend"), NODES),
    }
    pausing: Pausing | None = Pausing(
        word="retraction",
        counter="sglang:num_retracted_requests_total",
        hint="a lower --schedule-conservativeness",
    )

    tells_ids = False

    def ports(self, role: str, flags: Mapping[str, FlagValue]) -> tuple[str, ...]:
        """HTTP and the rendezvous (`--nccl-port`). With data-parallel attention its processes talk TCP over
        a run of ports; plain data parallelism takes a free rendezvous per replica by itself. Decode nodes
        find a prefill node at its bootstrap port; further ports of the transfer are the kernel's choice."""
        own = ("bootstrap",) if role == "prefill" else ()
        if _attention_parallel(flags):
            return ("http", "nccl", *(f"dist_{n}" for n in range(DISTRIBUTED)), *own)
        return ("http", *own) if _replicated(flags) else ("http", "nccl", *own)

    def argv(self, launch: Launch) -> list[str]:
        command = [PACKAGE.interpreter(launch), "-m", "sglang.launch_server"]
        command += ["--model-path", launch.model_path, "--served-model-name", launch.served_name]
        command += ["--host", launch.host, "--port", str(launch.ports["http"])]
        if "nccl" in launch.ports:
            command += ["--nccl-port", str(launch.ports["nccl"])]
        if "dist_0" in launch.ports:
            command += ["--dist-init-addr", f"{launch.host}:{launch.ports['dist_0']}"]
        if launch.role in NODES:
            command += ["--disaggregation-mode", launch.role]
        if "bootstrap" in launch.ports:
            command += ["--disaggregation-bootstrap-port", str(launch.ports["bootstrap"])]
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
        found = PACKAGE.problems(launch, self.environment(launch))
        if given(launch.flags, TRANSFER) == "fake":
            found.append(f"{TRANSFER} fake moves nothing between the nodes; name a real one")
        return found

    def gpus_used(self, launch: Launch) -> Told | None:
        """Plain data parallelism multiplies them, that of attention divides the tensor-parallel ranks."""
        device = given(launch.flags, "--device")
        if device == "cpu":
            return Told(0, "--device cpu")
        on_cpu = {**os.environ, **launch.env}.get("SGLANG_USE_CPU_ENGINE") == "1"
        if (on_cpu and device is None) or device not in (None, "cuda"):
            return None
        if given(launch.flags, *SPREAD) is not None:
            return None
        return product(launch.flags, TP, PP, *([] if _attention_parallel(launch.flags) else [DP]))

    def limits(self, launch: Launch) -> tuple[Told, ...]:
        """Longer requests are refused, or their output is cut. Ranks that share out a context (DCP) hold more
        than one pool."""
        context = told(launch.flags, "--context-length", less=KEPT)
        if given(launch.flags, "--dcp-size", "--decode-context-parallel-size") not in (None, 1):
            return context
        return context + told(launch.flags, "--max-total-tokens", less=KEPT)

    def at_once(self, launch: Launch) -> tuple[Told, ...]:
        return told(launch.flags, "--max-running-requests")

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
            config = comparable(answer)
            config["max_length"] = models["data"][0].get("max_model_len")
            config["kv_dtype"] = kv_dtype(str(config["kv_dtype"]), log)
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
            return generation(answer, latency)

    def expected_hit(self, tokens: int, config: Mapping[str, Scalar | None]) -> int:
        """Whole pages; of the pairs of tokens, where the drafter is one of PAIRING."""
        paired = str(config.get("speculative_algorithm")).upper() in PAIRING
        return whole_units(tokens - paired, number(config, "page_size"))

    def expected_reload(self, tokens: int, config: Mapping[str, Scalar | None]) -> int:
        """Whole pages, of a server with HiCache."""
        return self.expected_hit(tokens, config) if config.get("enable_hierarchical_cache") else 0

    def evicting(self, tokens: int, config: Mapping[str, Scalar | None]) -> tuple[int, ...]:
        return filling(tokens, self.capacity(config).device)

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
        """Retractions, which name no request; and, with `--enable-request-time-stats-logging`, transfers of a
        prefill or decode node."""
        kept = list(lines)
        pauses = tuple(number for number, line in kept if RETRACTION.search(line))
        return LogFacts(pauses=pauses, transfers=transfers(kept))

    def joined(self, client: Client) -> frozenset[str]:
        """Nodes join a router, which has an adapter of its own."""
        del client
        return frozenset()

    def transferred(self, client: Client) -> TransferTotals | None:
        """A prefill node counts bytes, a decode node only its requests, those of warm-ups included."""
        found = self.counters(client)
        size, stage = "sglang:kv_transfer_total_mb", "sglang:per_stage_req_latency_seconds_count"
        sent = found.get(f"{size}_count")
        return TransferTotals(
            requests=found.get(f"{stage}{{stage=decode_transferred}}", 0.0) if sent is None else sent,
            size=None if sent is None else found[f"{size}_sum"] * MIB,
            failed=found.get("sglang:num_transfer_failed_reqs_total", 0.0)
            + found.get("sglang:num_bootstrap_failed_reqs_total", 0.0),
        )

    def traces(self, log: Path) -> NoTraces:
        """None: its leftovers are known only by having been seen in use."""
        del log
        return NoTraces()

    def counters(self, client: Client) -> dict[str, float]:
        """`sglang:cached_tokens_total{cache_source=host}`, `sglang:evicted_tokens_total{...}`,
        `sglang:num_retracted_requests_total`, ... A counter is absent until it first counts."""
        return scrape(self.name, client, remedy="give the server --enable-metrics")


def _attention_parallel(flags: Mapping[str, FlagValue]) -> bool:
    if given(flags, "--enable-dp-attention") is not None:
        return True
    return given(flags, "--attn-dp-size") not in (None, 1)


def _replicated(flags: Mapping[str, FlagValue]) -> bool:
    return given(flags, *DP) not in (None, 1)
