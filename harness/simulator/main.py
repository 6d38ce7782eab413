"""The simulated `lightllm.server.api_server`."""

import asyncio
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from harness.simulator import start_args
from harness.simulator.assembly import Told, assemble
from harness.simulator.faults import Planted
from harness.simulator.launcher import Launcher, StartFailed, Stopped
from harness.simulator.log import Log
from harness.simulator.model import Model
from harness.simulator.serving import Serving, probe
from harness.simulator.settings import VARIABLE, BadSettings, load
from harness.simulator.speculation import Acceptance
from harness.simulator.start_args import NotSimulated


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
        rewrite(args, planted)
        if settings.accept_mean is not None and args["mtp_step"]:
            Acceptance(args["mtp_step"], settings.accept_mean)
    except ValueError as error:
        sys.stderr.write(f"simulator: {VARIABLE}: {error}\n")
        return 1
    return _run(Told(args=args, model=model, settings=settings, planted=planted, log=Log()), asked)


def rewrite(args: dict[str, Any], planted: Planted) -> None:
    """The faults that change an argument. Raises ValueError for one that does not exist."""
    if "kv-type-rewritten" in planted:
        other = "None" if args["llm_kv_type"] != "None" else "fp8kv_dsa"
        args["llm_kv_type"] = planted.to("kv-type-rewritten", other)
    if "pd-argument-mismatch" in planted and args["run_mode"] == "decode":
        name, _, value = planted.to("pd-argument-mismatch", "pd_kv_page_num=3").partition("=")
        if name not in args:
            raise ValueError(f"pd-argument-mismatch: there is no start argument '{name}'")
        args[name] = int(value) if value.isdecimal() else value


def _run(told: Told, asked: str) -> int:
    args, log = told.args, told.log
    if told.model.hybrid and args["enable_cpu_cache"]:
        size = args["cpu_cache_token_page_size"]
        text = f"set cpu_cache_token_page_size to {size} for linear hybrid att model"
        log.line("INFO", "api_start.py:388", text)
    launcher = Launcher(args, asked, told.planted, log)
    try:
        launcher.start()
        code = asyncio.run(_serve(told, launcher))
    except Stopped:
        log.line("INFO", "start_utils.py:158", "All processes have been terminated gracefully.")
        code = 0
    except StartFailed as error:
        log.line("ERROR", "start_utils.py:49", f"init func start_router_process : {error}")
        code = 1
    finally:
        launcher.end()
    return code


async def _serve(told: Told, launcher: Launcher) -> int:
    serving = Serving(
        host=told.args["host"],
        port=told.args["port"],
        assembled=assemble(told),
        launcher=launcher,
        planted=told.planted,
        log=told.log,
    )
    return await serving.run()


def _check_ports(args: dict[str, Any]) -> None:
    ports = [port for port in (args["port"], args["nccl_port"]) if port is not None]
    if len(set(ports)) != len(ports):
        raise RuntimeError(f"conflicting ports in list: {ports}")
    for port in ports:
        probe(args["host"], port)
