"""The simulator's command line, loaded by its file path alone, as the harness loads the real one."""

import argparse
import importlib.util
from pathlib import Path
from types import ModuleType

import harness.simulator

API_CLI = Path(harness.simulator.__file__).parent / "site/lightllm/server/api_cli.py"


def module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lightllm_api_cli", API_CLI)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def parser() -> argparse.ArgumentParser:
    made = module().make_argument_parser()
    assert isinstance(made, argparse.ArgumentParser)
    return made
