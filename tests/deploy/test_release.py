"""What a lane leaves, told of the lane that left it and with what really happened."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.codes import Code
from harness.deploy import release
from harness.deploy.deployment import _forced
from harness.deploy.release import owner_of, verify_released
from harness.engines.base import NoTraces
from harness.engines.lightllm.traces import LightllmTraces
from harness.host.process import StopOutcome
from harness.host.shm import Leftovers

OWN = "0123456789abcdef_0"
SEGMENT = "System V segment 7 (key 0x0000000a, by pid 41)"


def _server(traces: Any = None, pids: tuple[int, ...] = (40,)) -> Any:
    return SimpleNamespace(
        role="normal",
        launch=SimpleNamespace(ports={}),
        process=SimpleNamespace(members=list, seen_pids=frozenset(pids), pid=pids[0]),
        engine=SimpleNamespace(traces=lambda _: traces or NoTraces()),
        log=Path("server.log"),
    )


@pytest.mark.parametrize(
    ("name", "server", "used"),
    [
        ("/dev/shm/seen", _server(), {"/dev/shm/seen"}),
        (f"/dev/shm/{OWN}_lock", _server(LightllmTraces(frozenset({OWN}), frozenset())), set()),
        (SEGMENT, _server(LightllmTraces(frozenset(), frozenset({7}))), set()),
        (SEGMENT, _server(pids=(40, 41)), set()),
    ],
)
def test_a_neighbours_segment_is_not_told_of_this_lane(
    monkeypatch: pytest.MonkeyPatch, name: str, server: Any, used: set[str]
) -> None:
    monkeypatch.setattr(release, "UNATTRIBUTED_S", 0)
    monkeypatch.setattr(release, "leftovers", lambda *_: Leftovers((), (name, "/dev/shm/anybody")))
    monkeypatch.setattr("harness.host.strays.strays", lambda _: [])
    owns = owner_of([server], used)

    def told(foreign: Any) -> list[tuple[Code, str]]:
        found = verify_released([_server(pids=(90,))], frozenset(), set(), foreign)
        return [(item.code, item.where) for item in found]

    stays = (Code.SHM_UNATTRIBUTED, "/dev/shm/anybody")
    assert told(lambda names: [each for each in names if owns(each)]) == [stays]
    assert told(lambda _: []) == [(Code.SHM_UNATTRIBUTED, name), stays]


@pytest.mark.parametrize(
    ("forced", "dead", "sentence"),
    [
        ((40, 41), False, "server `normal` did not end on SIGTERM: killed (pid 40, 41; the stop took 4.3 s)"),
        ((41,), True, "server `normal` was dead already; processes that it left behind were killed (pid 41;"),
        ((41,), False, "server `normal` ended on SIGTERM, but processes that it had started did not: killed"),
    ],
)
def test_who_was_killed_and_how_long_it_took(forced: tuple[int, ...], dead: bool, sentence: str) -> None:
    outcome = StopOutcome(exit_code=0, how="killed", leaked=(), seconds=4.31, forced=forced)
    finding = _forced(_server(), outcome, dead=dead)
    assert finding.code is Code.FORCED_KILL
    assert sentence in finding.message
