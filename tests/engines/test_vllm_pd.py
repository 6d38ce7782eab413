"""vLLM as a P/D lane: commands of the nodes, and the harness's own router between them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from harness.engines.base import TransferTotals
from harness.engines.client import Client
from harness.engines.vllm.adapter import Vllm
from harness.engines.vllm.router import PROGRAM, VllmRouter
from harness.host.ports import PortBook
from harness.scenario.model import FlagValue
from tests.engines.canned import Canned
from tests.engines.pd_launch import pd_launch
from tests.servers.scripted import CLOSE, Received, Script, Scripted, answer

VLLM, ROUTER = Vllm(), VllmRouter()
FILES: dict[str, FlagValue] = {"--kv-transfer-config.kv_connector": "ExampleConnector"}
NIXL: dict[str, FlagValue] = {"--kv-transfer-config.kv_connector": "NixlConnector"}


launch = partial(pd_launch, "vllm")


def test_commands_of_the_nodes() -> None:
    prefill, decode = (" ".join(VLLM.argv(launch(role, FILES))) for role in ("prefill", "decode"))
    assert " --kv-transfer-config.kv_role kv_producer " in prefill
    assert " --kv-transfer-config.kv_role kv_consumer " in decode
    for command in (prefill, decode):  # both look into the same place
        assert "kv_connector_extra_config.shared_storage_path /runs/pd/scratch/kv " in command
        assert command.endswith("--kv-transfer-config.kv_connector ExampleConnector")
    assert "kv_role" not in " ".join(VLLM.argv(launch("normal")))


def test_nixl_has_a_port_of_its_own() -> None:
    node = launch("decode", NIXL)
    assert set(node.ports) == {"http", "side_channel"}
    assert VLLM.environment(node)["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "20301"
    assert "shared_storage_path" not in " ".join(VLLM.argv(node))
    assert VLLM.ports("decode", FILES) == VLLM.ports("normal", NIXL) == ("http",)


@pytest.mark.process
@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({}, "a prefill node needs `--kv-transfer-config.kv_connector`"),
        ({"--kv-transfer-config": '{"kv_connector": "NixlConnector"}'}, "write its entries one by one"),
        ({**FILES, "--kv-transfer-config.kv_role": "kv_both"}, "kv_role is set by the harness"),
    ],
)
def test_problems_of_a_node(flags: dict[str, FlagValue], sentence: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    node = launch("prefill", flags, model_path=str(tmp_path), python="/bin/sh")
    assert sum(sentence in problem for problem in VLLM.problems(node)) == 1
    assert not any("kv_connector" in problem for problem in VLLM.problems(launch("normal", {})))


def test_totals() -> None:
    kinds = (
        "# TYPE vllm:external_prefix_cache_hits counter\n# TYPE vllm:nixl_bytes_transferred histogram\n"
        "# TYPE vllm:nixl_num_failed_transfers counter\n"
    )
    hits = f"{kinds}vllm:external_prefix_cache_hits_total 256\n"
    assert VLLM.transferred(Canned(metrics=hits)) == TransferTotals(tokens=256, failed=0)
    moved = f"{hits}vllm:nixl_bytes_transferred_sum 5898240\nvllm:nixl_num_failed_transfers_total 2\n"
    assert VLLM.transferred(Canned(metrics=moved)) == TransferTotals(tokens=256, size=5898240, failed=2)


def test_the_router_takes_no_flags() -> None:
    assert ROUTER.problems(launch("router")) == []
    (problem,) = ROUTER.problems(launch("router", {"--policy": "random"}))
    assert problem.startswith("--policy: ")


# the router itself


def body(text: str, cached: int, **more: Any) -> bytes:
    details = {"cached_tokens": cached}
    usage = {"prompt_tokens": 3, "completion_tokens": 1, "prompt_tokens_details": details}
    choice = {"text": text, "token_ids": [7], "finish_reason": "length"}
    return answer(json.dumps({"choices": [choice], "usage": usage, **more}).encode())


def node(reply: bytes) -> Script:
    def script(request: Received) -> Iterator[bytes]:
        yield answer(b"") if "/health" in request.line else reply

    return script


@contextmanager
def routed(prefill: str, decode: str) -> Iterator[str]:
    """The router as the adapter starts it; ended by its process."""
    with PortBook().lease(["http"]) as lease:
        peers = {"prefill": prefill, "decode": decode}
        own = launch("router", ports=lease.ports, peers=peers)
        environment = {**os.environ, **ROUTER.environment(own), "http_proxy": "http://127.0.0.1:9"}
        process = subprocess.Popen(ROUTER.argv(own), env=environment, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            assert ROUTER.grammar.ready.search(first)
            yield own.base_url
        finally:
            process.kill()
            process.wait(10)


@contextmanager
def pair(prefill: bytes, decode: bytes) -> Iterator[tuple[str, Scripted, Scripted]]:
    with ExitStack() as stack:
        first, second = (stack.enter_context(Scripted(node(reply))) for reply in (prefill, decode))
        yield stack.enter_context(routed(first.url, second.url)), first, second


def post(url: str, content: Any, path: str = "/v1/completions") -> httpx.Response:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    headers = {"X-Request-Id": "abc", "Content-Type": "application/json"}
    return httpx.post(f"{url}{path}", content=data, headers=headers, trust_env=False, timeout=20)


@pytest.mark.process
def test_prefill_then_decode() -> None:
    told = {"remote_engine_id": "e", "remote_block_ids": [1]}
    with pair(body("thrown away", 0, kv_transfer_params=told), body("the answer", 96)) as (
        url,
        first,
        second,
    ):
        got = post(url, {"prompt": [1, 2, 3], "max_tokens": 16, "min_tokens": 16}).json()
    assert got["choices"][0]["text"] == "the answer"
    assert got["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}, "what nobody computed: prefill's"
    asked = json.loads(first.requests[-1].body)
    assert (asked["max_tokens"], asked["min_tokens"], asked["prompt"]) == (1, 0, [1, 2, 3])
    assert asked["kv_transfer_params"]["do_remote_decode"] is True
    asked = json.loads(second.requests[-1].body)
    assert (asked["max_tokens"], asked["kv_transfer_params"]) == (16, told)
    assert second.requests[-1].header("X-Request-Id") == "abc"


@pytest.mark.process
def test_all_else_goes_to_the_decode_node() -> None:
    with pair(body("p", 0), answer(b'{"data": []}')) as (url, first, second):
        assert Client(url).get_json("/v1/models") == {"data": []}
        assert post(url, {"prompt": "x"}, "/tokenize").json() == {"data": []}
        assert [request.line.split()[1] for request in second.requests] == ["/v1/models", "/tokenize"]
        assert first.requests == []


@pytest.mark.process
def test_who_has_joined() -> None:
    with Scripted(node(b"")) as one:
        with routed(one.url, "http://127.0.0.1:9") as url:
            assert ROUTER.joined(Client(url)) == {"prefill"}
        with routed(one.url, one.url) as url:
            assert ROUTER.joined(Client(url)) == {"prefill", "decode"}
            assert ROUTER.effective_config(Client(url), Path("/none")) == {"nodes": "decode,prefill"}


@pytest.mark.process
def test_failures_are_told_as_they_are() -> None:
    broken = answer(b"no KV here", status="500 Internal Server Error")
    with pair(broken, body("d", 0)) as (url, _, second):
        got = post(url, {"prompt": "x"})
        assert got.status_code == 500
        assert "prefill: no KV here" in got.text
        assert second.requests == [], "a prompt that was not computed is not decoded"
    with pair(body("p", 0), broken) as (url, _, _):
        got = post(url, {"prompt": "x"})
        assert (got.status_code, "decode: no KV here" in got.text) == (500, True)
    with Scripted(node(body("d", 0))) as decode, routed("http://127.0.0.1:9", decode.url) as url:
        got = post(url, {"prompt": "x"})
        assert (got.status_code, "does not answer" in got.text) == (502, True)


@pytest.mark.process
@pytest.mark.parametrize(
    "broken", [b"no HTTP at all\r\n\r\n", b'HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"cut', b""]
)
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_node_that_breaks_off_is_named(role: str, broken: bytes) -> None:
    def script(request: Received) -> Iterator[bytes]:
        yield from (broken, CLOSE)

    with Scripted(script) as bad, Scripted(node(body("x", 0))) as good:
        prefill, decode = (bad, good) if role == "prefill" else (good, bad)
        with routed(prefill.url, decode.url) as url:
            got = post(url, {"prompt": "x"})
            assert (got.status_code, f"{role} node {bad.url} does not answer" in got.text) == (502, True)
            assert Client(url).get_json("/readiness")["nodes"] == [
                one for one in ("prefill", "decode") if one != role
            ]


@pytest.mark.process
def test_odd_requests_and_answers() -> None:
    with pair(answer(b"[]"), body("d", 0)) as (url, _, _):
        assert post(url, {"prompt": "x"}).status_code == 502
        for odd in (b"{", b"[1]", b"\xff", b"", json.dumps({"prompt": "x", "stream": True}).encode()):
            assert post(url, odd).status_code == 400
        assert httpx.get(f"{url}/readiness", trust_env=False).json()["ready"] is True


def test_the_program_needs_nothing_but_python() -> None:
    """It runs under any interpreter, and imports nothing of the harness."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(PROGRAM), "--help"], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0
