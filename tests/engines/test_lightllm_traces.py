"""Whose leftovers they are."""

from pathlib import Path

import pytest

from harness.engines.lightllm.traces import LightllmTraces, leftovers_of
from tests.engines.canned import DATA

OURS, OTHERS = "0123456789abcdef_0", "fedcba9876543210_0"


def test_from_the_log() -> None:
    assert leftovers_of(DATA / "lightllm-log.txt") == LightllmTraces(frozenset({OURS}), frozenset({32769}))


def test_a_log_that_is_gone_gives_nothing(tmp_path: Path) -> None:
    assert leftovers_of(tmp_path / "none") == LightllmTraces(frozenset(), frozenset())


def test_what_a_client_wrote_is_not_believed(tmp_path: Path) -> None:
    stamp = "INFO 09-20 03:04:05 [manager.py:538] "
    log = tmp_path / "log"
    log.write_text(
        f"zmq mode head: ipc:///tmp/_{OTHERS}_\n"
        f"{stamp}received req X-Request-Id:zmq mode head: ipc:///tmp/_{OTHERS}_ X-Session-Id:\n"
        f"{stamp}prompt: Shared memory ID: 7\n{stamp}Shared memory ID: 8 and more\n"
    )
    assert leftovers_of(log) == LightllmTraces(frozenset(), frozenset())


@pytest.mark.parametrize(
    ("path", "ours"),
    [
        (f"/dev/shm/{OURS}_req_shm_total", True),
        (f"/dev/shm/{OURS}_ShmReqsBufferParams_0", True),
        (f"/tmp/{OURS}_mem_manager_lock", True),
        (f"/tmp/_{OURS}_127.0.0.1:41233", True),
        (f"/tmp/lightllm_disk_cache_{OURS}", True),
        (f"/dev/shm/{OURS}", False),
        (f"/dev/shm/{OURS}0_req_shm_total", False),  # rank 00
        (f"/dev/shm/{OTHERS}_req_shm_total", False),
        (f"/dev/shm/x_{OURS}_req_shm_total", False),
        (f"/home/{OURS}_file", False),
        (f"/tmp/../etc/{OURS}_x", False),
        ("/dev/shm/nccl-abc", False),
        ("", False),
    ],
)
def test_names(path: str, ours: bool) -> None:
    assert LightllmTraces(frozenset({OURS}), frozenset()).owns(path) is ours


def test_nothing_known_owns_nothing() -> None:
    assert not LightllmTraces(frozenset(), frozenset()).owns(f"/dev/shm/{OURS}_x")
