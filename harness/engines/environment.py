"""The environment every model server gets: offline, no proxies, its own cores and GPUs, an unbuffered log."""

from collections.abc import Mapping

from harness.engines.base import Launch

LOOPBACK = "127.0.0.1,localhost,::1"
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")

# Nothing is fetched or told to anybody during a run, and loopback never goes through a proxy.
SEALED: Mapping[str, str] = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "PYTHONUNBUFFERED": "1",
    "NO_PROXY": LOOPBACK,
    "no_proxy": LOOPBACK,
    **dict.fromkeys(PROXIES, ""),
}

# Variables that follow from a server's lease, its GPUs, ports and address: they say where it runs, not how.
# An adapter that sets another one names it here.
LEASED = frozenset(
    {
        *("CUDA_VISIBLE_DEVICES", "NO_PROXY", "no_proxy"),
        *("VLLM_HOST_IP", "VLLM_PORT", "VLLM_NIXL_SIDE_CHANNEL_HOST", "VLLM_NIXL_SIDE_CHANNEL_PORT"),
    }
)


def server_environment(launch: Launch) -> dict[str, str]:
    """What any server is started with; the engine adds its own, and the lane's `env` overrules both."""
    environment = {"CUDA_VISIBLE_DEVICES": ",".join(launch.gpus), **SEALED}
    if launch.gpus:
        environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # else the indices are not those of the lease
    if launch.cpus:
        environment["OMP_NUM_THREADS"] = str(len(launch.cpus))
    return environment


def faked(environment: dict[str, str], *prefixes: str, allowed: tuple[str, ...] = ()) -> list[str]:
    """Sentences about variables that make a server invent its results, whoever set them."""
    names = [name for name in environment if name.startswith(prefixes) and not name.startswith(allowed)]
    return [
        f"{name} is set to `{environment[name]}`: it makes the server fake what is to be measured; unset it"
        for name in sorted(names)
        if environment[name] not in ("", "0", "false", "False")
    ]
