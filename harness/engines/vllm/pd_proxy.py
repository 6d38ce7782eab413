"""The router of vLLM's P/D lanes: every generation is asked of the prefill node, and then of the decode node.

    python pd_proxy.py --host HOST --port PORT --prefill URL --decode URL

The prefill node computes the prompt and one token, which is thrown away; what it tells of where the KV is
(`kv_transfer_params`) goes to the decode node, whose answer is the client's. Its cached tokens are replaced
by the prefill node's: the decode node counts whatever was moved to it. All else is asked of the decode node.

Nothing is tried again, nothing is streamed. Standard library only.
"""

import argparse
import http.client
import json
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

GENERATIONS = ("/v1/completions", "/v1/chat/completions")
REMOTE_DECODE = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
PASSED_ON = ("Content-Type", "X-Request-Id")
REQUEST_S = 3600.0
PROBE_S = 5.0
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # whatever the environment says


@dataclass(frozen=True, slots=True)
class Answer:
    """What a node said. Status 502 where it said nothing."""

    status: int
    body: bytes
    kind: str = "application/json"


@dataclass(frozen=True, slots=True)
class Nodes:
    """Base URLs by role."""

    urls: dict[str, str]

    def ask(
        self, role: str, path: str, body: bytes | None, headers: dict[str, str], limit_s: float = REQUEST_S
    ) -> Answer:
        request = urllib.request.Request(self.urls[role] + path, data=body, headers=headers)  # noqa: S310
        try:
            with _opened(request, limit_s) as answer:
                status, said = answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            return Answer(502, _error(f"{role} node {self.urls[role]} does not answer: {error!r}"))
        if status >= 400:
            return Answer(status, _error(f"{role}: {said.decode(errors='replace')[:2000]}"))
        return Answer(status, said, answer.headers.get("Content-Type", ""))

    def up(self) -> list[str]:
        """Roles of the nodes that are healthy."""
        return [role for role in self.urls if self.ask(role, "/health", None, {}, PROBE_S).status == 200]

    def generate(self, path: str, body: dict[str, Any], headers: dict[str, str]) -> Answer:
        first = {**body, "max_tokens": 1, "min_tokens": 0, "kv_transfer_params": REMOTE_DECODE}
        if "max_completion_tokens" in body:
            first["max_completion_tokens"] = 1
        prefilled = self.ask("prefill", path, json.dumps(first).encode(), headers)
        if prefilled.status != 200:
            return prefilled
        told = json.loads(prefilled.body)
        second = dict(body)
        if told.get("kv_transfer_params"):
            second["kv_transfer_params"] = told["kv_transfer_params"]
        decoded = self.ask("decode", path, json.dumps(second).encode(), headers)
        if decoded.status != 200:
            return decoded
        answer = json.loads(decoded.body)
        answer["usage"]["prompt_tokens_details"] = told["usage"].get("prompt_tokens_details")
        return Answer(200, json.dumps(answer).encode())


class Handler(BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"
    nodes: Nodes

    def do_GET(self) -> None:
        if self.path == "/readiness":
            up = self.nodes.up()
            ready = len(up) == len(self.nodes.urls)
            return self._send(Answer(200, json.dumps({"ready": ready, "nodes": up}).encode()))
        return self._send(self.nodes.ask("decode", self.path, None, self._headers()))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path not in GENERATIONS:
            return self._send(self.nodes.ask("decode", self.path, body, self._headers()))
        try:
            request = json.loads(body)
        except ValueError as error:
            return self._send(Answer(400, _error(f"router: {error}")))
        if not isinstance(request, dict) or request.get("stream"):
            return self._send(Answer(400, _error("router: expected a JSON object, and no `stream`")))
        try:
            return self._send(self.nodes.generate(self.path, request, self._headers()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return self._send(Answer(502, _error(f"router: a node's answer cannot be read: {error!r}")))

    def _headers(self) -> dict[str, str]:
        return {name: self.headers[name] for name in PASSED_ON if name in self.headers}

    def _send(self, answer: Answer) -> None:
        try:
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.kind or "application/json")
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)
        except OSError:  # the client has gone
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        sys.stdout.write(f"INFO:     {self.client_address[0]} - {format % args}\n")
        sys.stdout.flush()


class Server(ThreadingHTTPServer):
    """One thread for each connection; many may come at once."""

    daemon_threads = True
    request_queue_size = 512


def _opened(request: urllib.request.Request, limit_s: float) -> Any:
    try:
        return _DIRECT.open(request, timeout=limit_s)
    except urllib.error.HTTPError as error:  # an answer too
        return error


def _error(text: str) -> bytes:
    return json.dumps({"error": {"message": text, "type": "router_error"}}).encode()


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0] if __doc__ else "", allow_abbrev=False
    )
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--prefill", required=True)
    parser.add_argument("--decode", required=True)
    given = parser.parse_args(argv)
    Handler.nodes = Nodes({"prefill": given.prefill, "decode": given.decode})
    server = Server((given.host, given.port), Handler)
    sys.stdout.write(f"INFO:     Application startup complete. http://{given.host}:{given.port}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
