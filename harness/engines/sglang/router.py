"""SGLang's router in front of one prefill and one decode server (package `sglang-router`)."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from harness.engines.answers import reading
from harness.engines.base import Launch, ServedModel, Told
from harness.engines.client import Client
from harness.engines.environment import server_environment
from harness.engines.flags import render
from harness.engines.python_engine import PLAIN_HTTP, PythonEngine
from harness.engines.sglang.adapter import PACKAGE as SERVER
from harness.engines.sglang.adapter import Sglang
from harness.scenario.model import FlagValue, Scalar

ONE_PAIR = "the lane's servers are one prefill and one decode node, and the harness names them"
ROUTER = PythonEngine(
    name="sglang_router",
    distributions=("sglang-router",),
    remedy="pip install sglang-router",
    owned=("--host", "--port", "--prometheus-host", "--prometheus-port"),
    refused={
        **dict.fromkeys(("--api-key", "--tls-cert-path", "--tls-key-path"), PLAIN_HTTP),
        **dict.fromkeys(
            ("--pd-disaggregation", "--prefill", "--decode", "--worker-urls", "--service-discovery"), ONE_PAIR
        ),
        "--mini-lb": "it is a debugging stand-in for the router",
    },
    fakes=(),
)
# A request that is tried again on the quiet, or refused for an earlier one's failure, hides the failure.
HONEST = ("--disable-retries", "--disable-circuit-breaker")


class SglangRouter(Sglang):
    """`python -m sglang_router.launch_router`, of the interpreter that has SGLang.

    It answers requests as SGLang's servers do. It has no configuration to tell; `effective_config` is the
    nodes that it knows.
    """

    roles: tuple[str, ...] = ("router",)
    must_agree: Mapping[str, tuple[str, ...]] = {}

    def ports(self, role: str, flags: Mapping[str, FlagValue]) -> tuple[str, ...]:
        del role, flags
        return ("http", "metrics")

    def argv(self, launch: Launch) -> list[str]:
        peers = launch.peers
        bootstrap = peers.get("prefill.bootstrap", "").rpartition(":")[2]
        command = [SERVER.interpreter(launch), "-m", "sglang_router.launch_router", "--pd-disaggregation"]
        command += ["--prefill", peers.get("prefill", ""), bootstrap or "none"]
        command += ["--decode", peers.get("decode", "")]
        command += ["--host", launch.host, "--port", str(launch.ports["http"])]
        command += ["--prometheus-host", launch.host, "--prometheus-port", str(launch.ports["metrics"])]
        command += [flag for flag in HONEST if flag not in launch.flags]
        return command + render(launch.flags)

    def environment(self, launch: Launch) -> dict[str, str]:
        return {**server_environment(launch), **launch.env}

    def problems(self, launch: Launch) -> list[str]:
        found = ROUTER.problems(_with_interpreter(launch), self.environment(launch))
        for flag in HONEST:
            if flag in launch.flags:
                found.append(f"{flag} is always given; take it out of the scenario")
        return found

    def gpus_used(self, launch: Launch) -> Told | None:
        del launch
        return Told(0, "a router computes nothing")

    def version(self, launch: Launch) -> str:
        return ROUTER.version(_with_interpreter(launch)) or "unknown"

    def served_model(self, client: Client) -> ServedModel:
        models = client.get_json("/v1/models", timeout_s=10)
        with reading(self.name, client, "/v1/models", models):
            return ServedModel(name=models["data"][0]["id"], max_length=None)

    def effective_config(self, client: Client, log: Path) -> dict[str, Scalar | None]:
        del log
        return {"nodes": ",".join(sorted(self.joined(client)))}

    def joined(self, client: Client) -> frozenset[str]:
        """Healthy workers by their kind. `/health` is green before there is any."""
        answer = client.get_json("/workers", timeout_s=10)
        with reading(self.name, client, "/workers", answer):
            return frozenset(str(node["worker_type"]) for node in answer["workers"] if node["is_healthy"])


def _with_interpreter(launch: Launch) -> Launch:
    """The router is installed beside SGLang, not in a place of its own."""
    return replace(launch, python=SERVER.interpreter(launch))
