"""Looking at paths that people wrote. `Path` raises for a `~user` that is unknown, and for a folder that this
user may not enter; here such a path is one that is not there.
"""

import os
from pathlib import Path


def expanded(path: str) -> Path:
    """With the home for `~`, where that is known."""
    return Path(os.path.expanduser(path))  # noqa: PTH111


def is_there(path: Path) -> bool:
    return os.path.exists(path)  # noqa: PTH110


def is_file(path: Path) -> bool:
    return os.path.isfile(path)  # noqa: PTH113


def is_folder(path: Path) -> bool:
    return os.path.isdir(path)  # noqa: PTH112
