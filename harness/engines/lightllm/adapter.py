"""LightLLM: the real server on GPUs, alone or as one of the nodes of prefill/decode disaggregation."""

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from harness.engines.answers import reading, strange
from harness.engines.arguments import ArgumentList
from harness.engines.base import (
    GenerateRequest,
    Generation,
    KvCapacity,
    Launch,
    LogFacts,
    Pausing,
    ServedModel,
    Told,
    TransferTotals,
)
from harness.engines.cache_sizes import filling, number, whole_units
from harness.engines.client import Client, RequestFailed
from harness.engines.environment import LOOPBACK, server_environment
from harness.engines.flags import given, render
from harness.engines.lightllm.answers import generation, parameters
from harness.engines.lightllm.config import comparable, log_says, logged_arguments, server_info
from harness.engines.lightllm.facts import log_facts
from harness.engines.lightllm.log import GRAMMAR
from harness.engines.lightllm.nodes import MUST_AGREE, NODES, node_arguments, node_problems
from harness.engines.lightllm.package import PACKAGE
from harness.engines.lightllm.rules import SINCE, start_problems, too_new
from harness.engines.lightllm.traces import LightllmTraces, leftovers_of
from harness.engines.metrics import counters, parse
from harness.engines.sizes import product, told
from harness.errors import ConfigError, TargetError
from harness.scenario.model import FlagValue, Scalar

# Tokens. Fewer are computed, not copied from the CPU tier, although the log tells a hit.
LEAST_COPIED, LEAST_PROMPT = 128, 256
RESERVED = 36  # tokens of the KV cache that no request is given


class Lightllm:
    """`python -m lightllm.server.api_server`, installed or from a checkout on PYTHONPATH.

    `effective_config` has the resolved arguments under their own names (`page_size`, `tp`,
    `linear_att_hash_page_size`, `mtp_step`, `router_token_ratio`, ...); and `model`, `dtype`, `max_length`
    (what a request may have: the smaller of `max_req_total_len` and the KV cache), `kv_dtype` (`bfloat16`,
    `fp8kv_dsa`, ...), `kv_tokens` and `cpu_tokens` (capacity of the KV cache and of its CPU tier), `hit_unit`
    (tokens in whose multiples prompts are found in the cache); and from its log `mem_manager`,
    `prefill_att_backend` and `decode_att_backend`, which show what really runs.

    A master and its nodes are roles of one lane; `launch.peers` names the master's URL for the nodes, and
    `launch.host` of a node is an address of a network card. A master takes text prompts only.

    Cached tokens of a request are the sum over the tiers; the tiers themselves are only in the log.
    """

    name = "lightllm"
    roles: tuple[str, ...] = ("normal", "prefill", "decode", "master")
    grammar = GRAMMAR
    must_agree = MUST_AGREE
    pausing: Pausing | None = Pausing(
        word="pause",
        logs_requests=True,
        estimates=True,
        hint="--router_token_ratio 1.0, and LIGHTLLM_LOG_LEVEL=debug, without which no pause is logged",
    )

    tells_ids = False

    def ports(self, role: str, flags: Mapping[str, FlagValue]) -> tuple[str, ...]:
        """HTTP and the rendezvous of the GPU processes. LightLLM takes further ports by itself: any free one
        that the kernel gives, and 30000 to 30099 for the first GPU of a prefill or decode node, and so on."""
        del flags
        return ("http",) if role == "master" else ("http", "nccl")

    def argv(self, launch: Launch) -> list[str]:
        command = [PACKAGE.interpreter(launch), "-m", "lightllm.server.api_server"]
        command += ["--model_dir", launch.model_path, "--model_name", launch.served_name]
        command += ["--host", launch.host, "--port", str(launch.ports["http"])]
        if "nccl" in launch.ports:
            command += ["--nccl_port", str(launch.ports["nccl"])]
        return command + node_arguments(launch) + render(launch.flags)

    def environment(self, launch: Launch) -> dict[str, str]:
        environment = {
            **server_environment(launch),
            "LIGHTLLM_LOG_LEVEL": "debug",  # pauses are told at this level only
        }
        if launch.host not in LOOPBACK.split(","):  # its websockets obey proxies
            environment |= dict.fromkeys(("NO_PROXY", "no_proxy"), f"{LOOPBACK},{launch.host}")
        return {**environment, **launch.env}

    def problems(self, launch: Launch) -> list[str]:
        environment = self.environment(launch)
        try:
            arguments = PACKAGE.arguments(launch, environment)
            late, source = too_new(launch.flags, arguments), arguments.source
        except ConfigError:  # told below
            late, source = [], ""
        known = {flag: value for flag, value in launch.flags.items() if flag not in late}
        found = PACKAGE.problems(replace(launch, flags=known), environment)
        for flag in late:
            if given(launch.flags, flag) is not None:
                found.append(f"this LightLLM does not know {flag}; it needs {SINCE[flag]} ({source})")
        found += start_problems(launch.role, launch.flags, launch.model_path)
        return found + node_problems(launch)

    def gpus_used(self, launch: Launch) -> Told | None:
        """`--tp` counts all of them, `--dp` divides it."""
        if launch.role == "master":
            return Told(0, "a master computes nothing")
        return product(launch.flags, ("--tp",))

    def limits(self, launch: Launch) -> tuple[Told, ...]:
        """Longer outputs are cut without a word, longer prompts refused."""
        pool = () if launch.role == "master" else told(launch.flags, "--max_total_token_num", less=RESERVED)
        return told(launch.flags, "--max_req_total_len") + pool

    def at_once(self, launch: Launch) -> tuple[Told, ...]:
        """Of a data-parallel server, the flag is for each replica."""
        if launch.role == "master" or given(launch.flags, "--dp") not in (None, 1, "1"):
            return ()
        return told(launch.flags, "--running_max_req_size")

    def arguments(self, launch: Launch) -> ArgumentList:
        """What its command line accepts, and where that is known from. Raises ConfigError."""
        return PACKAGE.arguments(launch, self.environment(launch))

    def version(self, launch: Launch) -> str:
        return PACKAGE.version(launch) or "unknown"

    def served_model(self, client: Client) -> ServedModel:
        info = client.get_json("/get_model_name", timeout_s=10)
        models = client.get_json("/v1/models", timeout_s=10)
        settings = server_info(client) or {}
        with reading(self.name, client, "/get_model_name", info):
            length = models["data"][0].get("max_model_len")
            path = settings.get("model_dir")
            return ServedModel(name=info["model_name"], max_length=length, path=path)

    def effective_config(self, client: Client, log: Path) -> dict[str, Scalar | None]:
        answer = server_info(client)
        settings = logged_arguments(log) if answer is None else answer
        if settings is None:
            raise TargetError(
                f"{client.base_url} has no /get_server_info, and no arguments are in its log",
                cause="it is a LightLLM from before July 2026, and its log is lost",
                fix="run a newer LightLLM, or keep the log",
                evidence=str(log),
            )
        models = client.get_json("/v1/models", timeout_s=10)
        with reading(self.name, client, "/get_server_info", settings):
            config = comparable(settings, log_says(log))
            config["max_length"] = models["data"][0].get("max_model_len")
        return config

    def generate(self, client: Client, request: GenerateRequest) -> Generation:
        """Through `/generate`. Every sampling field is sent: the defaults are the model's own, from its
        `generation_config.json`. LightLLM shortens `max_tokens` without a word when prompt and output exceed
        its limit, so that `length` may come early."""
        prompt = request.prompt if isinstance(request.prompt, str) else list(request.prompt)
        body = {"inputs": prompt, "parameters": parameters(request)}
        headers = {"X-Request-Id": request.request_id} if request.request_id else None
        start = time.perf_counter()
        try:
            answer = client.post_json("/generate", body, headers=headers)
        except RequestFailed as error:
            if error.status != 417 or isinstance(prompt, str):
                raise
            what = f"{error.what} (if this is a P/D master: it takes text prompts only)"
            raise RequestFailed(what, status=error.status, body=error.body) from error
        latency = time.perf_counter() - start
        with reading(self.name, client, "/generate", answer):
            return generation(answer, latency)

    def expected_hit(self, tokens: int, config: Mapping[str, Scalar | None]) -> int:
        """Whole pages; of a model with linear attention whole hash pages."""
        return whole_units(tokens, number(config, "hit_unit"))

    def expected_reload(self, tokens: int, config: Mapping[str, Scalar | None]) -> int:
        """Whole pages of the CPU tier, which may be larger than those of the KV cache."""
        if not config.get("enable_cpu_cache"):
            return 0
        found = whole_units(tokens, number(config, "cpu_cache_token_page_size"))
        return found if found >= LEAST_COPIED and tokens >= LEAST_PROMPT else 0

    def evicting(self, tokens: int, config: Mapping[str, Scalar | None]) -> tuple[int, ...]:
        return filling(tokens, self.capacity(config).device)

    def capacity(self, config: Mapping[str, Scalar | None]) -> KvCapacity:
        """The CPU tier's is told by releases that place prompts in tiers, from September 2026 on."""
        host = None if config.get("cpu_tokens") is None else number(config, "cpu_tokens")
        return KvCapacity(device=number(config, "kv_tokens"), host=host)

    def tokenize(self, client: Client, text: str) -> tuple[int, ...] | None:
        """LightLLM counts tokens (`/tokens`), and does not tell them."""
        del client, text
        return None

    def log_facts(self, lines: Iterable[tuple[int, str]]) -> LogFacts:
        return log_facts(lines)

    def joined(self, client: Client) -> frozenset[str]:
        """From a master's `/health`, which counts them, and is 503 until all are there; it names the nodes
        that are registered, whether or not they can serve."""
        try:
            answer = client.get_text("/health", timeout_s=20)
        except RequestFailed as error:
            if error.status != 503:
                raise
            answer = error.body
        with reading(self.name, client, "/health", answer):
            counts = json.loads(answer)
            return frozenset(role for role in NODES if counts[f"registered_{role}_nodes"] > 0)

    def transferred(self, client: Client) -> TransferTotals | None:
        """LightLLM counts no transfers; its nodes log each of them."""
        del client
        return None

    def traces(self, log: Path) -> LightllmTraces:
        """By the unique id of its start, which all its names carry."""
        return leftovers_of(log)

    def counters(self, client: Client) -> dict[str, float]:
        """`lightllm_request_count_total`, `lightllm_request_failure_total`, `lightllm_cache_length_sum`,
        `lightllm_request_mtp_avg_token_per_step_sum`, ... Pauses are a gauge, and so only in the log."""
        text = client.get_text("/metrics")
        try:
            found = counters(parse(text), "lightllm_")
        except ValueError as error:
            raise strange(self.name, client, "/metrics", text) from error
        if not found:
            raise strange(self.name, client, "/metrics", text)
        return found
