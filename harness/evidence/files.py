"""Writing evidence so that a crash never leaves half a file."""

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from harness.errors import HarnessError
from harness.findings import Code


def write_atomic(path: Path, text: str) -> None:
    """Replace `path` by `text` (UTF-8): temporary file beside it, fsync, rename.

    Raises HarnessError (DISK_FULL) when the file system refuses.
    """
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", errors="backslashreplace", dir=path.parent, prefix=".", delete=False
        ) as handle:
            temporary = handle.name
            handle.write(text)
            handle.flush()
            os.fsync(handle.fileno())
        Path(temporary).replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        what = f"cannot write {path}: {error.strerror or error}"
        raise HarnessError(
            what,
            cause="the disk is full, or the directory is not writable",
            fix="free space or choose another place with --runs-dir",
            code=Code.DISK_FULL,
        ) from error


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically. Non-ASCII text stays readable."""
    write_atomic(path, json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")
