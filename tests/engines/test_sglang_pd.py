"""SGLang as a P/D lane: commands of the nodes and the router, and proof of transfers, as SGLang 0.5.23 and
router 0.3.2 tell it."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.engines.base import Transfer, TransferTotals
from harness.engines.sglang.adapter import Sglang
from harness.engines.sglang.router import SglangRouter
from harness.engines.sglang.transfers import MIB, transfers
from harness.errors import TargetError
from harness.scenario.model import FlagValue
from tests.engines.canned import Canned
from tests.engines.pd_launch import pd_launch

SGLANG, ROUTER = Sglang(), SglangRouter()
PREFILL = (
    "[2026-11-30 15:23:39] ReqTimeStats(rid=abc-1, bootstrap_room=2241960162894552853, input_len=300, "
    "cached_input_len=0, output_len=1, attempts=0, type=prefill): bootstrap_duration=2.75ms, "
    "queue_duration=0.47ms, forward_duration=1784.41ms, entry_time=1796052217.345, "
    "transfer_speed=0.32 GB/s, transfer_total=13.18 MB"
)
DECODE = (
    "[2026-11-30 15:23:39] ReqTimeStats(rid=abc-1, bootstrap_room=2241960162894552853, input_len=300, "
    "cached_input_len=0, output_len=8, attempts=0, type=decode): bootstrap_duration=7.57ms, "
    "alloc_wait_duration=1.13ms, transfer_duration=1789.28ms, queue_duration=0.21ms, "
    "forward_duration=503.43ms, entry_time=1796052217.339"
)
FAILED = (
    "[2026-11-30 15:23:51] Decode transfer failed for request rank=0 decode_req.req.rid='abc-1' "
    "decode_req.req.bootstrap_room=3711574096700167323 with exception KVTransferError(...): Lost connection"
)


launch = partial(pd_launch, "sglang")


def test_commands_of_the_nodes() -> None:
    flags: dict[str, FlagValue] = {"--disaggregation-transfer-backend": "mooncake_tcp"}
    prefill, decode = (" ".join(SGLANG.argv(launch(role, flags))) for role in ("prefill", "decode"))
    assert "--port 20300 --nccl-port 20301 " in prefill
    assert "--disaggregation-mode prefill --disaggregation-bootstrap-port 20302 " in prefill
    assert "--disaggregation-mode decode " in decode
    assert "bootstrap" not in decode
    assert prefill.endswith("--disaggregation-transfer-backend mooncake_tcp")
    assert "disaggregation" not in " ".join(SGLANG.argv(launch("normal")))


def test_every_port_of_a_prefill_node_is_leased() -> None:
    assert SGLANG.ports("prefill", {}) == ("http", "nccl", "bootstrap")
    assert SGLANG.ports("prefill", {"--dp-size": 2}) == ("http", "bootstrap")
    assert SGLANG.ports("prefill", {"--enable-dp-attention": True})[-1] == "bootstrap"
    assert SGLANG.ports("decode", {}) == ("http", "nccl")


def test_command_of_the_router() -> None:
    peers = {
        "prefill": "http://127.0.0.1:1",
        "decode": "http://127.0.0.1:2",
        "prefill.bootstrap": "http://127.0.0.1:3",
    }
    assert ROUTER.argv(launch("router", {"--worker-startup-check-interval": 1}, peers=peers)) == [
        *("/venv/bin/python", "-m", "sglang_router.launch_router", "--pd-disaggregation"),
        *("--prefill", "http://127.0.0.1:1", "3", "--decode", "http://127.0.0.1:2"),
        *("--host", "127.0.0.1", "--port", "20300"),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", "20301"),
        *("--disable-retries", "--disable-circuit-breaker", "--worker-startup-check-interval", "1"),
    ]


@pytest.mark.process
def test_problems_of_the_router(tmp_path: Path) -> None:
    """Under an interpreter that has no router: against the packaged list."""
    (tmp_path / "config.json").touch()
    flags: dict[str, FlagValue] = {
        "--polycy": "random",
        "--mini-lb": True,
        "--prefill": "http://elsewhere",
        "--prometheus-port": 29000,
        "--disable-retries": True,
        "--policy": "fastest",
    }
    bare = tmp_path / "python"  # it is there, and has no SGLang
    bare.write_text('#!/bin/sh\necho \'["", ""]\'\n', encoding="utf-8")
    bare.chmod(0o755)
    problems = ROUTER.problems(launch("router", flags, model_path=str(tmp_path), python=str(bare)))
    for word in (
        "no flag --polycy; the nearest is --policy",
        "--mini-lb: ",
        "--prefill: the lane's servers are",
        "--prometheus-port is set by the harness",
        "--disable-retries is always given",
        "--policy has no choice `fastest`",
        "pip install sglang-router",
    ):
        assert sum(word in problem for problem in problems) == 1, (word, problems)


@pytest.mark.process
def test_a_backend_that_moves_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    flags: dict[str, FlagValue] = {"--disaggregation-transfer-backend": "fake"}
    problems = SGLANG.problems(launch("prefill", flags, model_path=str(tmp_path), python="/bin/sh"))
    assert any("fake moves nothing" in problem for problem in problems)


def test_joined() -> None:
    def workers(*healthy: bool) -> Any:
        kinds = zip(("prefill", "decode"), healthy, strict=True)
        return {"workers": [{"worker_type": kind, "is_healthy": well} for kind, well in kinds]}

    assert ROUTER.joined(Canned(workers={"workers": [], "total": 0})) == frozenset()
    assert ROUTER.joined(Canned(workers=workers(True, False))) == {"prefill"}
    assert ROUTER.joined(Canned(workers=workers(True, True))) == {"prefill", "decode"}
    strange: list[Any] = [{}, [], {"workers": [{}]}, {"workers": None}]
    for odd in strange:
        with pytest.raises(TargetError):
            ROUTER.joined(Canned(workers=odd))


def test_served_model_behind_the_router() -> None:
    models = {"object": "list", "data": [{"id": "smol", "object": "model", "owned_by": "local"}]}
    assert ROUTER.served_model(Canned(v1__models=models)).name == "smol"


def test_transfers_by_request() -> None:
    assert transfers([(7, PREFILL)]) == {"abc-1": Transfer(size=13.18 * MIB, line=7)}
    assert transfers([(8, DECODE)]) == {"abc-1": Transfer(seconds=1.78928, line=8)}


def test_a_warm_up_of_a_node_is_no_transfer() -> None:
    assert transfers([(1, PREFILL.replace("2241960162894552853", "0"))]) == {}


@pytest.mark.parametrize("lines", [[FAILED, DECODE], [DECODE, FAILED], [FAILED]])
def test_failed_transfers(lines: list[str]) -> None:
    (error,) = transfers(enumerate(lines, 1))["abc-1"].errors
    assert error.startswith("Decode transfer failed for request ")


def test_totals() -> None:
    kinds = (
        "# TYPE sglang:kv_transfer_total_mb histogram\n"
        "# TYPE sglang:per_stage_req_latency_seconds histogram\n"
        "# TYPE sglang:num_transfer_failed_reqs_total counter\n"
    )
    prefill = f"{kinds}sglang:kv_transfer_total_mb_sum 2.5\nsglang:kv_transfer_total_mb_count 3\n"
    assert SGLANG.transferred(Canned(metrics=prefill)) == TransferTotals(requests=3, size=2.5 * MIB, failed=0)
    decode = (
        f'{kinds}sglang:per_stage_req_latency_seconds_count{{stage="decode_transferred"}} 7\n'
        "sglang:num_transfer_failed_reqs_total 2\n"
    )
    assert SGLANG.transferred(Canned(metrics=decode)) == TransferTotals(requests=7, failed=2)
    with pytest.raises(TargetError):
        SGLANG.transferred(Canned(metrics=404))
