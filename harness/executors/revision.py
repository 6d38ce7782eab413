"""Which harness this is, where it runs from a checkout: what the version number alone does not tell."""

from pathlib import Path

import harness
from harness.host.git import describe

HOME = Path(harness.__file__).parents[1]


def revision(checkout: Path = HOME) -> str:
    """The commit of the checkout, with `-dirty` behind it where tracked files differ from it. Empty for an
    installed harness, and where git is not there or cannot say."""
    return describe(checkout, "--always", "--abbrev=12", "--exclude=*", "--dirty")
