"""What a lane ran on: everything that must be equal in a pair, unless the pair names it.

A new key is compared by default, so a forgotten one blocks a comparison rather than allowing it. Run
locations (ports, pids, paths of logs) are not part of it.
"""

import hashlib
import json
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from harness.engines.base import Launch
from harness.engines.environment import LEASED
from harness.engines.flags import render
from harness.errors import HarnessError
from harness.evidence.record import ServerRecord
from harness.findings import Code
from harness.host.hardware import cpu_model
from harness.host.paths import is_file, is_folder
from harness.host.redact import redact_env, redact_settings, secret_values, telling
from harness.scenario.model import Lane, Scalar

# Where a server runs, not how: these never count as differences.
LOCATION_ENV = LEASED | {"PATH", "PWD"}
TELLING_ENV = (
    *("HARNESS_SIMULATOR", "LIGHTLLM_", "SGLANG_", "VLLM_", "GGML_", "LLAMA_", "FLASHINFER_", "TRITON_"),
    *("CUDA_", "NCCL_", "UCX_", "TORCH_", "PYTORCH_", "OMP_", "KMP_", "MKL_"),
)
# A directory with one of these is weights, an adapter or a tokenizer. Others may be for a server to write in.
MODEL_FILES = ("config.json", "params.json", "adapter_config.json", "tokenizer.json", "tokenizer_config.json")
EDGE_BYTES = 1 << 20
WHOLE_FILE_LIMIT = 1 << 30


def lane_fingerprint(
    lane: Lane,
    launches: Sequence[Launch],
    records: Sequence[ServerRecord],
    digest: Callable[[Path], str] | None = None,
) -> dict[str, Scalar | None]:
    """Flat keys; those of a lane with several servers carry the role in front (`decode.flags.--tp`). Secrets
    are masked, so two lanes that differ in nothing but a key are equal. `digest` stands in for the identity
    of weights where reading them takes too long."""
    identity = digest or model_digest
    keys: dict[str, Scalar | None] = {
        "engine": lane.engine,
        "model.digest": identity(Path(launches[0].model_path)),
        "host.machine": platform.machine(),
        "host.cpu": cpu_model(),
    }
    for launch, record in zip(launches, records, strict=True):
        front = "" if len(launches) == 1 else f"{launch.role}."
        keys[f"{front}version"] = record.version
        keys[f"{front}cpus"] = len(launch.cpus)
        keys[f"{front}gpus"] = len(launch.gpus)
        keys[f"{front}gpu"] = launch.gpu_model or "none"
        secrets = telling(secret_values(render(launch.flags), launch.env))
        for flag, value in redact_settings(launch.flags, secrets).items():
            if value is None or value is False:
                continue
            keys[f"{front}flags.{flag}"] = json.dumps(value) if isinstance(value, list) else value
            if isinstance(value, str) and value != launch.model_path and _is_read(value):
                keys[f"{front}flags.{flag}.digest"] = identity(Path(value))  # a drafter, a calibration
        for name, text in {**_inherited(), **record.env}.items():
            if name not in LOCATION_ENV:
                keys[f"{front}env.{name}"] = text
        for name, setting in redact_settings(record.effective_config, secrets).items():
            keys[f"{front}config.{name}"] = setting
    return keys


def _inherited() -> dict[str, str]:
    """What the servers get from whoever started the harness, and what changes how they compute."""
    found = {name: value for name, value in os.environ.items() if name.startswith(TELLING_ENV)}
    return redact_env(found)


def _is_read(text: str) -> bool:
    """Whether a flag names what the server computes with: a drafter, an adapter, a calibration."""
    path = Path(text)
    return path.is_absolute() and (is_file(path) or any(is_file(path / name) for name in MODEL_FILES))


def model_digest(path: Path) -> str:
    """Identity of the weights: sha256 over every file's name, size and content; of files above 1 GiB only
    the first and last MiB are read, since hashing a terabyte would cost the night. `missing` if absent.

    Raises HarnessError (HOST_FAULT) where one cannot be read.
    """
    if not is_file(path) and not is_folder(path):
        return "missing"
    digest = hashlib.sha256()
    try:
        for file in sorted(_files(path)):
            digest.update(_entry(file.name if file == path else str(file.relative_to(path)), file))
    except OSError as error:
        raise HarnessError(
            f"{error.filename or path} cannot be read ({error.strerror}), and with it what the server loads",
            cause="it is being written or removed, belongs to another user, or the disk is failing",
            fix="see that it can be read and stays as it is, and run again",
            evidence=str(path),
            code=Code.HOST_FAULT,
        ) from error
    return digest.hexdigest()


def _files(path: Path) -> Iterator[Path]:
    """Raises OSError for a directory that cannot be listed."""
    if is_file(path):
        yield path
        return
    for folder, _, names in os.walk(path, onerror=_raise):
        yield from (file for name in names if is_file(file := Path(folder, name)))


def _raise(error: OSError) -> None:
    raise error


def _entry(name: str, file: Path) -> bytes:
    with file.open("rb") as handle:
        size = os.fstat(handle.fileno()).st_size
        head = f"{name}\0{size}\0".encode(errors="surrogateescape")
        if size <= WHOLE_FILE_LIMIT:
            return head + hashlib.file_digest(handle, "sha256").digest()
        first = handle.read(EDGE_BYTES)
        handle.seek(-EDGE_BYTES, os.SEEK_END)
        return head + first + handle.read(EDGE_BYTES)
