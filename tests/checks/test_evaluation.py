"""An evaluation that is begun while its server still loads."""

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import httpx
import pytest

from harness.checks.base import CheckContext
from harness.checks.evaluation import Evaluation
from harness.engines import ENGINES
from harness.evidence.recorder import Recorder
from tests.servers.scripted import Scripted, answer

pytestmark = pytest.mark.process

ANSWER = json.dumps({"choices": [{"index": 0, "text": "4", "finish_reason": "stop"}]}).encode()


class Asker:
    """Stands for the evaluator: asks one question, in a thread, and ends."""

    started: ClassVar[list["Asker"]] = []

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        log.write_text("evaluator")
        self.url = argv[0]
        self.stopped = False
        self.status = 0
        self.thread = threading.Thread(target=self._ask, daemon=True)
        self.thread.start()
        Asker.started.append(self)

    def _ask(self) -> None:
        try:
            body = {"prompt": "2 + 2 ="}
            self.status = httpx.post(f"{self.url}/v1/completions", json=body, trust_env=False).status_code
        except httpx.HTTPError:
            self.status = -1

    def wait(self, tick: Callable[[], None]) -> int:
        while self.thread.is_alive():
            tick()
            time.sleep(0.01)
        return 0

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Asker.started = []
    return tmp_path / "lane" / "gsm8k"


def evaluation(folder: Path, base_url: str, patience_s: float = 60.0) -> Evaluation:
    folder.parent.mkdir(exist_ok=True)
    context = CheckContext(
        engine=ENGINES["llamacpp"],
        base_url=base_url,
        served_name="stub",
        folder=folder,
        server_log=folder / "server.log",
        start_command=Asker,
        progress=lambda *_: None,
    )
    return Evaluation(
        context,
        prepare=lambda: None,
        command=lambda url: [url],
        env={},
        patience_s=patience_s,
    )


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def seen(made: Evaluation) -> int:
    return made.recorder.counts.seen if made.recorder else 0


def test_it_is_held_and_then_goes(folder: Path) -> None:
    with Scripted(lambda _: [answer(ANSWER)]) as server, evaluation(folder, server.url) as made:
        made.start(held=True)
        wait_until(lambda: seen(made) == 1)
        made.pulse()
        assert Asker.started[0].status == 0
        ticks: list[Recorder] = []
        assert made.finish(ticks.append) == 0
        assert ticks
    assert Asker.started[0].status == 200
    assert len((folder / "requests.jsonl").read_text().splitlines()) == 1


def test_one_that_waited_long_is_started_anew_before_it_would_ask_again(folder: Path) -> None:
    with Scripted(lambda _: [answer(ANSWER)]) as server, evaluation(folder, server.url, 0.4) as made:
        made.start(held=True)
        wait_until(lambda: seen(made) == 1)
        made.pulse()
        time.sleep(0.3)  # more than half of its patience
        made.pulse()
        assert Asker.started[0].stopped
        assert len(Asker.started) == 2
        wait_until(lambda: seen(made) == 1)
        made.finish(lambda _: None)
    lines = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
    assert [(line["status"], line["attempt"]) for line in lines] == [(200, 1)]  # nothing of the first try


def test_given_up_it_leaves_no_trace(folder: Path) -> None:
    with Scripted(lambda _: [answer(ANSWER)]) as server:
        made = evaluation(folder, server.url)
        made.start(held=True)
        wait_until(lambda: seen(made) == 1)
        made.close()
    assert not folder.exists()
    assert not (folder.parent / "eval.log").exists()
    assert Asker.started[0].stopped


def test_one_that_was_never_held_keeps_its_evidence(folder: Path) -> None:
    with Scripted(lambda _: [answer(ANSWER)]) as server, evaluation(folder, server.url) as made:
        made.start(held=False)
        wait_until(lambda: Asker.started[0].status == 200)
    assert (folder / "requests.jsonl").is_file()
    assert (folder.parent / "eval.log").is_file()
