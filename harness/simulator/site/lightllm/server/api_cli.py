"""The command line of LightLLM, rebuilt from the harness's packaged argument list.

Standard library only and nothing of the package, so that it can be loaded by its file path alone.
"""

import argparse
import json
from pathlib import Path
from typing import Any

_LISTS = Path(__file__).parents[4] / "engines" / "data"
_TYPES = {"int": int, "float": float}


def add_cli_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add every option of the newest packaged list."""
    for option in json.loads(_newest().read_text(encoding="utf-8"))["options"]:
        parser.add_argument(*option["flags"], **_keywords(option))
    return parser


def make_argument_parser() -> argparse.ArgumentParser:
    """The parser; as the real one, it takes abbreviations."""
    return add_cli_args(argparse.ArgumentParser())


def _newest() -> Path:
    def release(path: Path) -> tuple[int, ...]:
        return tuple(int(part) for part in path.stem.removeprefix("lightllm-").split(".") if part.isdecimal())

    return max(_LISTS.glob("lightllm-*.json"), key=release)


def _keywords(option: dict[str, Any]) -> dict[str, Any]:
    if option.get("nargs") == 0:
        return {"action": "store_true", "default": option.get("default", False)}
    words: dict[str, Any] = {"default": option.get("default"), "required": option.get("required", False)}
    if option.get("repeats"):
        return {**words, "action": "append", "default": option.get("default") or []}
    for name in ("nargs", "choices"):
        if option.get(name):
            words[name] = option[name]
    if option.get("type") in _TYPES:
        words["type"] = _TYPES[option["type"]]
    return words
