"""A port that is not ours is never tested: neither one taken before the start nor one taken meanwhile."""

import http.server
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness.codes import Code
from harness.deploy.deployment import Deployment, deploy
from harness.engines import ENGINES
from harness.engines.base import Launch
from harness.errors import HarnessError
from harness.events import Silent
from harness.host.guard import Guard
from harness.host.ports import PortBook
from harness.scenario.model import Timeouts

pytestmark = pytest.mark.process
STUB = Path(__file__).parents[1] / "servers" / "llama_stub.py"
LIMITS = Timeouts(start_s=10, start_cap_s=30, stop_s=2)


class Stranger(threading.Thread):
    """A healthy-looking server of somebody else."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.server = http.server.HTTPServer(("127.0.0.1", port), http.server.SimpleHTTPRequestHandler)

    def run(self) -> None:
        self.server.serve_forever(poll_interval=0.05)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with PortBook().lease(["http"]) as lease:
        yield Launch(
            lane="a",
            role="normal",
            model_path=str(tmp_path / "model.gguf"),
            served_name="stub",
            flags={},
            env={"STUB_FAULT": "slow-start:3"},
            ports=lease.ports,
            folder=tmp_path,
            binary=str(STUB),
        )


def _deploy(launch: Launch, up: Deployment) -> None:
    with (
        Guard(launch.folder) as guard,
        deploy(
            up,
            [(ENGINES["llamacpp"], launch)],
            run_id=str(launch.folder),  # another test run on this machine must not find our processes
            timeouts=LIMITS,
            guard=guard,
            watcher=Silent(),
        ),
    ):
        assert up.ready


def test_port_answered_by_another_server_before_the_start(launch: Launch) -> None:
    stranger = Stranger(launch.ports["http"])
    stranger.start()
    try:
        with pytest.raises(HarnessError) as caught:
            _deploy(launch, Deployment())
    finally:
        stranger.close()
    assert caught.value.code is Code.PORT_TAKEN
    assert not (launch.folder / "server.log").exists(), "nothing was started"


def test_port_taken_by_another_server_while_ours_was_loading(launch: Launch) -> None:
    """Ours has not bound yet, and the stranger answers."""
    silent = launch.folder / "silent_server"
    silent.write_text(f"#!{sys.executable}\nimport sys, time\n'--version' in sys.argv or time.sleep(60)\n")
    silent.chmod(0o755)
    assert _intruded(replace(launch, binary=str(silent))) is Code.NOT_OUR_PORT


def test_port_taken_just_before_ours_could_bind(launch: Launch) -> None:
    """Ours says so in its log and ends: the host's fault, not the server's."""
    assert _intruded(launch) in (Code.PORT_TAKEN, Code.NOT_OUR_PORT)


def _intruded(launch: Launch) -> Code:
    up = Deployment()
    stranger: list[Stranger] = []

    def intrude() -> None:
        while not up.servers:
            time.sleep(0.001)
        stranger.append(Stranger(launch.ports["http"]))
        stranger[0].start()

    intruder = threading.Thread(target=intrude, daemon=True)
    intruder.start()
    try:
        with pytest.raises(HarnessError) as caught:
            _deploy(launch, up)
    finally:
        intruder.join(5)
        stranger[0].close()
    assert up.servers[0].process.members() == []
    return caught.value.code


def test_everything_is_recorded_and_released(launch: Launch) -> None:
    up = Deployment()
    _deploy(launch, up)
    assert [f for f in up.findings if f.code is not Code.SHM_UNATTRIBUTED] == []  # others may be busy
    assert up.records[0].stop == "terminated"
    assert 0 <= up.phases["release"] <= up.phases["stop"]
    assert up.ready[0].listening_s <= up.ready[0].ready_s
    assert "--model" in (launch.folder / "command.txt").read_text(encoding="utf-8")
    assert (launch.folder / "effective-config.normal.json").is_file()
