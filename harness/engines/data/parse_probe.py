"""Ask an engine's own argument parser what it accepts. Run under the engine's interpreter:

    python parse_probe.py ENGINE OUTPUT.json

Imports nothing of the harness. Writes the parser's options, one a line, and the source files they came from
with time and size, so that a reader can tell when the answer has aged. Fails with a traceback and exit code
1 when the engine cannot be imported. The packaged lists beside this file were made by it (LightLLM's has
options of later releases added).
"""

import argparse
import importlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

# Functions that read JSON: the standard one, vLLM's for its config objects, SGLang's own.
READ_JSON = ("loads", "parse_dataclass", "json_list_type", "parse_cuda_graph_config_arg")
NUMBERS = ("int", "float", "human_readable_int", "human_readable_int_or_auto")
NESTED = 3  # how deep a type may be wrapped in closures: optional(parse(int))


def build_parser(engine: str) -> Any:
    """The parser that the engine's server builds for its own command line."""
    if engine == "lightllm":
        return lightllm_parser()
    if engine == "sglang":
        parser = argparse.ArgumentParser()
        importlib.import_module("sglang.srt.server_args").ServerArgs.add_cli_args(parser)
        return parser
    if engine == "sglang_router":
        parser = argparse.ArgumentParser()
        importlib.import_module("sglang_router.router_args").RouterArgs.add_cli_args(parser)
        return parser
    flexible = importlib.import_module("vllm.utils.argparse_utils").FlexibleArgumentParser()
    try:
        module = importlib.import_module("vllm.entrypoints.launchers.cli_args")
    except ModuleNotFoundError:  # where older releases have it
        module = importlib.import_module("vllm.entrypoints.openai.cli_args")
    return module.make_arg_parser(flexible)


def lightllm_parser() -> Any:
    """From the one file that has it, which needs the standard library alone. Importing the package would
    load torch, and start CUDA on some hosts."""
    package = importlib.util.find_spec("lightllm")  # finds a top-level package, and imports nothing
    folders = list(package.submodule_search_locations or ()) if package else []
    name = "lightllm.server.api_cli"
    spec = importlib.util.spec_from_file_location(name, Path(folders[0], "server", "api_cli.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    if hasattr(module, "make_argument_parser"):
        return module.make_argument_parser()
    parser = argparse.ArgumentParser()
    module.add_cli_args(parser)
    return parser


def type_name(kind: Any, depth: int = NESTED) -> str:
    """`int`, `float`, `json`, `optional int`, ...; empty for text and for what only the engine can judge."""
    name = getattr(kind, "__name__", "")
    if name in NUMBERS:
        return str(name)
    if name in READ_JSON:
        return "json"
    if "<locals>" not in getattr(kind, "__qualname__", "") or not depth:
        return ""
    cells = [cell.cell_contents for cell in kind.__closure__ or ()]
    inner = next((found for cell in cells if callable(cell) and (found := type_name(cell, depth - 1))), "")
    return f"optional {inner}" if inner and "optional" in name else inner


def describe(action: argparse.Action, deprecated: bool) -> dict[str, Any]:
    """One option; what says nothing is left out."""
    scalar = isinstance(action.default, (bool, int, float, str)) and action.default != argparse.SUPPRESS
    kind = type(action).__name__
    makes_none = action.type not in (None, str)  # else a choice of None is only what the default is
    help_text = " ".join(str(action.help).split())
    deprecated = deprecated or "Deprecated" in kind or "deprecated" in help_text[:12].lower()
    entry = {
        "flags": list(action.option_strings),
        "type": type_name(action.type),
        "nargs": action.nargs,
        "choices": [str(choice) for choice in action.choices or () if choice is not None or makes_none],
        "default": action.default if scalar else None,
        "required": action.required,
        "repeats": kind in ("_AppendAction", "_ExtendAction"),
        "deprecated": help_text[:200] if deprecated else "",
    }
    return {key: value for key, value in entry.items() if value or (value == 0 and value is not False)}


def sources(package: str) -> dict[str, list[int]]:
    """Time and size of every source file of the package that was loaded to build the parser."""
    found = {}
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if path and (name == package or name.startswith(package + ".")):
            status = Path(path).stat()
            found[path] = [status.st_mtime_ns, status.st_size]
    return found


def main(engine: str, output: str) -> None:
    sys.path.pop(0)  # this file's own folder
    parser = build_parser(engine)
    marked: set[Any] = getattr(parser, "_deprecated", set())
    exits = ("_HelpAction", "_VersionAction")
    actions = [action for action in parser._actions if action.option_strings]  # noqa: SLF001 - no public way
    options = [describe(action, action in marked) for action in actions if type(action).__name__ not in exits]
    lines = ",\n".join(json.dumps(option) for option in options)
    text = f'{{"options": [\n{lines}\n],\n"sources": {json.dumps(sources(engine))}}}\n'
    Path(output).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
