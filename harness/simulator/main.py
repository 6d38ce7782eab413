"""The simulated `lightllm.server.api_server`."""

import asyncio
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from harness.simulator import engine, start_args
from harness.simulator.api import Api
from harness.simulator.faults import Planted
from harness.simulator.launcher import Launcher, StartFailed, Stopped
from harness.simulator.log import Log
from harness.simulator.model import Model
from harness.simulator.observer import LoggingObserver
from harness.simulator.pump import Pump
from harness.simulator.service import Service
from harness.simulator.serving import Serving, probe
from harness.simulator.settings import VARIABLE, BadSettings, Settings, load
from harness.simulator.start_args import NotSimulated
from harness.simulator.tokenizer import Tokenizer


def main(parser: ArgumentParser) -> int:
    """Serve until stopped; returns the exit code. Whatever is wrong with the arguments is raised, or exits
    with 2, as in the real launcher."""
    given = parser.parse_args()
    try:
        settings = load()
        model = Model.of(Path(given.model_dir))
        args = start_args.resolve(given, model)
    except (BadSettings, NotSimulated) as error:
        sys.stderr.write(f"simulator: {error}\n")
        return 1
    _check_ports(args)
    asked = args["llm_kv_type"]
    try:
        planted = Planted(settings.faults, args, settings.seed)
    except ValueError as error:
        sys.stderr.write(f"simulator: {VARIABLE}: {error}\n")
        return 1
    if "kv-type-rewritten" in planted:
        args["llm_kv_type"] = planted.to("kv-type-rewritten", "None" if asked != "None" else "fp8kv_dsa")
    return _run(args, asked, model, settings, planted)


def _run(args: dict[str, Any], asked: str, model: Model, settings: Settings, planted: Planted) -> int:
    log = Log()
    launcher = Launcher(args, asked, planted, log)
    try:
        launcher.start()
        code = asyncio.run(_serve(args, model, settings, planted, log, launcher))
    except Stopped:
        log.line("INFO", "start_utils.py:158", "All processes have been terminated gracefully.")
        code = 0
    except StartFailed as error:
        log.line("ERROR", "start_utils.py:49", f"init func start_router_process : {error}")
        code = 1
    finally:
        launcher.end()
    return code


async def _serve(
    args: dict[str, Any], model: Model, settings: Settings, planted: Planted, log: Log, launcher: Launcher
) -> int:
    api, pump = assemble(args, model, settings, planted, log)
    serving = Serving(port=args["port"], api=api, pump=pump, launcher=launcher, planted=planted, log=log)
    return await serving.run()


def assemble(
    args: dict[str, Any], model: Model, settings: Settings, planted: Planted, log: Log
) -> tuple[Api, Pump]:
    """The server without its processes and sockets; `pump.run` has to run for it to answer. Needs a running
    event loop. Raises OSError or ValueError for an answer key that cannot be read."""
    bounds = start_args.limits(args, model, settings.capacity)
    tokenizer, observer = Tokenizer.of(Path(args["model_dir"])), LoggingObserver(log)
    simulated = engine.build(bounds, args["llm_kv_type"], tokenizer, settings, planted, observer)
    pump = Pump(simulated, planted, log, settings.speed)
    service = Service(args, pump, tokenizer, planted, log, settings.seed)
    return Api(service, observer, log, model.sampling), pump


def _check_ports(args: dict[str, Any]) -> None:
    ports = [port for port in (args["port"], args["nccl_port"]) if port is not None]
    if len(set(ports)) != len(ports):
        raise RuntimeError(f"conflicting ports in list: {ports}")
    for port in ports:
        probe(port)
