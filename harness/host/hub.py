"""Where the Hugging Face hub keeps what it has fetched onto this machine."""

from collections.abc import Mapping
from pathlib import Path

from harness.host.paths import expanded


def hub_cache(environ: Mapping[str, str]) -> Path:
    """The folder of the cache, whether it exists or not; `~` is expanded where that can be done."""
    home = environ.get("HF_HOME") or "~/.cache/huggingface"
    place = environ.get("HF_HUB_CACHE") or f"{home}/hub"
    return expanded(place)
