"""Data sets shipped with the harness: folders of `train.jsonl` and `test.jsonl` in the form of GSM8K."""

from pathlib import Path

ROOT = Path(__file__).parent


def names() -> tuple[str, ...]:
    """Names of the shipped sets."""
    return tuple(sorted(folder.name for folder in ROOT.iterdir() if (folder / "test.jsonl").is_file()))


def path(name: str) -> Path:
    """The folder of a shipped set. Raises KeyError for a name that is none."""
    if name not in names():
        raise KeyError(name)
    return ROOT / name
