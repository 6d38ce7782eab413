"""The nodes that a master knows."""

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.simulator.log import Log
from harness.simulator.pd.link import Link, Message, http_status

DROPPED_S = 30.0  # without a sign of life
HEALTH_S = 8.0
MUST_MATCH = "max_req_total_len"


@dataclass(kw_only=True, slots=True, eq=False)
class Node:
    """`url` is address and port."""

    node_id: int
    mode: str
    url: str
    link: Link
    heard: float = field(default_factory=time.monotonic)

    def __str__(self) -> str:
        return f"{{'node_id': {self.node_id}, 'client_ip_port': '{self.url}', 'mode': '{self.mode}'}}"


@dataclass(frozen=True, slots=True)
class Count:
    """How many nodes there are and, with a fixed mode such as 1p1d, have to be."""

    prefill: int
    decode: int
    expected_prefill: int
    expected_decode: int
    fixed: bool

    @property
    def ready(self) -> bool:
        here, wanted = (self.prefill, self.decode), (self.expected_prefill, self.expected_decode)
        return here == wanted if self.fixed else min(here) >= 1


class Roster:
    """`heard` is told what nodes say, `gone` which of them left. `patience` scales the heartbeat's limit."""

    def __init__(
        self,
        args: Mapping[str, Any],
        log: Log,
        patience: float,
        heard: Callable[[Message], None],
        gone: Callable[[Node], None],
    ) -> None:
        self._args = args
        self._log = log
        self._patience = patience
        self._heard = heard
        self._gone = gone
        self._nodes: list[Node] = []
        self._sessions: set[asyncio.Task[None]] = set()

    def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A connection to `/pd_register`."""
        session = asyncio.get_running_loop().create_task(self._serve(Link(reader, writer)))
        self._sessions.add(session)
        session.add_done_callback(self._sessions.discard)

    def count(self) -> Count:
        modes = [node.mode for node in self._nodes]
        fixed = re.fullmatch(r"(\d+)p(\d+)d", str(self._args["pd_master_mode"]))
        wanted = (int(fixed[1]), int(fixed[2])) if fixed else (1, 1)
        return Count(modes.count("prefill"), modes.count("decode"), *wanted, fixed is not None)

    def not_ready(self) -> str:
        """The line about it."""
        count = self.count()
        return (
            f"PD nodes are not ready: current_prefill={count.prefill}, "
            f"expected_prefill={count.expected_prefill}, current_decode={count.decode}, "
            f"expected_decode={count.expected_decode}"
        )

    def pick(self) -> tuple[Node, Node]:
        """A prefill and a decode node, in turn. Raises RuntimeError where one is missing."""
        pair = []
        for mode in ("prefill", "decode"):
            node = next((node for node in self._nodes if node.mode == mode), None)
            if node is None:
                raise RuntimeError(self.not_ready())
            self._nodes.remove(node)
            self._nodes.append(node)
            pair.append(node)
        return pair[0], pair[1]

    async def healthy(self) -> bool:
        """Whether every node answers so."""
        asked = (
            http_status(host, int(port), "/health", HEALTH_S)
            for host, _, port in (node.url.rpartition(":") for node in self._nodes)
        )
        return all(status == 200 for status in await asyncio.gather(*asked))

    async def watch(self) -> None:
        """Drops nodes without a heartbeat, for ever."""
        limit = DROPPED_S * self._patience
        while True:
            await asyncio.sleep(limit / 10)
            for node in tuple(self._nodes):
                if time.monotonic() - node.heard > limit:
                    self._log.line("WARNING", "pd_manager.py:96", f"client {node} heartbeat timed out")
                    node.link.close()
                    self._remove(node)

    async def _serve(self, link: Link) -> None:
        node = None
        try:
            node = self._admit(link, await link.receive())
            while node is not None:
                message = await link.receive()
                node.heard = time.monotonic()
                if message.kind != "heartbeat":
                    self._heard(message)
        except (ConnectionError, KeyError, TypeError):  # it is gone, or no node
            pass
        finally:
            link.close()
            if node is not None:
                self._remove(node)

    def _admit(self, link: Link, hello: Message) -> Node | None:
        """Raises KeyError for one that does not introduce itself."""
        told = dict(hello.fields)
        own, theirs = self._args[MUST_MATCH], told["start_args"][MUST_MATCH]
        if own != theirs:
            text = f"client dont has same {MUST_MATCH} params, but pd master is {own}client is {theirs}"
            self._log.line("ERROR", "pd_manager.py:58", f"{text}client info {told}")
            return None
        url = told["client_ip_port"]
        node = Node(node_id=told["node_id"], mode=told["mode"], url=url, link=link)
        for earlier in [each for each in self._nodes if each.url == url]:
            self._remove(earlier)
        self._nodes.append(node)
        self._log.line("INFO", "pd_manager.py:71", f"mode: {node.mode} url: {url} registed")
        return node

    def _remove(self, node: Node) -> None:
        if node not in self._nodes:
            return
        self._nodes.remove(node)
        self._log.line("ERROR", "api_http.py:391", f"client {node} removed")
        self._log.line("INFO", "pd_manager.py:84", f"mode: {node.mode} url: {node.url} removed")
        self._gone(node)
