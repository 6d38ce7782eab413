"""Secrets out of files that other programs have written: a server may log its arguments, and an evaluator its
own. Only files in which a secret occurs are touched.
"""

import contextlib
import json
import re
import secrets as random
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO

from harness.errors import HarnessError
from harness.findings import Code
from harness.host.redact import MASK, telling

BLOCK = 1 << 20
HEAD = 1 << 13


def scrub(folder: Path, secrets: Collection[str]) -> list[Path]:
    """Mask these secrets in every text file under the folder; returns the files that were rewritten.

    A file of any size takes constant memory and is replaced in one step, its mode and times kept. Secrets of
    less than `SHORTEST` characters, binary files and links are left alone. Raises HarnessError, after all
    others were done, when a file cannot be read or rewritten.
    """
    spellings = {form for secret in telling(secrets) for form in _spellings(secret)}
    if not spellings:
        return []
    longest = max(map(len, spellings))
    pattern = re.compile(b"|".join(re.escape(each) for each in sorted(spellings, key=len, reverse=True)))
    changed: list[Path] = []
    failed: list[str] = []
    for file in sorted(folder.rglob("*")):
        try:
            if file.is_file() and not file.is_symlink() and _holds(file, pattern, longest):
                _rewrite(file, pattern, longest)
                changed.append(file)
        except OSError as error:
            failed.append(f"{file}: {error.strerror or error}")
    if failed:
        raise HarnessError(
            f"secrets may still stand in evidence: {'; '.join(failed)}",
            cause="the disk is full, or a file is not ours",
            fix="mask or delete these files before they are passed on",
            evidence=str(folder),
            code=Code.DISK_FULL,
        )
    return changed


def _spellings(secret: str) -> Iterator[bytes]:
    """As it is, and as JSON and Python write it."""
    for text in (secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]):
        yield text.encode(errors="surrogateescape")
    yield repr(secret)[1:-1].encode(errors="surrogateescape")


def _holds(file: Path, pattern: re.Pattern[bytes], longest: int) -> bool:
    with file.open("rb") as source:
        if b"\0" in source.read(HEAD):
            return False
        source.seek(0)
        return any(found for _, found in _masked(source, pattern, longest))


def _rewrite(file: Path, pattern: re.Pattern[bytes], longest: int) -> None:
    temporary = file.with_name(f".scrub-{random.token_hex(8)}")
    try:
        with file.open("rb") as source, temporary.open("xb") as target:
            for text, _ in _masked(source, pattern, longest):
                target.write(text)
        shutil.copystat(file, temporary)
        temporary.replace(file)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _masked(source: BinaryIO, pattern: re.Pattern[bytes], longest: int) -> Iterator[tuple[bytes, bool]]:
    """The text piece by piece with every match masked, and whether the piece had one. A match may lie across
    two blocks: what could be the beginning of one is kept for the next piece."""
    rest = b""
    while True:
        block = source.read(BLOCK)
        rest += block
        end = len(rest) - longest + 1 if block else len(rest)
        done, pieces = 0, []
        for match in pattern.finditer(rest):
            if match.start() >= end:
                break
            pieces += [rest[done : match.start()], MASK.encode()]
            done = match.end()
        if end > done:
            pieces.append(rest[done:end])
            rest = rest[end:]
        else:
            rest = rest[done:]
        yield b"".join(pieces), done > 0
        if not block:
            return
