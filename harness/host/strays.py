"""Files and sockets in the temporary directory that outlive a killed server, known by their names."""

import contextlib
import os
import shutil
from collections.abc import Callable, Collection
from pathlib import Path

FOLDER = Path("/tmp")  # noqa: S108 - where servers that ask nobody put them


def strays(owns: Callable[[str], bool]) -> tuple[str, ...]:
    """Paths of our user that `owns` claims."""
    try:
        with os.scandir(FOLDER) as entries:
            found = [entry.path for entry in entries if owns(entry.path) and _is_ours(entry)]
    except OSError:
        return ()
    return tuple(sorted(found))


def remove(paths: Collection[str]) -> None:
    """Remove what `strays` told. What cannot be removed stays; links are not followed."""
    for path in map(Path, paths):
        with contextlib.suppress(OSError):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def _is_ours(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.stat(follow_symlinks=False).st_uid == os.getuid()
    except OSError:
        return False
