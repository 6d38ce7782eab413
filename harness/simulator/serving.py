"""From "the model is loaded" to the exit code: the HTTP server and its supervision."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field

from harness.simulator import http
from harness.simulator.assembly import Assembled
from harness.simulator.faults import Planted
from harness.simulator.launcher import STOPPING, Launcher
from harness.simulator.log import Log

SUPERVISION_S = 0.5
DRAIN_S = 3.0  # what running requests get when the server is told to end
ORPHAN_LIVES_S = 900


@dataclass(kw_only=True)
class Serving:
    """One serving server; `run` gives the launcher's exit code."""

    host: str
    port: int
    assembled: Assembled
    launcher: Launcher
    planted: Planted
    log: Log
    _stop: "asyncio.Queue[int]" = field(default_factory=asyncio.Queue)

    async def run(self) -> int:
        self.log.line("INFO", "api_http.py:471", "server start up")
        loop = asyncio.get_running_loop()
        for number in STOPPING:
            loop.add_signal_handler(number, self._signalled, number)
        if self.launcher.signalled is not None:  # between loading and here
            self._signalled(self.launcher.signalled)
        self.log.line("INFO", "api_http.py:488", f"server start up ok, loop use is {loop}")
        try:
            listener = _listener(self.host, self.port)
        except OSError as error:
            self.log.raw(f"[Errno {error.errno}] error while attempting to bind on address: {error.strerror}")
            return self._http_died()
        server = http.Server(self.assembled.api.handle, self._access)
        await server.listen(listener)
        self.log.raw(
            f"[{time.strftime('%Y-%m-%d %H:%M:%S %z')}] [{os.getpid()}] [INFO] "
            f"Running on http://{self.host}:{self.port} (CTRL + C to quit)"
        )
        self._plant(listener)
        if "exits-at-ready" in self.planted:
            return self._http_died()
        running = [loop.create_task(work()) for work in self.assembled.work]
        try:
            return await self._supervise(server)
        finally:
            for task in running:
                task.cancel()

    def _plant(self, listener: socket.socket) -> None:
        if "orphan-holds-port" in self.planted:
            command = [sys.executable, "-c", f"import time; time.sleep({ORPHAN_LIVES_S})"]
            orphan = subprocess.Popen(command, pass_fds=[listener.fileno()], start_new_session=True)
            self.log.line("INFO", "start_utils.py:77", f"start process pid {orphan.pid}")

    async def _supervise(self, server: http.Server) -> int:
        while True:
            with contextlib.suppress(TimeoutError):
                number = await asyncio.wait_for(self._stop.get(), SUPERVISION_S)
                return await self._end(server, number)
            if self.planted.now("router-killed"):
                self.launcher.kill_router()
            dead = self.launcher.dead_child()
            if dead is not None:
                self.log.line(
                    "ERROR", "start_utils.py:168", f"Critical LightLLM submodule exited unexpectedly: {dead}"
                )
                return 1

    async def _end(self, server: http.Server, number: int) -> int:
        self.log.line("INFO", "start_utils.py:131", STOPPING[signal.Signals(number)])
        server.close()
        if number == signal.SIGINT:
            self.log.line("INFO", "start_utils.py:139", "All processes have been forcefully terminated.")
            return 0
        self.log.line(
            "INFO", "api_http.py:452", "Received signal to shutdown. Performing graceful shutdown..."
        )
        end = time.monotonic() + DRAIN_S
        while server.active and time.monotonic() < end and self._stop.empty():
            await asyncio.sleep(0.02)
        if not self._stop.empty():
            return 1
        self.log.line("INFO", "api_http.py:464", "Graceful shutdown completed.")
        self.log.line("INFO", "start_utils.py:150", "HTTP server exited gracefully")
        self.log.line("INFO", "start_utils.py:96", "All processes terminated gracefully.")
        self.log.line("INFO", "start_utils.py:158", "All processes have been terminated gracefully.")
        return 0

    def _signalled(self, number: int) -> None:
        if not ("ignores-sigterm" in self.planted and number == signal.SIGTERM):
            self._stop.put_nowait(number)

    def _http_died(self) -> int:
        self.log.line("ERROR", "start_utils.py:175", "HTTP server exited unexpectedly with return code 1")
        return 1

    def _access(self, method: str, path: str, status: int) -> None:
        colour = 32 if status < 400 else 31
        self.log.line("INFO", "api_http.py:127", f"\x1b[{colour}m{method} {path} {status}\x1b[0m")


def probe(host: str, port: int) -> None:
    """Raises RuntimeError as LightLLM does when the port is taken, TIME_WAIT included."""
    with socket.socket() as test:
        try:
            test.bind((host, port))
        except OSError as error:
            raise RuntimeError(f"port {port} has been used") from error


def _listener(host: str, port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    return listener
