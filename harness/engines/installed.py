"""Which engine an interpreter has: its version, its folder, and for a checkout its commit.

Nothing here imports an engine, neither into this process nor into another.
"""

import json
import os
import subprocess
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from harness.host.git import checkout_of, describe
from harness.host.logs import clean

TIMEOUT_S = 30.0
# Its last line is JSON: the version, and the package's folder; either may be empty. Finding a top-level
# package imports nothing.
ASK_INSTALLED = (
    "import importlib.metadata as m, importlib.util as u, json, sys\n"
    "version = ''\n"
    "for name in sys.argv[2:]:\n"
    "    try: version = m.version(name) or ''; break\n"
    "    except m.PackageNotFoundError: pass\n"
    "spec = u.find_spec(sys.argv[1])\n"
    "folder = next(iter(spec.submodule_search_locations or ()), '') if spec else ''\n"
    "print(); print(json.dumps([version, folder]))\n"
)


@dataclass(frozen=True, slots=True)
class Installed:
    """An engine as its interpreter finds it: its metadata's version, and the package's folder. `mute`: why
    the interpreter said nothing of either."""

    version: str = ""
    folder: Path | None = None
    mute: str = ""


@lru_cache
def ask_installed(python: str, names: tuple[str, ...], search_path: str) -> Installed:
    """What this interpreter has, asked once. `names` are the package's and then its distributions'."""
    try:
        answer = subprocess.run(
            [python, "-c", ASK_INSTALLED, *names],
            env={**os.environ, "PYTHONPATH": search_path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            cwd="/",
        )
    except subprocess.TimeoutExpired:
        return Installed(mute=f"it did not answer within {TIMEOUT_S:.0f} s")
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        return Installed(mute=str(error))
    try:
        *_, last = answer.stdout.splitlines()  # the interpreter's own start may print, too
        version, folder = map(str, json.loads(last))
    except (ValueError, TypeError, RecursionError):
        said = (answer.stderr or answer.stdout).strip().splitlines() or ["nothing"]
        return Installed(mute=f"it answered: {clean(said[-1])[:200]}")
    return Installed(version, Path(folder) if folder else None)


def commit_of(package: Path) -> str:
    """What git calls the commit of the checkout that a package is run from (`v1.2.0-34-g87881ae7c-dirty`);
    empty for an installed one, which has metadata folders beside it. Asked anew each time: a checkout may
    change between two lanes."""
    if any(package.parent.glob("*.dist-info")):
        return ""
    checkout = checkout_of(package)
    return describe(checkout, "--tags", "--always", "--dirty") if checkout else ""
