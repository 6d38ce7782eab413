"""Writing evidence so that a crash never leaves half a file."""

import contextlib
import json
import os
import secrets
from pathlib import Path
from typing import Any

from harness.errors import HarnessError
from harness.findings import Code


def write_atomic(path: Path, text: str) -> None:
    """Replace `path` by `text` (UTF-8): temporary file beside it, fsync, rename. Whoever may read new files
    of this user may read it: evidence is there to be passed on.

    Raises HarnessError (DISK_FULL) when the file system refuses.
    """
    temporary = path.with_name(f".{secrets.token_hex(8)}")
    try:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("x", encoding="utf-8", errors="backslashreplace") as handle:
                handle.write(text)
                handle.flush()
                os.fsync(handle.fileno())
            temporary.replace(path)
        except BaseException:  # an interrupt too must leave no half file
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    except OSError as error:
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
