"""How soon the first request of an evaluation leaves once the server is ready: begun while it loads, against
the plain sequence of ready first and evaluator afterwards.

    python -m benchmarks.overlap [--rounds 3]

The server is a few lines that only note when the first prompt arrives; ready is when this program says so.
"""

import argparse
import json
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median

from benchmarks.lane import context
from harness.checks.gsm8k import Gsm8k, Gsm8kParams

PARAMS = Gsm8kParams(dataset="arithmetic", num_concurrent=4, batch_size=1, max_gen_toks=64)
PATIENCE_S = 120.0


class Server(ThreadingHTTPServer):
    """Answers every prompt with `4`, and remembers when the first one came."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.first: float | None = None


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        if self.server.first is None:
            self.server.first = time.monotonic()
        self.rfile.read(int(self.headers["Content-Length"]))
        body = json.dumps({"choices": [{"index": 0, "text": "#### 4", "finish_reason": "stop"}]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


def first_request_s(*, early: bool) -> float:
    """Seconds from ready to the first prompt at the server."""
    with tempfile.TemporaryDirectory() as place, Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        check = Gsm8k()
        where = context(Path(place) / "gsm8k", f"http://127.0.0.1:{server.server_address[1]}")
        where.folder.mkdir()
        begun = check.begin(PARAMS, where) if early else None
        deadline = time.monotonic() + PATIENCE_S
        while begun and begun.recorder and begun.recorder.counts.seen == 0 and time.monotonic() < deadline:
            time.sleep(0.05)  # the server loads for longer than the evaluator needs
        assert server.first is None
        ready = time.monotonic()
        check.collect(PARAMS, where, begun)
        server.shutdown()
        assert server.first is not None
        return server.first - ready


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    pairs = [(first_request_s(early=True), first_request_s(early=False)) for _ in range(rounds)]
    early, plain = median(pair[0] for pair in pairs), median(pair[1] for pair in pairs)
    print(f"first request after ready, begun while the server loads  median {early:.3f} s")
    print(f"first request after ready, one after the other           median {plain:.3f} s")


if __name__ == "__main__":
    main()
