"""Prefill node, decode node and master: in one process for the quick tests, or as three."""

import asyncio
import json
import re
import socket
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.engines.base import Transfer
from harness.engines.lightllm.pd import PdLog, read
from harness.simulator import http, start_args
from harness.simulator.assembly import Told, assemble
from harness.simulator.faults import Planted
from harness.simulator.log import Log
from harness.simulator.model import Model
from harness.simulator.settings import Settings
from tests.simulator.launched import DEADLINE_S, GLM, Inside, Launched, launched, model_dir
from tests.simulator.parser import parser

MODES = {"prefill": "prefill", "decode": "decode", "master": "pd_master"}
PLAIN = {**GLM, "model_type": "llama", "index_topk": None}
TOGETHER = ("--max_req_total_len", "8192", "--model_name", "glm53")
NODE = (
    *("--max_total_token_num", "32768", "--chunked_prefill_size", "512", "--batch_max_tokens", "2048"),
    *("--linear_att_hash_page_size", "128", "--llm_kv_type", "fp8kv_dsa"),
)
TRANSFER = ("--pd_kv_page_size", "32768", "--pd_kv_page_num", "2")
QUICK = {"speed": 0, "pd_speed": 0.02, "allow_loopback_nodes": True}


def prompt(length: int, name: str = "") -> str:
    """A text of exactly this many tokens, the one at the beginning included."""
    text = f"{name}. " + "There are some more words here to read. " * (length // 40 + 1)
    return text[: length - 1]


@dataclass
class Trio:
    """The three servers; `master` is the one to ask."""

    prefill: Inside
    decode: Inside
    master: Inside

    async def joined(self) -> None:
        await self.until(lambda: self.master.log.count(" registed") == 2)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                await asyncio.sleep(0.01)

    async def ask(self, text: str, tokens: int = 16, **more: Any) -> Any:
        same = {"max_new_tokens": tokens, "min_new_tokens": tokens, "return_details": True}
        return await self.master.post("/generate", {"inputs": text, "parameters": {**same, **more}})

    def transfers(self, sub_id: int) -> tuple[Transfer | None, Transfer | None]:
        """Of one request, as the harness reads the two nodes' logs."""
        name = str(sub_id)
        sides = [pd_log(server.log).transfers.get(name) for server in (self.prefill, self.decode)]
        return sides[0], sides[1]


def pd_log(log: str) -> PdLog:
    return read(enumerate(log.splitlines(), 1))


@asynccontextmanager
async def inside_pd(
    *flags: str,
    settings: Mapping[str, Any] | None = None,
    model: Mapping[str, Any] = GLM,
    own: Mapping[str, tuple[str, ...]] | None = None,
) -> AsyncGenerator[Trio, None]:
    """`flags` are for both nodes, `own` for one role. The servers listen, and share this process."""
    async with AsyncExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory())
        folder = model_dir(Path(name) / "model", model)
        told = Settings.model_validate({**QUICK, **(settings or {})})
        listeners = {role: socket.create_server(("127.0.0.1", 0)) for role in MODES}
        ports = {role: str(each.getsockname()[1]) for role, each in listeners.items()}
        # Opened before anything runs, so that they are closed after all of it has ended.
        logs = {role: stack.enter_context((Path(name) / f"{role}.log").open("wb")) for role in MODES}
        servers: dict[str, Inside] = {}
        for role, mode in MODES.items():
            words = ["--model_dir", str(folder), "--run_mode", mode, "--port", ports[role], *TOGETHER]
            if role == "master":
                words += ["--pd_master_mode", "1p1d"]
            else:
                words += [*NODE, *TRANSFER, "--pd_master_ip", "127.0.0.1", *flags]
                words += ["--pd_master_port", ports["master"]]
            words += (own or {}).get(role, ())
            log = logs[role]
            read_model = Model.of(folder)
            args = start_args.resolve(parser().parse_args(words), read_model)
            planted = Planted(told.faults, args, told.seed)
            made = assemble(
                Told(args=args, model=read_model, settings=told, planted=planted, log=Log(log.fileno()))
            )
            server = http.Server(made.api.handle, lambda *_: None)
            await server.listen(listeners[role])
            stack.callback(server.close)
            stack.push_async_callback(_ended, [asyncio.create_task(work()) for work in made.work])
            servers[role] = Inside(made.api, Path(log.name))
        yield Trio(**servers)


async def _ended(tasks: list["asyncio.Task[None]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0.02)  # who has talked to them sees that they are gone, and says so in a log


def together(work: Callable[[Trio], Awaitable[Any]], *flags: str, join: bool = True, **more: Any) -> Any:
    """Run with all three, once they have joined."""

    async def whole() -> Any:
        async with inside_pd(*flags, **more) as trio:
            if join:
                await trio.joined()
            return await asyncio.wait_for(work(trio), DEADLINE_S)

    return asyncio.run(whole())


@contextmanager
def launched_pd(
    folder: Path, *flags: str, settings: Mapping[str, Any] | None = None, model: Mapping[str, Any] = GLM
) -> Iterator[dict[str, Launched]]:
    """Three processes on 127.0.0.1, by role; the master first, since the others are told its port. All have
    one model's directory, `folder/model`."""
    with ExitStack() as stack:
        told = {**QUICK, **(settings or {})}
        same = ("--model_dir", str(model_dir(folder / "model", model)))
        servers: dict[str, Launched] = {}
        for role in ("master", "prefill", "decode"):
            place = folder / role
            place.mkdir()
            words = ["--run_mode", MODES[role], *TOGETHER, *same]
            if role == "master":
                words += ["--pd_master_mode", "1p1d"]
            else:
                words += [*NODE, *TRANSFER, *flags, "--pd_master_ip", "127.0.0.1"]
                words += ["--pd_master_port", str(servers["master"].port)]
            servers[role] = stack.enter_context(launched(place, *words, settings=told, model=model))
        yield servers


def joined(servers: Mapping[str, Launched]) -> None:
    """Wait until both nodes have registered."""
    for mode in ("prefill", "decode"):
        url = f"127.0.0.1:{servers[mode].port}"
        servers["master"].wait_for(f"mode: {mode} url: {url} registed")


def done_lines(log: str) -> list[str]:
    return re.findall(r"\] (X-Request-Id:.*)", log)


def body(response: Any) -> Any:
    return json.loads(response.body)
