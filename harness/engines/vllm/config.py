"""The configuration that a running vLLM resolved, from `/server_info`."""

from typing import Any

from harness.engines.answers import flatten, without
from harness.scenario.model import Scalar

# Entries of /server_info with one stable name over all engines.
RENAMED = {
    "model_config.model": "model",
    "model_config.tokenizer": "tokenizer",
    "model_config.max_model_len": "max_length",
    "model_config.dtype": "dtype",
    "cache_config.cache_dtype": "kv_dtype",
    "cache_config.kv_cache_size_tokens": "kv_tokens",
}
# Entries that differ between two starts of one server, name its place on this machine, or follow from others.
LEFT_OUT = (
    "instance_id",
    "*_port",
    "*_port_list",
    "*_PORT",
    "*_ip",
    "*_IP",
    "*_HOST",
    "*master_addr",
    "*_PATH",
    "*_ROOT",
    "*_dir",
    "vllm_env.VLLM_ASSETS_CACHE",
    "vllm_env.VLLM_MEDIA_CACHE",
    "cache_config.num_gpu_blocks",  # kv_tokens says it
    "cache_config.kv_cache_max_concurrency",  # kv_tokens over max_length
    "compilation_config.*compilation_time",
    "compilation_config.traced_files",
    "speculative_config.target_*",  # the served model's settings again
    "*_SHM_BUFFER_NAME",
    "kv_transfer_config.engine_id",
    "kv_transfer_config.*storage_path",
)
SYSTEM = ("torch_version", "pip_packages", "nvidia_driver_version", "nvidia_gpu_models", "cudnn_version")


def comparable(answer: Any) -> dict[str, Scalar | None]:
    """Flat, without LEFT_OUT, and with the names of RENAMED. Raises what reading another form raises."""
    system = {name: answer["system_env"].get(name) for name in SYSTEM}
    flat = flatten(answer["vllm_config"])
    flat |= flatten({"vllm_env": answer["vllm_env"], "system_env": system})
    config = {RENAMED.get(name, name): value for name, value in without(flat, LEFT_OUT).items()}
    config["dtype"] = str(config["dtype"]).removeprefix("torch.")
    if config["kv_dtype"] == "auto":
        config["kv_dtype"] = config["dtype"]
    return config
