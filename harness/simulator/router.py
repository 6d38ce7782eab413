"""The router: the launcher's child that loads the model and then lives for as long as its launcher.

Started as `python -m harness.simulator.router FD`; it reports on that descriptor: `ok`, or the traceback.
It ignores SIGTERM, as LightLLM's children do.
"""

import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path

from harness.simulator import loading, settings, start_args
from harness.simulator.faults import Planted
from harness.simulator.log import Log
from harness.simulator.model import Model

START_ARGS = "LIGHTLLM_START_ARGS"
UNIQUE_NAME = "LIGHTLLM_UNIQUE_SERVICE_NAME_ID"
ASKED_KV_TYPE = "LIGHTLLM_SIMULATOR_ASKED_KV_TYPE"


class OutOfMemoryError(RuntimeError):
    """Named as torch's, and shown under its module."""

    __module__ = "torch"


def main(report: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent, log = os.getppid(), Log()
    told = settings.load()
    try:
        _load(told, log, parent)
    except (OutOfMemoryError, AssertionError) as error:
        log.trace("model_rpc.py:163", "load model error:", error)
        os.write(report, traceback.format_exc().encode())
        raise SystemExit(1) from None
    os.write(report, b"ok")
    os.close(report)
    while _lives(parent):
        time.sleep(told.parent_poll_seconds)
    _follow(log)


def _load(told: settings.Settings, log: Log, parent: int) -> None:
    args = json.loads(os.environ[START_ARGS])
    planted = Planted(told.faults, {**args, "llm_kv_type": os.environ[ASKED_KV_TYPE]}, told.seed)
    model = Model.of(Path(args["model_dir"]))
    bounds = start_args.limits(args, model, told.capacity)
    seconds = told.load_seconds * planted.factor("slow-but-progressing", 10)
    todo = list(loading.lines(args, model, bounds.max_total_token_num))
    if args["run_mode"] in start_args.NODES:
        start_args.check_transfer_page(args, model)
    if bounds.cpu_tokens:
        todo.append(loading.placement(bounds.max_total_token_num, bounds.cpu_tokens))
    for number, line in enumerate(todo):
        _sleep(line.share * seconds, parent, log)
        _write(line, log)
        if number == loading.WEIGHT_STEPS // 2:
            _break(planted, parent, log)


def _break(planted: Planted, parent: int, log: Log) -> None:
    """The faults that strike half-way through the weights."""
    if "child-killed-launcher-hangs" in planted:
        os.kill(os.getpid(), signal.SIGKILL)
    if "hang-loading" in planted:
        _sleep(float("inf"), parent, log)
    if "oom" in planted:
        raise OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.72 GiB of "
            "which 1.12 GiB is free."
        )


def _write(line: loading.Line, log: Log) -> None:
    if line.place:
        log.line("INFO", line.place, line.text)
    else:
        sys.stderr.write(f"pid {os.getpid()} {line.text}\r\n")
        sys.stderr.flush()


def _sleep(seconds: float, parent: int, log: Log) -> None:
    """Sleep, unless the launcher dies meanwhile."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if not _lives(parent):
            _follow(log)
        time.sleep(min(left, 0.2))


def _lives(parent: int) -> bool:
    return os.getppid() == parent


def _follow(log: Log) -> None:
    log.line("WARNING", "graceful_utils.py:55", f"parent is dead, kill self {os.getpid()}")
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]))
