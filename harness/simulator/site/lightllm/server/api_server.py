"""Entry point: `python -m lightllm.server.api_server <flags>`."""

import sys
from importlib.util import find_spec
from pathlib import Path

from lightllm.server.api_cli import make_argument_parser  # type: ignore[import-not-found]  # by PYTHONPATH

if find_spec("harness") is None:  # a checkout that is not installed in this Python
    sys.path.append(str(Path(__file__).parents[5]))

if __name__ == "__main__":
    from harness.simulator.main import main

    raise SystemExit(main(make_argument_parser()))
