"""One file per inference server. The dict is the whole plug-in system."""

from harness.engines.base import Engine
from harness.engines.lightllm import Lightllm
from harness.engines.llamacpp import LlamaCpp
from harness.engines.sglang import Sglang
from harness.engines.vllm import Vllm

ENGINES: dict[str, Engine] = {
    "llamacpp": LlamaCpp(),
    "vllm": Vllm(),
    "sglang": Sglang(),
    "lightllm": Lightllm(),
}
