"""A node's connection to its master: it registers, says that it lives, and tries again for ever."""

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from typing import Any

from harness.simulator.log import Log
from harness.simulator.pd.link import Link, Message, upgrade

HEARTBEAT_S = 15.0
RETRY_S = 10.0
LOOPBACK = ("127.0.0.1", "localhost")


class ToMaster:
    """`run` keeps the connection up; what is said without one is lost, as the request that it is about."""

    def __init__(self, args: Mapping[str, Any], node_id: int, host: str, log: Log, patience: float) -> None:
        """`host`: the node's own address. `patience` scales all times."""
        self._args = args
        self._node_id = node_id
        self._host = host
        self._log = log
        self._patience = patience
        self._link: Link | None = None

    def say(self, kind: str, **fields: Any) -> None:
        if self._link is not None:
            self._link.send(kind, **fields)

    async def run(self, handle: Callable[[Message], None]) -> None:
        """For ever. `handle` is given what the master says."""
        while True:
            try:
                await self._session(handle)
            except OSError as error:
                self._log.trace("pd_loop.py:88", "connetion to pd_master has error", error)
            await asyncio.sleep(RETRY_S * self._patience)

    async def _session(self, handle: Callable[[Message], None]) -> None:
        link = await upgrade(self._args["pd_master_ip"], self._args["pd_master_port"], "/pd_register")
        told = {
            "node_id": self._node_id,
            "client_ip_port": f"{self._host}:{self._args['port']}",
            "mode": self._args["run_mode"],
            "start_args": dict(self._args),
        }
        link.send("register", **told)
        self._log.line("INFO", "pd_loop.py:61", f"Sent registration JSON: {told}")
        self._link = link
        beating = asyncio.create_task(self._beat(link))
        try:
            while True:
                handle(await link.receive())
        finally:
            self._link = None
            beating.cancel()
            link.close()

    async def _beat(self, link: Link) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S * self._patience)
            link.send("heartbeat")


async def refuse_loopback(log: Log) -> None:
    """What a real node does on an address that no other machine can reach: it interrupts its launcher."""
    log.line("ERROR", "pd_loop.py:31", "pd mode must specify host ip, not use 127.0.0.1 or localhost")
    os.kill(os.getpid(), signal.SIGINT)
