"""Lanes of several servers: their order, and what a server takes from its lane."""

from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.scenario.model import Lane
from tests.scenario.tools import load_text

LANE = """
lanes:
  a:
    engine: sglang
    model: {path: /m}
    flags: {--device: cpu}
    env: {A: "1"}
    expect: {dtype: float32}
    gpus: 2
    cpus: 3
    servers:
"""


def lane(folder: Path, *servers: str) -> Lane:
    return load_text(folder, LANE + "".join(f"      - {server}\n" for server in servers)).lanes["a"]


@pytest.mark.parametrize("entry", ["router", "master"])
def test_clients_talk_to_the_last_however_they_are_written(tmp_path: Path, entry: str) -> None:
    written = (f"{{role: {entry}}}", "{role: decode}", "{role: prefill}")
    assert [server.role for server in lane(tmp_path, *written).servers] == ["prefill", "decode", entry]


def test_a_router_is_another_program(tmp_path: Path) -> None:
    servers = ("{role: prefill}", "{role: decode}", "{role: router, flags: {--policy: random}}")
    *nodes, router = lane(tmp_path, *servers).servers
    assert router.flags == {"--policy": "random"}
    assert router.env == {"A": "1"}
    assert (router.expect, router.gpus, router.cpus) == ({}, 0, None)
    for node in nodes:
        assert node.flags == {"--device": "cpu"}
        assert (node.expect, node.gpus, node.cpus) == ({"dtype": "float32"}, 2, 3)


def test_a_master_takes_only_its_own_flags(tmp_path: Path) -> None:
    servers = (
        "{role: prefill}",
        "{role: decode}",
        "{role: master, expect: {max_req_total_len: 8192}, cpus: 1, flags: {--pd_master_mode: 1p1d}}",
    )
    master = lane(tmp_path, *servers).servers[-1]
    assert master.flags == {"--pd_master_mode": "1p1d"}
    assert (master.expect, master.gpus, master.cpus) == ({"max_req_total_len": 8192}, 0, 1)


def test_host(tmp_path: Path) -> None:
    servers = ("{role: prefill, host: 192.0.2.7}", "{role: decode, host: null}", "{role: router}")
    hosts = [server.host for server in lane(tmp_path, *servers).servers]
    assert hosts == ["192.0.2.7", "127.0.0.1", "127.0.0.1"]


@pytest.mark.parametrize(
    "servers",
    [
        ("{role: prefill}",),
        ("{role: prefill}", "{role: decode}"),
        ("{role: prefill}", "{role: prefill}", "{role: decode}", "{role: router}"),
        ("{role: normal}", "{role: router}"),
    ],
)
def test_incomplete(tmp_path: Path, servers: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="expected one normal server, or prefill, decode and master"):
        lane(tmp_path, *servers)
