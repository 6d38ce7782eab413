"""`-m lm_eval …`, except that with a task file of one's own, lm-eval's own 14,000 are not read: that is most
of what a short evaluation costs. All else is lm-eval as it is.
"""

import functools
import importlib
import runpy
import sys
from pathlib import Path


def main(arguments: list[str]) -> None:
    if "--include_path" in arguments:
        manager = importlib.import_module("lm_eval.tasks").TaskManager
        manager.__init__ = functools.partialmethod(manager.__init__, include_defaults=False)
    sys.path[0] = str(Path.cwd())  # as `-m` has it
    sys.argv = arguments[1:]
    runpy.run_module("lm_eval", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
