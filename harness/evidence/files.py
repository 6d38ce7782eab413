"""Writing evidence so that a crash never leaves half a file, and reading nothing but files."""

import contextlib
import errno
import json
import os
import secrets
import stat
from io import BufferedReader
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


def open_regular(path: Path) -> BufferedReader:
    """The file, open for reading. Raises OSError; for a FIFO, a device or a socket too, which could keep the
    reader waiting for ever, or never end."""
    file = open(path, "rb", opener=_at_once)  # noqa: SIM115 - Path's own has no opener
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def read_bytes(path: Path) -> bytes:
    """All of a regular file. Raises OSError."""
    with open_regular(path) as file:
        return file.read()


def files_below(folder: Path, limit: int | None = None) -> list[Path] | None:
    """The regular files of a directory tree, sorted; links to folders are not followed. None where more than
    `limit` files and folders lie in it: then it is not what somebody meant to name."""
    found = []
    entries = 0
    for place, folders, names in os.walk(folder):
        entries += len(folders) + len(names)
        if limit is not None and entries > limit:
            return None
        paths = (Path(place, name) for name in names)
        found += [path for path in paths if os.path.isfile(path)]  # noqa: PTH113 - Path's own can raise
    return sorted(found)
