"""The directory of one run: who lies where, and how it is found again."""

import contextlib
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from harness.errors import ConfigError, HarnessError
from harness.evidence.files import write_atomic
from harness.evidence.record import SCHEMA_VERSION, RunRecord
from harness.findings import Code


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
            record = RunRecord.model_validate_json(file.read_bytes())
        except (OSError, ValidationError) as error:
            first = str(error).splitlines()[0]
            raise ConfigError(f"{file} cannot be read as a run record: {first}") from error
        crossed = [name for name, lane in record.lanes.items() if lane.name != name]
        if crossed:
            raise ConfigError(f"{file} gives lane {crossed[0]!r} the record of another lane")
        if record.schema_version > SCHEMA_VERSION:
            what = f"{file} has schema version {record.schema_version}; this harness knows {SCHEMA_VERSION}"
            raise ConfigError(what, fix="use the harness version that wrote it, or a newer one")
        return record

    def _link_latest(self) -> None:
        """`latest` is a convenience: a file system without links, or a race, must not stop a run."""
        link = self.path.parent / "latest"
        temporary = self.path.parent / f".latest-{self.path.name}"
        with contextlib.suppress(OSError):
            temporary.symlink_to(self.path.name, target_is_directory=True)
            temporary.replace(link)


def _safe(name: str) -> str:
    """A record may come from anywhere: no name in it may lead out of the run directory."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ConfigError(f"the record names a lane, check or pair {name!r}, which is no directory name")
    return name
