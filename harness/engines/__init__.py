"""One folder per inference server. The dict is the whole plug-in system."""

from harness.engines.base import Engine
from harness.engines.lightllm.adapter import Lightllm
from harness.engines.llamacpp.adapter import LlamaCpp
from harness.engines.sglang.adapter import Sglang
from harness.engines.sglang.router import SglangRouter
from harness.engines.vllm.adapter import Vllm
from harness.engines.vllm.router import VllmRouter

ENGINES: dict[str, Engine] = {
    "llamacpp": LlamaCpp(),
    "vllm": Vllm(),
    "sglang": Sglang(),
    "lightllm": Lightllm(),
}

# A router is another program than the engine's servers, with an adapter of its own.
ROUTERS: dict[str, Engine] = {
    "vllm": VllmRouter(),
    "sglang": SglangRouter(),
}


def engine_of(name: str, role: str) -> Engine:
    """The adapter of one server of a lane. Raises KeyError for an unknown engine."""
    return ROUTERS.get(name, ENGINES[name]) if role == "router" else ENGINES[name]


def roles_of(name: str) -> tuple[str, ...]:
    """Every role that a server of this engine's lanes can have."""
    return (*ENGINES[name].roles, *(ROUTERS[name].roles if name in ROUTERS else ()))
