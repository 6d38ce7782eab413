"""What a master and its nodes answer otherwise than a single server."""

import time

from harness.simulator.api import Endpoints
from harness.simulator.engine_api import health_timeout_s, told_to_fail
from harness.simulator.errors import EXPECTATION_FAILED, error_body
from harness.simulator.http import Request, Response
from harness.simulator.log import Log
from harness.simulator.pd.master import Nodes

FOR_USERS = ("/generate", "/generate_stream", "/", "/v1/completions", "/v1/chat/completions")


def node_endpoints() -> Endpoints:
    """Nobody but the master asks a node."""

    async def refuse(_: Request) -> Response:
        text = "service in pd mode dont recv reqs from http interface"
        return Response.of(error_body(text, "InternalServerError", EXPECTATION_FAILED), EXPECTATION_FAILED)

    return {path: {"POST": refuse} for path in FOR_USERS}


def master_endpoints(nodes: Nodes, mode: str, log: Log) -> Endpoints:
    """`mode` is `--pd_master_mode`."""
    roster = nodes.roster

    async def health(_: Request) -> Response:
        silent = time.monotonic() - nodes.last_token
        well = not (nodes.busy and silent > health_timeout_s()) and not told_to_fail()
        if not well:
            text = f"PD Master health check failed: no successful inference for {int(silent)}s"
            log.line("WARNING", "health_check.py:71", text)
        count = roster.count()
        if not count.ready:
            log.line("WARNING", "api_http.py:171", roster.not_ready())
        body = {"inference_healthy": well, "pd_nodes_ready": count.ready}
        if count.fixed:
            body["pd_nodes_healthy"] = await roster.healthy()
        good = all(body.values())
        told = {
            **body,
            "message": "Ok" if good else "Error",
            "pd_master_mode": mode,
            "registered_prefill_nodes": count.prefill,
            "registered_decode_nodes": count.decode,
        }
        return Response.of(told, 200 if good else 503)

    async def readiness(_: Request) -> Response:
        ready = roster.count().ready
        if not ready:
            log.line("WARNING", "api_http.py:171", roster.not_ready())
        return Response.of({"status": "ok" if ready else "not ready"}, 200 if ready else 503)

    async def token_load(_: Request) -> Response:
        return Response.text("Internal Server Error", 500)

    async def register(_: Request) -> Response:
        return Response(taken=roster.take)

    return {
        "/health": {"GET": health, "HEAD": health},
        "/healthz": {"GET": health},
        "/readiness": {"GET": readiness, "POST": readiness},
        "/token_load": {"GET": token_load},
        "/pd_register": {"GET": register},
    }
