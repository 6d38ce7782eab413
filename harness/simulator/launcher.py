"""The launcher: its router child, its signals, what it owns on the host, and the order in which all ends."""

import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from harness.simulator.faults import Planted
from harness.simulator.leftovers import Leftovers
from harness.simulator.log import Log
from harness.simulator.router import ASKED_KV_TYPE, START_ARGS, UNIQUE_NAME
from harness.simulator.start_args import MASTER

STOPPING = {
    signal.SIGINT: "Received SIGINT (Ctrl+C), forcing immediate exit...",
    signal.SIGTERM: "Received SIGTERM, shutting down gracefully...",
    signal.SIGHUP: "Received SIGHUP, shutting down gracefully...",
}


class Stopped(Exception):
    """A signal asked the launcher to end while it was loading."""


class StartFailed(Exception):
    """The router could not be started; the text is its traceback."""


class Launcher:
    """Owns the router and the leftovers of one server."""

    def __init__(self, args: dict[str, Any], asked_kv_type: str, planted: Planted, log: Log) -> None:
        self._args = args
        self._asked_kv_type = asked_kv_type
        self._planted = planted
        self._log = log
        self._master = args["run_mode"] == MASTER
        self._uniq = f"{secrets.token_hex(8)}_{'pd_master' if self._master else args['node_rank']}"
        args["zmq_mode"] = f"{args['zmq_mode']}_{self._uniq}_"
        self._leftovers = Leftovers(self._uniq)
        self._router: subprocess.Popen[bytes] | None = None
        self._report = -1
        self.signalled: int | None = None

    def start(self) -> None:
        """Log the arguments, make what outlives processes, start the router, which a P/D master has not, and
        wait for its report.

        Raises Stopped, StartFailed.
        """
        for number in STOPPING:
            signal.signal(number, self._caught)
        self._log.line("INFO", "api_start.py:96", f"zmq mode head: {self._args['zmq_mode']}")
        shown = ", ".join(f"{name}={value!r}" for name, value in self._args.items())
        self._log.line("INFO", "api_start.py:501", f"all start args:StartArgs({shown})")
        port = _free_port()
        self._leftovers.make(port)
        self._log.line("INFO", "shm_port_args.py:88", f"ShmPortArgs alloc router_port={port}")
        if self._args["enable_cpu_cache"] or "leaves-sysv" in self._planted:
            self._log.line(
                "INFO", "kv_cache_utils.py:121", f"Shared memory ID: {self._leftovers.make_segment()}"
            )
        if self._args["enable_cpu_cache"]:
            self._init_ok("start_multi_level_kv_cache_manager")
        self._init_ok("start_metric_manager")
        if not self._master:
            self._start_router()
            self._wait()
            self._init_ok("start_router_process")
            self._init_ok("start_detokenization_process")
        self._log.line("INFO", "api_start.py:590", f"start process pid {os.getpid()}")

    def kill_router(self) -> None:
        """By SIGKILL, if there is one."""
        if self._router is not None:
            self._router.kill()

    def dead_child(self) -> str | None:
        """A line about the router, if it has ended."""
        if self._router is None or (code := self._router.poll()) is None:
            return None
        return f"name=start_router_process pid={self._router.pid} exitcode={code}"

    def end(self) -> None:
        """Kill the router and remove what is outside the process, but for what faults leave there."""
        for number in STOPPING:
            signal.signal(number, signal.SIG_IGN)
        if self._router is not None:
            self._router.kill()
            self._router.wait()
        self._leftovers.remove(
            shm="leaves-shm" not in self._planted, segment="leaves-sysv" not in self._planted
        )

    def _init_ok(self, name: str) -> None:
        self._log.line("INFO", "start_utils.py:52", f"init func {name} : init ok")

    def _start_router(self) -> None:
        self._report, child_end = os.pipe()
        environment = {
            **os.environ,
            START_ARGS: json.dumps(self._args),
            UNIQUE_NAME: self._uniq,
            ASKED_KV_TYPE: self._asked_kv_type,
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]),
        }
        command = [sys.executable, "-m", "harness.simulator.router", str(child_end)]
        self._router = subprocess.Popen(
            command, env=environment, pass_fds=[child_end], stdin=subprocess.DEVNULL
        )
        if "child-killed-launcher-hangs" not in self._planted:
            os.close(child_end)  # kept open, the pipe never ends, and the launcher waits for a dead child

    def _wait(self) -> None:
        said = b""
        while True:
            if self.signalled is not None:
                self._stop_loading(self.signalled)
            if not select.select([self._report], [], [], 0.05)[0]:
                continue
            piece = os.read(self._report, 65536)
            said += piece
            if said == b"ok":
                os.close(self._report)
                return
            if not piece:
                assert self._router is not None
                code = self._router.wait()
                raise StartFailed(said.decode(errors="replace") or f"router ended with exit code {code}")

    def _stop_loading(self, number: int) -> None:
        self._log.line("INFO", "start_utils.py:131", STOPPING[signal.Signals(number)])
        if "sigterm-while-loading-hangs" in self._planted and number == signal.SIGTERM:
            assert self._router is not None
            self._router.kill()
            while True:
                signal.pause()
        raise Stopped

    def _caught(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - a signal handler
        if "ignores-sigterm" in self._planted and number == signal.SIGTERM:
            return
        self.signalled = number


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
