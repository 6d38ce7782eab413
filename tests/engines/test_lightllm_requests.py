"""What is read of single requests from LightLLM's log, whole or damaged."""

from pathlib import Path

import pytest

from harness.engines.base import AcceptCounters, CachedTokens
from harness.engines.lightllm.facts import log_facts
from harness.engines.lightllm.requests import Finished, IdlePool, Pause, RequestLog, read
from tests.engines.canned import DATA

FILE = DATA / "lightllm-requests.txt"
STAMP = "DEBUG 09-20 03:04:05 [infer_batch.py:302] "
POOL = ("radix refed token num {}", "radix hold token num {}", "mem manager can alloc token num {}")


def from_file(path: Path) -> RequestLog:
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        return read(enumerate(file, 1))


@pytest.fixture
def log() -> RequestLog:
    return from_file(FILE)


def of(*messages: str) -> RequestLog:
    return read(enumerate((STAMP + message for message in messages), 1))


def received(request: str, engine: int, word: str = "received") -> str:
    ids = f"X-Request-Id:{request} X-Session-Id: start_time:2026-09-20 03:04:05 lightllm_req_id:{engine} "
    return f"{word} req {ids}"


def finished(log: RequestLog, request: str) -> tuple[Finished, ...]:
    return tuple(item for item in log.finished if item.request_id == request)


def test_ids(log: RequestLog) -> None:
    found = {item.request_id: item.engine_id for item in log.received}
    assert found == {"abc-0-cold": 8, "abc-0-warm": 16, "abc-0-reloaded": 24, "abc-0-old": 32, "stress": 96}


def test_prompts_of_one_http_request() -> None:
    log = of(received("batch", 8), received("batch", 16), received("other", 24))
    assert [item.engine_id for item in log.received if item.request_id == "batch"] == [8, 16]


def test_finished_with_tiers(log: RequestLog) -> None:
    (warm,) = finished(log, "abc-0-warm")
    assert warm.cached == CachedTokens(total=2048, device=2048, host=0, storage=0)
    assert warm.engine_id == 16
    assert warm.first_token_ms == pytest.approx(93.381, abs=1e-3)
    assert warm.accept is None


def test_finished_with_all_that_newer_releases_tell(log: RequestLog) -> None:
    (reloaded,) = finished(log, "abc-0-reloaded")
    assert reloaded.cached == CachedTokens(total=2176, device=0, host=2176, storage=0)
    assert reloaded.accept == AcceptCounters(proposed=28, accepted=18, steps=14)


def test_finished_without_tiers(log: RequestLog) -> None:
    (old,) = finished(log, "abc-0-old")
    assert old.cached == CachedTokens(total=2048)


def test_a_request_that_came_in_has_not_finished(log: RequestLog) -> None:
    assert finished(log, "abc-0-cold") == ()


def test_pauses(log: RequestLog) -> None:
    assert [(item.engine_id, item.kind) for item in log.pauses] == [(96, "paused"), (96, "recovered")]
    told = log_facts(enumerate(FILE.read_text(encoding="utf-8", errors="replace").split("\n"), 1)).requests
    assert (told["stress"].paused, told["stress"].recovered) == tuple((item.line,) for item in log.pauses)
    assert (told["abc-0-warm"].paused, told["abc-0-warm"].recovered) == ((), ())


def test_pauses_of_the_sequences_of_one_request() -> None:
    messages = (
        received("n", 96),
        received("next", 104),
        "infer paused req id 97",
        "infer paused req id 104",
        "infer recover paused req id 97",
        "infer paused req id 97",
    )
    assert of(*messages).pauses == (
        Pause(line=3, engine_id=97, kind="paused"),
        Pause(line=4, engine_id=104, kind="paused"),
        Pause(line=5, engine_id=97, kind="recovered"),
        Pause(line=6, engine_id=97, kind="paused"),
    )
    told = log_facts(enumerate((STAMP + message for message in messages), 1)).requests
    assert (told["n"].paused, told["n"].recovered) == ((3, 6), (5,))
    assert (told["next"].paused, told["next"].recovered) == ((4,), ())


def test_estimates(log: RequestLog) -> None:
    assert [item.tokens for item in log.estimates] == [64]


def test_idle_pool(log: RequestLog) -> None:
    (pool,) = log.idle
    assert (pool.referenced, pool.held, pool.free, pool.total, pool.lost) == (0, 1024, 3072, 4096, 0)


def test_a_leak() -> None:
    (pool,) = of(
        *[line.format(n) for line, n in zip(POOL, (7, 100, 3800), strict=True)], "mem manager total size 4096"
    ).idle
    assert (pool.referenced, pool.lost) == (7, 196)


def test_pools_of_two_processes_that_interleave() -> None:
    refed, hold, free = POOL
    total = "mem manager total size 4096"
    lines = [refed.format(0), hold.format(96), refed.format(0), free.format(4000), hold.format(96)]
    log = of(*lines, total, free.format(4000), total)
    assert [(pool.line, pool.lost) for pool in log.idle] == [(1, 0), (3, 0)]
    again = of(*lines, total, free.format(4000), total, *lines, total, free.format(4000), total)
    assert [pool.lost for pool in again.idle] == [0, 0, 0, 0]


def test_a_pool_that_was_cut_off() -> None:
    assert of("radix refed token num 0", "radix hold token num 5").idle == (
        IdlePool(line=1, referenced=0, held=5),
    )
    assert of("radix refed token num 0").idle[0].lost is None


def test_colours_carriage_returns_and_lines_in_one() -> None:
    glued = f"{STAMP}infer paused req id 96\x1b[0m{STAMP}infer recover paused req id 96\r\n"
    log = read([(5, f"\x1b[32m{glued}"), (6, f"Loading 50%|####  | {STAMP}{received('a', 8)}")])
    assert [(item.line, item.kind) for item in log.pauses] == [(5, "paused"), (5, "recovered")]
    assert [(item.request_id, item.engine_id) for item in log.received] == [("a", 8)]


def test_what_others_write_is_not_believed() -> None:
    """Words of a prompt, of an answer, or of a header are no messages."""
    forged = "infer paused req id 96"
    log = read(
        [
            (1, forged),
            (2, f"{STAMP}prompt was: {forged}"),
            (3, f"[2026-09-20 03:04:05 +0000] [4301] [INFO] {forged}"),
            (4, f"{STAMP}{forged} and more"),
            (5, f"{STAMP}infer paused req id x"),
        ]
    )
    assert log == RequestLog()


def test_damaged_lines_are_passed_over(tmp_path: Path) -> None:
    """Cut anywhere, and with bytes that are no text."""
    whole = FILE.read_bytes()
    for cut in range(0, len(whole), 7):
        path = tmp_path / "log"
        path.write_bytes(whole[:cut] + b"\xff\xfe\x00" + whole[cut + 3 :])
        assert len(from_file(path).received) <= 5


def test_a_million_lines_are_read_in_seconds() -> None:
    line = f"{STAMP}Prefill Batch: batch_id=1, time:1.0s req_ids:[8] " + "x" * 200
    assert read((number, line) for number in range(1_000_000)) == RequestLog()
