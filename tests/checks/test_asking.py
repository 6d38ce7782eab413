"""What a server tells that cannot be: it is an error of that request, and spoils no other evidence."""

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from harness.checks import asking
from harness.checks.asking import Ask, Asker
from harness.checks.base import CheckContext, ServerView
from harness.checks.exchange import MARKS, load_evidence
from harness.engines.base import AcceptCounters, CachedTokens, Engine, GenerateRequest, Generation, LogFacts
from harness.engines.client import Client, RequestFailed
from harness.errors import TargetError
from harness.findings import Code

SOUND = Generation(
    text="yes",
    ids=(1, 2),
    finish_reason="length",
    prompt_tokens=2,
    completion_tokens=2,
    cached=CachedTokens(total=0),
    accept=None,
    latency_s=0.1,
    logprobs=(-0.5, -0.25),
)


class Odd:
    """An engine that answers as it is told to."""

    def __init__(self, **values: Any) -> None:
        self._values = values

    def counters(self, client: Client) -> dict[str, float]:
        del client
        return {"good_total": 1.0, "bad_total": float("nan"), "endless_total": float("inf")}

    def generate(self, client: Client, request: GenerateRequest) -> Generation:
        del client
        values = self._values if request.prompt == (9, 9) else {}
        return Generation(**{name: getattr(SOUND, name) for name in SOUND.__dataclass_fields__} | values)


@pytest.fixture(autouse=True)
def _no_logs_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "QUIET_S", 0.0)


def context_of(folder: Path, engine: Any, pulse: Callable[[], None] = lambda: None) -> CheckContext:
    made: Engine = engine
    return CheckContext(
        engine=made,
        base_url="http://127.0.0.1:9",
        served_name="any",
        folder=folder,
        server_log=folder / "server.log",
        start_command=lambda *_: pytest.fail("no program is started here"),
        progress=lambda *_: None,
        pulse=pulse,
    )


def asked(folder: Path, engine: Any) -> None:
    with Asker(context_of(folder, engine)) as asker:
        for prompt in ((1, 2), (9, 9)):
            asker.ask(Ask(leg="cold", case=str(prompt[0]), prompt=prompt, tokens=2, max_tokens=2))


@pytest.mark.parametrize(
    "values",
    [
        {"logprobs": (-0.5, float("nan"))},
        {"logprobs": (None, None)},
        {"cached": CachedTokens(total=-1)},
        {"first_token_s": float("inf")},
        {"text": None},
        {"pauses": -1},
        {"ids": (1, -1)},
        {"ids": (1, 10**3000)},
        {"prompt_tokens": 2**31},
        {"completion_tokens": -1},
        {"cached": CachedTokens(host=2**31)},
        {"accept": AcceptCounters(proposed=10**3000, accepted=1)},
    ],
    ids=lambda values: repr(values)[:60],
)
def test_an_odd_answer_is_an_error_of_its_own(tmp_path: Path, values: dict[str, Any]) -> None:
    asked(tmp_path, Odd(**values))
    sound, odd = load_evidence(tmp_path).exchanges
    assert (sound.error, sound.ids) == (None, [1, 2])
    assert odd.error is not None
    assert odd.error.startswith("the answer cannot be read")
    assert len(odd.error) < 200
    assert odd.ids == []


def test_a_counter_that_is_no_number_is_left_out(tmp_path: Path) -> None:
    asked(tmp_path, Odd())
    assert load_evidence(tmp_path).marks["begin"].counters == {"good_total": 1.0}


def test_counters_that_do_not_come_end_the_asking(tmp_path: Path) -> None:
    class Mute(Odd):
        def counters(self, client: Client) -> dict[str, float]:
            raise RequestFailed("planted", timed_out=True)

    with pytest.raises(TargetError) as caught:
        asked(tmp_path, Mute())
    assert caught.value.code is Code.STALLED
    assert '"begin"' in (tmp_path / MARKS).read_text()


def test_the_pulse_ends_a_mark_too(tmp_path: Path) -> None:
    over = Event()

    class Slow(Odd):
        def counters(self, client: Client) -> dict[str, float]:
            over.wait(20)
            return {}

    def pulse() -> None:
        raise TargetError("planted")

    with pytest.raises(TargetError, match="planted"), Asker(context_of(tmp_path, Slow(), pulse)):
        pytest.fail("its first mark is made before")
    over.set()


def test_only_what_was_logged_since_the_check_began_is_read(tmp_path: Path) -> None:
    """And the rest of a log, which may have a million lines, is not kept."""

    class Reader:
        def log_facts(self, lines: Iterable[tuple[int, str]]) -> LogFacts:
            return LogFacts(pauses=tuple(number for number, _ in lines))

    path = tmp_path / "server.log"
    path.write_text("old\n" * 3)
    engine: Any = Reader()
    log = asking._Log(ServerView(role="normal", engine=engine, base_url="", log=path, config={}))
    with path.open("a") as file:
        file.write("new\n")
    assert (log.read(), log.facts()) == (4, LogFacts(pauses=(4,)))


def test_what_is_asked_at_once_is_sent_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However quick the server is: the last thread begins as late as its start is held up here."""
    threads: list[str] = []
    start = threading.Thread.start

    def held_up(self: threading.Thread) -> None:
        if "asker" in self.name and threads:
            time.sleep(0.1)
        threads.append(self.name)
        start(self)

    monkeypatch.setattr(threading.Thread, "start", held_up)
    asks = [Ask(leg="all", case=str(n), prompt=(n, n), tokens=2, max_tokens=2) for n in range(8)]
    with Asker(context_of(tmp_path, Odd())) as asker:
        answers = asker.ask_all(asks, concurrency=len(asks))
        began = [answer.started_s for answer in answers]
        assert max(began) - min(began) < 0.5  # 0.7 s pass until the last thread is there
        asker.ask_all(asks[:3], concurrency=1)  # nobody waits for the others here


def test_an_end_while_they_gather_frees_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(ThreadPoolExecutor):
        def submit(self, *given: Any, **more: Any) -> Any:
            if len(self._threads) == 2:
                raise RuntimeError("can't start new thread")
            return super().submit(*given, **more)

    monkeypatch.setattr(asking, "ThreadPoolExecutor", Full)
    asks = [Ask(leg="all", case=str(n), prompt=(n, n), tokens=2, max_tokens=2) for n in range(3)]
    with Asker(context_of(tmp_path, Odd())) as asker, pytest.raises(RuntimeError, match="new thread"):
        asker.ask_all(asks, concurrency=len(asks))
    waiting = [thread for thread in threading.enumerate() if thread.name.startswith("asker")]
    for thread in waiting:
        thread.join(timeout=5)
    assert not any(thread.is_alive() for thread in waiting)
