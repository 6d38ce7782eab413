"""What the recording proxy costs: `python benchmarks/recorder.py`.

An upstream and a load generator run in processes of their own, both as lean as they can be. The proxied and
the direct rate are taken in turn (ABAB...) within one run, so that a busy machine slows both.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness.evidence.recorder import Recorder

PROMPT = {"model": "m", "prompt": "Question: 2 + 3?\nAnswer:", "max_tokens": 16, "temperature": 0}
CHOICE = {"index": 0, "text": " 2 + 3 = 5\n#### 5", "finish_reason": "stop", "logprobs": None}
USAGE = {"prompt_tokens": 9, "completion_tokens": 8, "total_tokens": 17}


class Upstream(asyncio.Protocol):
    """Answers every request with the same completion, after a delay."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        body = json.dumps({"object": "text_completion", "choices": [CHOICE], "usage": USAGE}).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self._answer = head.encode() + body
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        rest = whole_message(self._buffer)
        if rest is None:
            return
        self._buffer = rest
        if self._delay_s:
            asyncio.get_running_loop().call_later(self._delay_s, self._transport.write, self._answer)
        else:
            self._transport.write(self._answer)


class Client(asyncio.Protocol):
    """Sends the same request again as soon as it is answered, until the time is over."""

    def __init__(self, until: float) -> None:
        self._until = until
        body = json.dumps(PROMPT).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        self._request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        self._buffer = b""
        self.answers = 0
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        rest = whole_message(self._buffer)
        if rest is None:
            return
        if not self._buffer.startswith(b"HTTP/1.1 200 "):
            raise SystemExit(f"unexpected answer: {self._buffer[:200]!r}")
        self._buffer = rest
        self.answers += 1
        if time.monotonic() < self._until:
            self._transport.write(self._request)
        else:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the name is asyncio's
        self.done.set_result(None)


def whole_message(buffer: bytes) -> bytes | None:
    """What follows the first whole HTTP message of the buffer, None when it is not whole yet."""
    end = buffer.find(b"\r\n\r\n")
    if end < 0:
        return None
    head = buffer[:end].lower()
    length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
    return buffer[end + 4 + length :] if len(buffer) >= end + 4 + length else None


async def serve(delay_s: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Upstream(delay_s), "127.0.0.1", 0, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def load(port: int, concurrency: int, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    started = time.monotonic()
    clients = []
    for _ in range(concurrency):
        _, client = await loop.create_connection(lambda: Client(started + seconds), "127.0.0.1", port)
        clients.append(client)
    await asyncio.gather(*(client.done for client in clients))
    print(sum(client.answers for client in clients) / (time.monotonic() - started))


def rate(port: int, concurrency: int, seconds: float) -> float:
    """Requests per second of one load generator, in a process of its own."""
    argv = [sys.executable, __file__, "load", str(port), str(concurrency), str(seconds)]
    return float(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)


def measure(delay_s: float, concurrency: int, seconds: float, rounds: int) -> tuple[list[float], list[float]]:
    """Direct and proxied rates, taken in turn."""
    argv = [sys.executable, __file__, "serve", str(delay_s)]
    direct, proxied = [], []
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as upstream:
        assert upstream.stdout is not None
        try:
            port = int(upstream.stdout.readline())
            with tempfile.TemporaryDirectory() as folder:
                out = Path(folder) / "requests.jsonl"
                with Recorder(f"http://127.0.0.1:{port}", out) as recorder:
                    for _ in range(rounds):
                        direct.append(rate(port, concurrency, seconds))
                        proxied.append(rate(int(recorder.base_url.rsplit(":", 1)[1]), concurrency, seconds))
                if recorder.lost_evidence or recorder.counts.failed:
                    raise SystemExit(f"not sound: {recorder.lost_evidence} {recorder.counts}")
        finally:
            upstream.terminate()
    return direct, proxied


def report(seconds: float, rounds: int) -> None:
    direct, proxied = measure(0.050, 16, seconds, rounds)
    ratio = statistics.median(one / other for one, other in zip(proxied, direct, strict=True))
    print("recorder in front of a 50 ms server, concurrency 16")
    print(f"  direct   {statistics.median(direct):8.1f} requests/s")
    print(f"  proxied  {statistics.median(proxied):8.1f} requests/s")
    print(f"  ratio    {ratio:8.3f}   (goal: at least 0.98; median of {rounds} pairs)")
    direct, proxied = measure(0.0, 16, seconds, rounds)
    print("recorder in front of a server that answers at once, concurrency 16")
    print(f"  direct   {statistics.median(direct):8.0f} requests/s")
    print(f"  proxied  {statistics.median(proxied):8.0f} requests/s   (goal: at least 1000)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one measurement")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of measurements")
    modes = parser.add_subparsers(dest="mode")
    modes.add_parser("serve").add_argument("delay_s", type=float)
    loader = modes.add_parser("load")
    loader.add_argument("port", type=int)
    loader.add_argument("concurrency", type=int)
    loader.add_argument("duration", type=float)
    args = parser.parse_args()
    if args.mode == "serve":
        asyncio.run(serve(args.delay_s))
    elif args.mode == "load":
        asyncio.run(load(args.port, args.concurrency, args.duration))
    else:
        report(args.seconds, args.rounds)


if __name__ == "__main__":
    main()
