"""Puts a server together, without its processes and sockets, for each run mode."""

import itertools
import secrets
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from harness.simulator import engine, start_args
from harness.simulator.api import Api
from harness.simulator.engine_api import engine_endpoints
from harness.simulator.faults import Planted
from harness.simulator.log import Log
from harness.simulator.model import Model
from harness.simulator.observer import LoggingObserver
from harness.simulator.pd.asked import NodeParts
from harness.simulator.pd.decode import Decode
from harness.simulator.pd.endpoints import master_endpoints, node_endpoints
from harness.simulator.pd.master import MasterService, Nodes
from harness.simulator.pd.prefill import Prefill
from harness.simulator.pd.receiver import Receiver, listener
from harness.simulator.pd.sender import Sender
from harness.simulator.pd.to_master import LOOPBACK, ToMaster, refuse_loopback
from harness.simulator.pump import Pump
from harness.simulator.scheduler import Scheduler
from harness.simulator.service import ID_STEP, Service
from harness.simulator.settings import Settings
from harness.simulator.tokenizer import Tokenizer

Work: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """What a server is made of. `args` are the resolved start arguments."""

    args: dict[str, Any]
    model: Model
    settings: Settings
    planted: Planted
    log: Log


@dataclass(frozen=True, kw_only=True, slots=True)
class Assembled:
    """`work` has to run for the server to answer, each for ever."""

    api: Api
    work: tuple[Work, ...]


def assemble(told: Told) -> Assembled:
    """Needs a running event loop. Raises OSError or ValueError for an answer key that cannot be read; OSError
    for an address that a node cannot listen on."""
    if told.args["run_mode"] == start_args.MASTER:
        return _master(told)
    return _Computing(told).assembled()


class _Computing:
    """A server that has an engine: alone, or a node."""

    def __init__(self, told: Told) -> None:
        args, settings = told.args, told.settings
        bounds = start_args.limits(args, told.model, settings.capacity)
        self.told = told
        self.tokenizer = Tokenizer.of(Path(args["model_dir"]))
        self.observer = LoggingObserver(told.log)
        self.engine: Scheduler = engine.build(
            bounds, args["llm_kv_type"], self.tokenizer, settings, told.planted, self.observer
        )
        self.pump = Pump(self.engine, told.planted, told.log, settings.speed)
        self.service = Service(args, self.pump, self.tokenizer, told.planted, told.log, settings.seed)

    def assembled(self) -> Assembled:
        told = self.told
        own = engine_endpoints(self.pump, told.planted, told.log)
        work: tuple[Work, ...] = (self.pump.run,)
        if told.args["run_mode"] in start_args.NODES:
            own = {**own, **node_endpoints()}
            work += self._node()
        return Assembled(api=Api(self.service, self.observer, told.log, told.model.sampling, own), work=work)

    def _node(self) -> tuple[Work, ...]:
        told, args, patience = self.told, self.told.args, self.told.settings.pd_speed
        host = str(args["host"])
        if host in LOOPBACK and not told.settings.allow_loopback_nodes:
            return (partial(refuse_loopback, told.log),)
        if host == "0.0.0.0":  # noqa: S104 - all interfaces: a node is known by the machine's own address
            host = socket.gethostbyname(socket.gethostname())
        node_id = secrets.randbelow(10**9)
        master = ToMaster(args, node_id, host, told.log, patience)
        parts = NodeParts(
            args=args,
            engine=self.engine,
            pump=self.pump,
            metrics=self.service.metrics,
            planted=told.planted,
            log=told.log,
            agent=f"{node_id}_0",
            longest=self.service.longest,
            hybrid=told.model.hybrid,
            patience=patience,
        )
        work, handle = self._half(parts, host, master.say)
        if "pd-never-registers" in told.planted:
            return (work,)
        return (work, partial(master.run, handle))

    def _half(self, parts: NodeParts, host: str, say: Callable[..., None]) -> tuple[Work, Any]:
        """What the node's transfers need to run, and what hears its master."""
        mode = parts.args["pd_trans_mode"]
        channel = listener(host)
        if mode == "nccl":
            text = f"NCCL RPyC control channel listen on {host}:{channel.getsockname()[1]}"
            parts.log.line("INFO", "nccl_transporter.py:44", text)
        if parts.args["run_mode"] == "prefill":
            sender = Sender(parts.agent, mode, parts.log, parts.patience)
            return partial(sender.run, channel), Prefill(parts, sender, say).handle
        receiver = Receiver(channel, parts.agent, mode, parts.args["pd_kv_page_num"], parts.log)
        decode = Decode(parts, receiver, say, self.tokenizer.eos_id)
        return partial(receiver.run, decode), decode.handle


def _master(told: Told) -> Assembled:
    args, settings, log = told.args, told.settings, told.log
    ids = itertools.count(ID_STEP, ID_STEP)
    nodes = Nodes(args, ids, told.planted, log, settings.pd_speed)
    tokenizer = Tokenizer.of(Path(args["model_dir"]))
    service = MasterService(args, nodes, tokenizer, told.planted, log, settings.seed, ids)
    own = master_endpoints(nodes, str(args["pd_master_mode"]), log)
    api = Api(service, LoggingObserver(log), log, told.model.sampling, own)
    return Assembled(api=api, work=(nodes.roster.watch,))
