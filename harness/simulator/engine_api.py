"""The endpoints of a server that computes: its health and its load."""

import os
import time

from harness.simulator.api import Endpoints
from harness.simulator.faults import Planted
from harness.simulator.http import Request, Response
from harness.simulator.log import Log
from harness.simulator.pump import Pump

HEALTH_TIMEOUT_S = 200.0


def engine_endpoints(pump: Pump, planted: Planted, log: Log) -> Endpoints:
    """`/health`, `/healthz` and `/token_load`."""

    async def health(_: Request) -> Response:
        silent = time.monotonic() - pump.last_token
        stuck = pump.engine.busy and silent > health_timeout_s() and "stall" not in planted
        if stuck:
            text = f"Health check failed: no success for {int(silent)}s and in-flight shm requests remain"
            log.line("WARNING", "health_check.py:63", text)
        if told_to_fail() or stuck:
            return Response.of({"message": "Error"}, 503)
        return Response.of({"message": "Ok"})

    async def token_load(_: Request) -> Response:
        current, logical, dynamic = pump.engine.load()
        return Response.of(
            {"current_load": current, "logical_max_load": logical, "dynamic_max_load": dynamic}
        )

    return {
        "/health": {"GET": health, "HEAD": health},
        "/healthz": {"GET": health},
        "/token_load": {"GET": token_load},
    }


def health_timeout_s() -> float:
    return float(os.environ.get("HEALTH_TIMEOUT", HEALTH_TIMEOUT_S))


def told_to_fail() -> bool:
    return os.environ.get("DEBUG_HEALTHCHECK_RETURN_FAIL") == "true"
