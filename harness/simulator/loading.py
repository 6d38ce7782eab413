"""What the log says while a model is loaded, in order."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from harness.simulator.model import Model
from harness.simulator.start_args import mb_per_token

WEIGHT_STEPS = 8
_MEM = "lightllm.common.kv_cache_mem_manager"


@dataclass(frozen=True, slots=True)
class Line:
    """One message: `place` is its source file and line, empty for raw text on stderr. `share` of the loading
    time passes before it."""

    place: str
    text: str
    share: float = 0.0


def lines(args: dict[str, Any], model: Model, capacity: int) -> Iterator[Line]:
    """Of the router and the model processes; `capacity` is the final size of the KV pool in tokens."""
    kv_type = args["llm_kv_type"]
    yield Line("mem_utils.py:31", f"mode setting params: {kv_type}")
    for step in range(1, WEIGHT_STEPS + 1):
        bar = f"{100 * step // WEIGHT_STEPS:3d}%|{'█' * step:<8}| {step}/8"
        yield Line("", f"Loading model weights with 1 workers: {bar}", 0.8 / WEIGHT_STEPS)
    yield Line(
        "mem_utils.py:52", f"Model kv cache using mem_manager class: <class '{_mem_manager(kv_type, model)}'>"
    )
    if args["max_total_token_num"] is None:
        yield Line("mem_manager.py:94", _profiled(args, capacity))
    for stage in ("prefill", "decode"):
        yield Line("basemodel.py:214", f"use {stage} att backend: {_backend(args, stage, model)}")
    longest = min(args["batch_max_tokens"], args["max_req_total_len"])
    yield Line("basemodel.py:871", f"check max_len {longest} infer ok")
    if args["enable_prefill_cudagraph"]:
        tokens = args["prefill_cudagraph_max_handle_token"]
        text = f"Capture repfill cudagraph success, token_num <={tokens} will infer with cudagraph."
        yield Line("prefill_cuda_graph.py:188", text, 0.1)
    if not args["disable_cudagraph"]:
        batch, length = args["graph_max_batch_size"], args["graph_max_len_in_batch"]
        shape = f"batch_size <={batch} and max_len_in_batch <= {length}"
        yield Line("cuda_graph.py:233", f"Capture cudagraph success, {shape} will infer with cudagraph.", 0.1)
    yield Line("manager.py:165", f"set shm_max_total_token_num value to {capacity}")


def placement(capacity: int, cpu_tokens: int) -> Line:
    """How the caches are laid out, with a CPU tier."""
    gpu = capacity * 8 // 10
    text = (
        f"cache placement capacities in tokens: gpu={gpu}, physical_gpu={capacity}, gpu_ratio=0.8000, "
        f"cpu={cpu_tokens}, disk=0"
    )
    return Line("cache_placement.py:77", text)


def _profiled(args: dict[str, Any], capacity: int) -> str:
    return (
        f"{capacity} is the profiled max_total_token_num with the mem_fraction {args['mem_fraction']}\n"
        f"{mb_per_token(args['llm_kv_type'])} MB is the size of one token kv cache\n"
        "the profiled pool holds every layer of this rank"
    )


def _mem_manager(kv_type: str, model: Model) -> str:
    if kv_type == "fp8kv_dsa":
        return f"{_MEM}.fp8_dsa_mem_manager.Fp8DsaMemManager"
    if kv_type != "None":
        return f"{_MEM}.{kv_type}_mem_manager.{kv_type.title().replace('_', '')}MemManager"
    return f"{_MEM}.{'dsa_mem_manager.DsaMemManager' if model.sparse else 'mem_manager.MemoryManager'}"


def _backend(args: dict[str, Any], stage: str, model: Model) -> str:
    if args["llm_kv_type"] == "fp8kv_dsa":
        return "NsaFlashMlaFp8SparseAttBackend"
    if model.sparse:
        return "NsaFlashMlaSparseAttBackend"
    chosen = (args[f"llm_{stage}_att_backend"] or ["auto"])[0]
    return {"triton": "TritonAttBackend", "flashinfer": "FlashInferAttBackend"}.get(chosen, "Fa3AttBackend")
