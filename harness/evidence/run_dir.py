"""The directory of one run: who lies where, how it is found again, and whether it is still going on."""

import contextlib
import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from harness.errors import ConfigError, HarnessError
from harness.evidence.files import read_bytes, write_atomic
from harness.evidence.record import SCHEMA_VERSION, RunRecord
from harness.findings import Code

LOCK_NAME: Final = "run.lock"
OTHER_VERSION: Final = "use the harness version that wrote it, or a newer one"
_PATIENCE_S: Final = 1.0  # somebody who only asks whether the run is alive holds the lock for an instant
_POLL_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class RunDir:
    """`runs/<utc>-<scenario>-<id>/`; a lane is a directory in it, named as in the scenario."""

    path: Path

    @classmethod
    def create(cls, runs_dir: Path, scenario: str) -> "RunDir":
        """A fresh directory and the link `latest` to it. Raises HarnessError when it cannot be made."""
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        path = runs_dir / f"{stamp}-{scenario}-{secrets.token_hex(3)}"
        try:
            path.mkdir(parents=True)
        except OSError as error:
            what = f"cannot create the run directory {path}: {error.strerror or error}"
            fix = "choose another place with --runs-dir"
            raise HarnessError(what, fix=fix, code=Code.DISK_FULL) from error
        run = cls(path.resolve())
        run._link_latest()
        return run

    @classmethod
    def open(cls, path: Path) -> "RunDir":
        """An existing run. Raises ConfigError when `path` is not one."""
        if not (path / "run.json").is_file():
            what = f"{path} is not a run directory: it has no run.json"
            raise ConfigError(what, fix="give a directory under runs/, e.g. runs/latest")
        return cls(path.resolve())

    @property
    def run_id(self) -> str:
        return self.path.name

    def lane(self, name: str) -> Path:
        return self.path / _safe(name)

    def check(self, lane: str, check: str) -> Path:
        return self.path / _safe(lane) / _safe(check)

    def pair(self, name: str) -> Path:
        return self.path / "pairs" / _safe(name)

    def write(self, record: RunRecord) -> None:
        """Raises HarnessError when it cannot be written, or when the run directory was taken away."""
        if not self.path.is_dir():
            what = f"the run directory {self.path} is gone: its evidence is lost"
            raise HarnessError(what, cause="somebody deleted it during the run", code=Code.EVIDENCE_MISSING)
        write_atomic(self.path / "run.json", record.model_dump_json(indent=2) + "\n")

    def read(self) -> RunRecord:
        """The record. Raises ConfigError when it is broken or of a newer, unknown schema."""
        file = self.path / "run.json"
        try:
            content = read_bytes(file)
            _require_known_schema(file, content)
            record = RunRecord.model_validate_json(content)
        except (OSError, ValidationError) as error:
            what = f"{file} cannot be read as a run record: {_first_fault(error)}"
            raise ConfigError(what, fix=OTHER_VERSION) from error
        crossed = [name for name, lane in record.lanes.items() if lane.name != name]
        if crossed:
            raise ConfigError(f"{file} gives lane {crossed[0]!r} the record of another lane")
        return record

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Say that this process writes into the run, until the block ends or the process does, however it
        does: the lock belongs to an open file. Raises ConfigError while another process holds the run.

        On a file system without locks, or without the right to write, the block runs all the same.
        """
        descriptor = None
        with contextlib.suppress(OSError):
            descriptor = self._open_lock(os.O_RDWR | os.O_CREAT)
        if descriptor is None:
            yield
            return
        try:
            if not _locked(descriptor, fcntl.LOCK_EX, time.monotonic() + _PATIENCE_S):
                raise self._busy()
            with contextlib.suppress(OSError):  # the text is for people; the lock is what counts
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            yield
        finally:
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # aloud: a child just before its exec has a copy
            os.close(descriptor)

    def alive(self) -> bool:
        """Whether a process holds the run now. One whose record has no end and that nobody holds was killed.

        Known on every machine that shares the file system's locks; elsewhere, and for a copy, it is false.
        """
        try:
            descriptor = self._open_lock(os.O_RDONLY)
        except OSError:
            return False
        try:
            return not _locked(descriptor, fcntl.LOCK_SH, 0.0)
        finally:
            os.close(descriptor)

    def pid(self) -> str:
        """Process id of who holds the run, or held it last, for people; `unknown` where that is not known."""
        try:
            text = read_bytes(self.path / LOCK_NAME).decode(errors="replace").strip()
        except OSError:
            text = ""
        return text if text.isdecimal() else "unknown"

    def _open_lock(self, flags: int) -> int:
        # Not blocking: what lies there under this name may be anything, a FIFO too.
        return os.open(self.path / LOCK_NAME, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)

    def _busy(self) -> ConfigError:
        pid = self.pid()
        what = f"the run {self.path} is still running, pid {pid}: nothing was written into it"
        end_it = f", or end it with: kill -INT {pid}" if pid != "unknown" else ""
        return ConfigError(what, fix=f"wait for its end{end_it}; `harness show` says how far it is")

    def _link_latest(self) -> None:
        """`latest` is a convenience: a file system without links, or a race, must not stop a run."""
        link = self.path.parent / "latest"
        temporary = self.path.parent / f".latest-{self.path.name}"
        with contextlib.suppress(OSError):
            temporary.symlink_to(self.path.name, target_is_directory=True)
            temporary.replace(link)


def _require_known_schema(file: Path, content: bytes) -> None:
    """Before anything else of it is read: a newer record may be of any shape. Raises ConfigError."""
    with contextlib.suppress(ValueError, RecursionError):  # told by whoever reads all of it
        found = json.loads(content)
        version = found.get("schema_version") if isinstance(found, dict) else None
        if isinstance(version, int) and version > SCHEMA_VERSION:
            what = f"{file} has schema version {version}; this harness knows {SCHEMA_VERSION}"
            raise ConfigError(what, fix=OTHER_VERSION)


def _first_fault(error: OSError | ValidationError) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"]))
    told = f"{first['input']!r} is not known" if first["type"] in ("enum", "literal_error") else first["msg"]
    return f"{place}: {told}" if place else told


def _locked(descriptor: int, kind: int, deadline: float) -> bool:
    """Take the lock until the descriptor is closed; False when another has it until `deadline`. A file system
    that cannot lock excludes nobody."""
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)
        except OSError:
            return True
        else:
            return True


def _safe(name: str) -> str:
    """A record may come from anywhere: no name in it may lead out of the run directory."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ConfigError(f"the record names a lane, check or pair {name!r}, which is no directory name")
    return name
