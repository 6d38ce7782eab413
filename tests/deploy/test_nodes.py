"""Several servers of one lane: up side by side, joined before the first request, and none may die unseen."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from harness.codes import Code
from harness.deploy.deployment import Deployment, deploy
from harness.engines.base import Engine, GenerateRequest, Generation, Launch
from harness.engines.client import Client, RequestFailed
from harness.engines.lightllm.log import GRAMMAR
from harness.engines.llamacpp.adapter import LlamaCpp
from harness.errors import TargetError
from harness.events import Silent
from harness.executors.plan import introduced
from harness.host.guard import Guard
from harness.host.ports import PortBook
from harness.scenario.model import Timeouts

pytestmark = pytest.mark.process
STUB = Path(__file__).parents[1] / "servers" / "llama_stub.py"
LIMITS = Timeouts(start_s=10, start_cap_s=30, stop_s=2)
ROLES = ("prefill", "decode", "router")


class Node(LlamaCpp):
    """A stub that answers no generation, as prefill and decode nodes do not."""

    def generate(self, client: Client, request: GenerateRequest) -> Generation:
        raise RequestFailed("this node takes no requests", status=417)


@dataclass
class Router(LlamaCpp):
    """A stub that says who has joined it; `joining` are its answers, the last one for ever."""

    joining: list[set[str]] = field(default_factory=lambda: [{"prefill", "decode"}])
    asked: int = 0
    generated: list[frozenset[str]] = field(default_factory=list)

    def joined(self, client: Client) -> frozenset[str]:
        client.get_json("/health")
        now = self.joining[min(self.asked, len(self.joining) - 1)]
        self.asked += 1
        return frozenset(now)

    def generate(self, client: Client, request: GenerateRequest) -> Generation:
        self.generated.append(frozenset(self.joining[min(self.asked, len(self.joining)) - 1]))
        return super().generate(client, request)


@pytest.fixture
def launches(tmp_path: Path) -> Iterator[list[Launch]]:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with PortBook().lease(ROLES) as lease:
        yield introduced(
            [
                Launch(
                    lane="pd",
                    role=role,
                    model_path=str(tmp_path / "model.gguf"),
                    served_name="stub",
                    flags={},
                    env={},
                    ports={"http": lease.ports[role]},
                    folder=tmp_path,
                    binary=str(STUB),
                )
                for role in ROLES
            ]
        )


@contextmanager
def deployed(
    launches: list[Launch], up: Deployment, router: Engine | None = None, **limits: float
) -> Iterator[None]:
    engines: list[Engine] = [Node(), Node(), router or Router()]
    with (
        Guard(launches[0].folder) as guard,
        deploy(
            up,
            list(zip(engines, launches, strict=True)),
            run_id=str(launches[0].folder),  # another test run on this machine must not find our processes
            timeouts=Timeouts(**{**LIMITS.model_dump(), **limits}),
            guard=guard,
            watcher=Silent(),
        ),
    ):
        yield


def with_fault(launches: list[Launch], role: str, fault: str) -> list[Launch]:
    return [replace(one, env={"STUB_FAULT": fault}) if one.role == role else one for one in launches]


def test_every_server_knows_the_others(launches: list[Launch]) -> None:
    prefill, decode, router = launches
    assert dict(router.peers) == {"prefill": prefill.base_url, "decode": decode.base_url}
    assert set(prefill.peers) == {"decode", "router"}


def test_hidden_ports_are_told_too(launches: list[Launch]) -> None:
    hidden = {**launches[0].ports, "bootstrap": 5}
    router = introduced([replace(launches[0], ports=hidden, host="127.0.0.2"), *launches[1:]])[2]
    assert router.peers["prefill.bootstrap"] == "http://127.0.0.2:5"


def test_all_are_up_and_asked_through_the_router_alone(launches: list[Launch]) -> None:
    up = Deployment()
    router = Router()
    with deployed(launches, up, router):
        assert [server.role for server in up.servers] == list(ROLES)
        assert up.entry.role == "router"
        assert len(router.generated) == 1
        (launches[0].scratch / "kv").mkdir(parents=True)
    folder = launches[0].folder
    for role in ROLES:
        assert (folder / f"{role}.log").is_file()
        assert (folder / f"command.{role}.txt").is_file()
    assert not launches[0].scratch.exists(), "what the nodes left for one another goes with them"
    assert [record.stop for record in up.records] == ["terminated"] * 3
    assert [finding for finding in up.findings if finding.code is not Code.SHM_UNATTRIBUTED] == []


def test_nothing_is_asked_before_all_have_joined(launches: list[Launch]) -> None:
    router = Router(joining=[set(), {"prefill"}, {"prefill"}, {"prefill", "decode"}])
    with deployed(launches, Deployment(), router):
        assert router.generated == [{"prefill", "decode"}]


def test_a_node_that_never_joins_is_named_with_its_log(launches: list[Launch]) -> None:
    up = Deployment()
    with (
        pytest.raises(TargetError) as caught,
        deployed(launches, up, Router(joining=[{"prefill"}]), start_s=1.0),
    ):
        pytest.fail("it is not ready")
    assert caught.value.code is Code.PD_NOT_JOINED
    assert caught.value.what.startswith("decode did not join the router")
    assert caught.value.evidence == str(launches[0].folder / "decode.log")
    assert "decode.log" in caught.value.fix
    assert [server.process.members() for server in up.servers] == [[], [], []]


def test_both_may_be_missing(launches: list[Launch]) -> None:
    with (
        pytest.raises(TargetError, match="prefill and decode did not join") as caught,
        deployed(launches, Deployment(), Router(joining=[set()]), start_s=0.5),
    ):
        pytest.fail("it is not ready")
    assert "prefill.log, " in caught.value.evidence


def test_a_node_is_not_ready_before_its_log_says_so(launches: list[Launch]) -> None:
    up = Deployment()
    with deployed(with_fault(launches, "prefill", "slow-start:1"), up):
        assert up.ready[0].ready_s >= 1.0


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_node_that_dies_while_it_starts(launches: list[Launch], role: str) -> None:
    up = Deployment()
    with (
        pytest.raises(TargetError) as caught,
        deployed(with_fault(launches, role, "die-while-loading"), up),
    ):
        pytest.fail("it is not ready")
    assert caught.value.code is Code.SERVER_EXITED
    assert f"({role})" in caught.value.what
    assert [server.process.members() for server in up.servers] == [[], [], []]


def _kill_and_wait(up: Deployment, role: str) -> None:
    """As a check waits: it asks again and again whether all are alive."""
    victim = next(server for server in up.servers if server.role == role)
    os.kill(victim.process.pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        up.assert_alive()
        time.sleep(0.01)
    pytest.fail("nobody noticed")


@pytest.mark.parametrize("role", ROLES)
def test_a_node_killed_while_it_serves_is_named(launches: list[Launch], role: str) -> None:
    up = Deployment()
    with pytest.raises(TargetError) as caught, deployed(launches, up):
        _kill_and_wait(up, role)
    assert caught.value.code is Code.SERVER_DIED
    assert f"({role})" in caught.value.what
    assert caught.value.evidence.startswith(str(launches[0].folder / f"{role}.log"))


@pytest.mark.parametrize("role", ROLES)
def test_the_dead_are_told_before_what_others_say_of_it(launches: list[Launch], role: str) -> None:
    """The partners of a killed node log its loss as their own failure."""
    up = Deployment()
    with pytest.raises(TargetError) as caught, deployed(launches, up):
        _kill_among_complaints(up, role)
    assert caught.value.code is Code.SERVER_DIED
    assert f"({role})" in caught.value.what


def _kill_among_complaints(up: Deployment, role: str) -> None:
    for server in up.servers:
        if server.role == role:
            server.process.signal(signal.SIGKILL)
            until = time.monotonic() + 10
            while server.process.poll() is None and time.monotonic() < until:
                time.sleep(0.01)
        else:
            with server.log.open("a", encoding="utf-8") as file:
                file.write("0.00.900.000 E ggml_backend_cuda_buffer_type_alloc_buffer: out of memory\n")
    up.assert_alive()


def test_nodes_that_differ_are_a_mismatch(launches: list[Launch], monkeypatch: pytest.MonkeyPatch) -> None:
    """A LightLLM master that refuses a node says why, and with which values."""

    class Master(Router):
        grammar: Any = GRAMMAR

    text = (
        "ERROR 09-20 03:04:05 [manager.py:538] client dont has same max_req_total_len params, "
        "but pd master is 8192client is 16384client info {}"
    )
    log = launches[0].folder / "router.log"

    def refuse(self: Router, client: Client) -> frozenset[str]:
        with log.open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")
        return frozenset({"prefill"})

    monkeypatch.setattr(Master, "joined", refuse)
    with pytest.raises(TargetError) as caught, deployed(launches, Deployment(), Master()):
        pytest.fail("it is not ready")
    assert caught.value.code is Code.PD_MISMATCH
    assert "8192" in caught.value.what
    assert "16384" in caught.value.what
