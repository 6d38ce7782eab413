"""llama.cpp: the embedded server of the `xllamacpp` wheel, or the user's own `llama-server`."""

import os
import time
from collections.abc import Iterable, Mapping
from math import ceil
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
from harness.engines.cache_sizes import number, whole_units
from harness.engines.client import Client
from harness.engines.environment import server_environment
from harness.engines.flags import given, render
from harness.engines.llamacpp.answers import generation, told_of
from harness.engines.llamacpp.config import from_log
from harness.engines.llamacpp.flags import ask, embedded, flag_problems, inherited_flags, of_program
from harness.engines.llamacpp.llama_server import BY_NAME
from harness.engines.llamacpp.log import GRAMMAR, HOST_LOAD
from harness.engines.llamacpp.program import PACKAGE, PROGRAM, model_problems, program_of, program_problems
from harness.engines.metrics import scrape
from harness.engines.sizes import told, whole
from harness.errors import ConfigError
from harness.scenario.model import FlagValue, Scalar

VERBOSITY = 4  # the least that logs KV types, cache saves and reloads
SHORT_PROMPT = 64  # tokens
CONTEXT_STEP = 256  # tokens: a slot's context is a multiple of it
THREADS = BY_NAME["--threads"].names


class LlamaCpp:
    """`llama-server`, embedded or the user's own (`binary:` or HARNESS_LLAMACPP_BINARY): the same flags.

    The harness sets --model, --host, --port, --alias and --metrics; --threads (the leased cores) and
    --verbosity 4 (less does not log the KV types) unless the scenario does.

    `effective_config` has `kv_dtype` (`bf16`, `q8_0`, ..., or `K/V` where they differ), `max_length` (context
    of one slot), `n_parallel`, `n_ctx`, `n_batch`, `n_ubatch`, `flash_attn`, `kv_unified`, `n_threads`,
    `cache_ram`, `build_info`, ... and of the model `model.size`, `model.ftype`, ...; a draft model's under
    `draft.`, the server's sampling defaults under `sampling.`.

    Cached tokens of a request are told in total, without their tier; the log tells of reloads from the host.
    """

    name = "llamacpp"
    roles: tuple[str, ...] = ("normal",)
    grammar = GRAMMAR
    pausing: Pausing | None = None
    must_agree: Mapping[str, tuple[str, ...]] = {}
    tells_ids = True

    def ports(self, role: str, flags: Mapping[str, FlagValue]) -> tuple[str, ...]:
        del role, flags
        return ("http",)

    def argv(self, launch: Launch) -> list[str]:
        program = program_of(launch)
        # -P: the folder of the script holds modules of the harness, named like packages of others.
        command = [program] if program else [PACKAGE.interpreter(launch), "-P", str(PROGRAM)]
        command += ["--model", launch.model_path, "--alias", launch.served_name]
        command += ["--host", launch.host, "--port", str(launch.ports["http"]), "--metrics"]
        if launch.cpus and given(launch.flags, *THREADS) is None:
            command += ["--threads", str(len(launch.cpus))]
        if given(launch.flags, *BY_NAME["--verbosity"].names) is None:
            command += ["--verbosity", str(VERBOSITY)]
        return command + render(launch.flags)

    def environment(self, launch: Launch) -> dict[str, str]:
        environment = {**server_environment(launch), "OMP_WAIT_POLICY": "passive"}
        threads = given(launch.flags, *THREADS)
        if threads is not None:
            environment["OMP_NUM_THREADS"] = str(threads)
        return {**environment, **launch.env}

    def problems(self, launch: Launch) -> list[str]:
        found = program_problems(launch) + model_problems(launch.model_path)
        if "," in launch.served_name:
            found.append(
                f"the served name {launch.served_name} has a comma, which llama.cpp takes for two names"
            )
        found += flag_problems(launch.flags, self.arguments(launch), len(launch.cpus))
        return found + inherited_flags({**os.environ, **launch.env})

    def gpus_used(self, launch: Launch) -> None:
        """It takes what it sees."""
        del launch

    def limits(self, launch: Launch) -> tuple[Told, ...]:
        """The context of one slot, which is rounded up; all of it where the slots share it."""
        size = told(launch.flags, *BY_NAME["--ctx-size"].names)
        unified = given(launch.flags, *BY_NAME["--kv-unified"].names, "--kv-unified-per-slot")
        slots = whole(given(launch.flags, *BY_NAME["--parallel"].names)) if unified is None else None
        shares, said = (slots, f" in {slots} slots") if slots else (1, "")
        return tuple(
            Told(ceil(one.number / shares / CONTEXT_STEP) * CONTEXT_STEP, one.by + said) for one in size
        )

    def at_once(self, launch: Launch) -> tuple[Told, ...]:
        """One in each slot."""
        return told(launch.flags, *BY_NAME["--parallel"].names)

    def arguments(self, launch: Launch) -> ArgumentList:
        """What its command line accepts, and where that is known from."""
        program = program_of(launch)
        return of_program(program) if program else embedded(self.version(launch))

    def version(self, launch: Launch) -> str:
        program = program_of(launch)
        if program is None:
            return PACKAGE.version(launch) or "unknown"
        said = (line.removeprefix("version: ") for line in ask(program, "--version").splitlines())
        return next((line for line in said if line[:1].isdigit()), "unknown")

    def served_model(self, client: Client) -> ServedModel:
        models = client.get_json("/v1/models", timeout_s=10)
        props = client.get_json("/props", timeout_s=10)
        with reading(self.name, client, "/v1/models", models):
            return ServedModel(
                name=models["data"][0]["id"],
                max_length=props["default_generation_settings"]["n_ctx"],
                path=props.get("model_path"),
            )

    def effective_config(self, client: Client, log: Path) -> dict[str, Scalar | None]:
        models = client.get_json("/v1/models", timeout_s=30)
        props = client.get_json("/props", timeout_s=30)
        with reading(self.name, client, "/props", props):
            return {**told_of(models["data"][0]["meta"], props), **from_log(log)}

    def generate(self, client: Client, request: GenerateRequest) -> Generation:
        """Raises ConfigError for a minimum of tokens without `ignore_eos`: llama.cpp has no such thing."""
        if request.min_tokens and not request.ignore_eos:
            what = "llama.cpp cannot be held to a minimum number of tokens"
            raise ConfigError(what, fix="ask with ignore_eos, or with min_tokens 0")
        body: dict[str, Any] = {
            "prompt": request.prompt if isinstance(request.prompt, str) else list(request.prompt),
            "n_predict": request.max_tokens,
            "temperature": request.temperature,
            "ignore_eos": request.ignore_eos,
            "stop": list(request.stop),
            "n_probs": 1 if request.logprobs else 0,
            "return_tokens": True,
            "cache_prompt": request.use_cache,
        }
        headers = {"X-Request-Id": request.request_id} if request.request_id else None
        start = time.perf_counter()
        answer = client.post_json("/completion", body, headers=headers)
        latency = time.perf_counter() - start
        with reading(self.name, client, "/completion", answer):
            return generation(answer, latency)

    def expected_hit(self, tokens: int, config: Mapping[str, Scalar | None]) -> int:
        """All but the last token: it has no pages."""
        del config
        return whole_units(tokens, 1)

    def expected_reload(self, tokens: int, config: Mapping[str, Scalar | None]) -> int:
        """What a slot would have given: its whole state is saved and loaded."""
        return 0 if self.capacity(config).host == 0 else self.expected_hit(tokens, config)

    def evicting(self, tokens: int, config: Mapping[str, Scalar | None]) -> tuple[int, ...]:
        """A prompt for each slot, the slot used longest ago first: any length throws a slot's former prompt
        out of it."""
        return (min(tokens, SHORT_PROMPT),) * number(config, "n_parallel")

    def capacity(self, config: Mapping[str, Scalar | None]) -> KvCapacity:
        """The context of one slot: what another prompt in it throws out. The host's prompt cache is limited
        in MiB, and not told in tokens."""
        off = config.get("cache_ram") in (0, "disabled")
        return KvCapacity(device=number(config, "max_length"), host=0 if off else None)

    def tokenize(self, client: Client, text: str) -> tuple[int, ...] | None:
        answer = client.post_json("/tokenize", {"content": text, "add_special": False})
        with reading(self.name, client, "/tokenize", answer):
            return tuple(map(int, answer["tokens"]))

    def log_facts(self, lines: Iterable[tuple[int, str]]) -> LogFacts:
        """Only what the host's prompt cache gave back, which needs `--log-verbosity 4`: no request ids."""
        return LogFacts(host_loads=tuple(number for number, line in lines if HOST_LOAD.search(line)))

    def joined(self, client: Client) -> frozenset[str]:
        """It has neither master nor router."""
        del client
        return frozenset()

    def transferred(self, client: Client) -> TransferTotals | None:
        del client
        return None

    def traces(self, log: Path) -> NoTraces:
        """None: its leftovers are known only by having been seen in use."""
        del log
        return NoTraces()

    def counters(self, client: Client) -> dict[str, float]:
        """`llamacpp:prompt_tokens_cached_total`, `llamacpp:spec_decode_num_accepted_tokens_total`, ..."""
        return scrape(self.name, client)
