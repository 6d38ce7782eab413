"""What git says of a checkout; nothing, quickly, where it cannot say."""

import os
import subprocess
from pathlib import Path

PATIENCE_S = 5.0  # a checkout on a slow network disk


def describe(checkout: Path, *options: str) -> str:
    """`git describe` at the top folder of a checkout. Empty where there is no repository of its own, and
    where git is not there or cannot say."""
    if not (checkout / ".git").exists():  # a folder further up would be somebody else's repository
        return ""
    return _ask(checkout, "describe", *options) or ""


def checkout_of(folder: Path) -> Path | None:
    """The top folder of the repository that keeps files of this folder. None where no repository does, be the
    folder inside one or not."""
    place = folder.resolve()
    top = next((above for above in (place, *place.parents) if (above / ".git").exists()), None)
    if top is None or _ask(place, "ls-files", "--error-unmatch", "--", ".") is None:
        return None
    return top


def _ask(folder: Path, *words: str) -> str | None:
    """None where git fails. The caller's own GIT_DIR and the like, those of a hook for instance, are not
    passed on: they would name another repository."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        answer = subprocess.run(
            ["git", "-C", str(folder), *words],
            env={**kept, "GIT_OPTIONAL_LOCKS": "0"},  # it only looks
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE_S,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
