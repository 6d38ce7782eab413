"""A router for vLLM, which has none of its own: a process of the harness's that asks prefill, then decode."""

import sys
from collections.abc import Mapping
from pathlib import Path

from harness import __version__
from harness.engines.answers import reading
from harness.engines.base import Launch, Told
from harness.engines.client import Client
from harness.engines.environment import server_environment
from harness.engines.vllm.adapter import Vllm
from harness.scenario.model import FlagValue, Scalar

PROGRAM = Path(__file__).with_name("pd_proxy.py")


class VllmRouter(Vllm):
    """`pd_proxy.py`, run by the harness's own interpreter. It answers requests as vLLM's servers do."""

    roles: tuple[str, ...] = ("router",)
    must_agree: Mapping[str, tuple[str, ...]] = {}
    tells_ids = False  # it passes on completions alone

    def ports(self, role: str, flags: Mapping[str, FlagValue]) -> tuple[str, ...]:
        del role, flags
        return ("http",)

    def argv(self, launch: Launch) -> list[str]:
        command = [sys.executable, str(PROGRAM), "--host", launch.host, "--port", str(launch.ports["http"])]
        command += ["--prefill", launch.peers.get("prefill", ""), "--decode", launch.peers.get("decode", "")]
        return command

    def environment(self, launch: Launch) -> dict[str, str]:
        return {**server_environment(launch), **launch.env}

    def problems(self, launch: Launch) -> list[str]:
        return [f"{flag}: the harness's own router for vLLM takes no flags" for flag in launch.flags]

    def gpus_used(self, launch: Launch) -> Told | None:
        del launch
        return Told(0, "a router computes nothing")

    def version(self, launch: Launch) -> str:
        del launch
        return __version__

    def effective_config(self, client: Client, log: Path) -> dict[str, Scalar | None]:
        del log
        return {"nodes": ",".join(sorted(self.joined(client)))}

    def joined(self, client: Client) -> frozenset[str]:
        """Nodes that answered the proxy just now."""
        answer = client.get_json("/readiness", timeout_s=10)
        with reading(self.name, client, "/readiness", answer):
            return frozenset(map(str, answer["nodes"]))
