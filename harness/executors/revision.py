"""Which harness this is, where it runs from a checkout: what the version number alone does not tell."""

import os
import subprocess
from pathlib import Path

import harness

HOME = Path(harness.__file__).parents[1]
PATIENCE_S = 2.0


def revision(checkout: Path = HOME) -> str:
    """The commit of the checkout, with `-dirty` behind it where tracked files differ from it. Empty for an
    installed harness, and where git is not there or cannot say."""
    if not (checkout / ".git").exists():  # a folder further up would be somebody else's repository
        return ""
    command = ["git", "-C", str(checkout), "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        answer = subprocess.run(
            command,
            env={**kept, "GIT_OPTIONAL_LOCKS": "0"},  # it only looks
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""
