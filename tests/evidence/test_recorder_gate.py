"""A client may be started while its server still loads: its requests wait in the recorder."""

import json
import threading
import time
from pathlib import Path

import pytest

from harness.evidence.recorder import Recorder
from tests.evidence.test_recorder import COMPLETIONS, always, completion, post
from tests.servers.scripted import Scripted, answer

pytestmark = pytest.mark.process


def test_held_requests_reach_the_server_only_after_the_release(tmp_path: Path) -> None:
    out = tmp_path / "requests.jsonl"
    got: list[int] = []
    with (
        Scripted(always(answer(completion("4")))) as server,
        Recorder(server.url, out, held=True) as recorder,
    ):
        client = threading.Thread(
            target=lambda: got.append(post(recorder.base_url, COMPLETIONS, {"prompt": "2 + 2 ="})[0])
        )
        client.start()
        deadline = time.monotonic() + 10
        while recorder.counts.seen == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        held_for = 0.3
        time.sleep(held_for)
        assert recorder.counts.seen == 1
        assert got == []
        recorder.release()
        recorder.release()
        client.join(10)
    assert got == [200]
    line = json.loads(out.read_text())
    assert line["error"] is None
    assert line["latency_s"] < held_for  # the wait was the server's loading, not its answer
    assert line["started_s"] >= held_for


def test_what_is_held_when_it_closes_is_recorded_as_unanswered(tmp_path: Path) -> None:
    out = tmp_path / "requests.jsonl"
    failed: list[BaseException] = []

    def ask(url: str) -> None:
        try:
            post(url, COMPLETIONS, {"prompt": "2 + 2 ="})
        except OSError as error:
            failed.append(error)

    with (
        Scripted(always(answer(completion("4")))) as server,
        Recorder(server.url, out, held=True) as recorder,
    ):
        client = threading.Thread(target=ask, args=(recorder.base_url,))
        client.start()
        deadline = time.monotonic() + 10
        while recorder.counts.seen == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
    client.join(10)
    assert len(failed) == 1
    assert json.loads(out.read_text())["status"] == 0
