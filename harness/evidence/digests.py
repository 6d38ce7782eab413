"""Digests, and `digests.json` of a lane: a sha256 of each file of its evidence, for a later reader.

It proves nothing against somebody who rewrites both; it finds what was lost, cut, edited or mixed up.
"""

import hashlib
import json
from pathlib import Path, PurePosixPath
from typing import Final

from harness.errors import HarnessError
from harness.evidence.files import files_below, open_regular, read_bytes, write_atomic
from harness.findings import Code

FILE_NAME: Final = "digests.json"
# Written by judging, and anew whenever it is repeated: made of the evidence, no part of it.
DERIVED: Final = frozenset({FILE_NAME, "findings.jsonl", "summary.txt"})


def text_sha256(text: str) -> str:
    """Of the UTF-8, lone surrogates and all; as lm-eval hashes, which could not have hashed those."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def file_sha256(path: Path) -> str:
    """Of a regular file. Raises OSError."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def evidence_below(folder: Path) -> list[Path]:
    """Regular files under the folder, without links and what judging derives."""
    found = files_below(folder) or []
    return [path for path in found if path.name not in DERIVED and not path.is_symlink()]


def write_digests(folder: Path) -> None:
    """Write `digests.json` into the folder: relative path to sha256 of all its evidence, the log of a stopped
    server too; nothing where there is none. Raises HarnessError."""
    digests = {}
    try:
        for path in evidence_below(folder):
            digests[path.relative_to(folder).as_posix()] = file_sha256(path)
    except OSError as error:
        what = f"cannot read the evidence {error.filename or folder}: {error.strerror or error}"
        raise HarnessError(what, evidence=str(folder), code=Code.EVIDENCE_MISSING) from error
    if digests:  # ASCII: a file's name may be any bytes.
        write_atomic(folder / FILE_NAME, json.dumps(digests, indent=2) + "\n")


def check_digests(folder: Path) -> list[str]:
    """What is not as it was written, one sentence each; empty when every listed file is there and unchanged.
    A file that is not listed came later, and is no matter. Raises nothing."""
    try:
        digests = json.loads(read_bytes(folder / FILE_NAME))
    except OSError as error:
        return [f"{FILE_NAME} cannot be read: {error.strerror or error}"]
    except (ValueError, RecursionError):
        return [f"{FILE_NAME} is not JSON"]
    if not isinstance(digests, dict) or not digests:
        return [f"{FILE_NAME} lists no file"]
    wrong = ((name, _fault(folder, name, wanted)) for name, wanted in digests.items())
    return [f"{ascii(name)[1:-1]} {fault}" for name, fault in wrong if fault]


def listed_files(folder: Path) -> list[str]:
    """Relative paths that `digests.json` lists, none that leads out of the folder; empty where it cannot be
    read. Raises nothing."""
    try:
        digests = json.loads(read_bytes(folder / FILE_NAME))
    except (OSError, ValueError, RecursionError):
        return []
    return [name for name in digests if not _leads_out(name)] if isinstance(digests, dict) else []


def _leads_out(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return not parts or parts[0] == "/" or ".." in parts


def _fault(folder: Path, name: str, wanted: object) -> str:
    """What is wrong with one listed file, as the end of a sentence; empty when nothing is."""
    if _leads_out(name):
        return f"is listed in {FILE_NAME}, but leads out of the folder"
    path = folder / name
    try:
        if path.is_symlink():
            return "has become a link"
        return "" if file_sha256(path) == wanted else "has changed since it was written"
    except FileNotFoundError:
        return "is gone"
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        return f"cannot be read: {getattr(error, 'strerror', None) or error}"
