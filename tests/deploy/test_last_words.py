"""What is told of a server that died: why, what to do, and the few lines of its log that add to that."""

from pathlib import Path
from typing import Any

import pytest

from harness.codes import Code
from harness.deploy.server import RunningServer
from harness.engines import ENGINES
from harness.engines.base import Launch
from harness.errors import TargetError
from harness.host.logs import tail
from harness.logscan.last_words import LINES_READ, MAX_LINES, last_words

LOGS = Path(__file__).parents[1] / "data" / "logs"
STAMP = "(EngineCore pid=7) ERROR 11-30 10:00:01 [core.py:2] "
CRASH = f"""\
(EngineCore pid=7) INFO 11-30 10:00:00 [core.py:1] Initializing a V1 LLM engine
(EngineCore pid=7) INFO 11-30 10:00:00 [core.py:1] 8 blocks are left
{STAMP}AssertionError: 12 pages leaked
{STAMP}AssertionError: 13 pages leaked
{STAMP}Traceback (most recent call last):
{STAMP}  File "/x/core.py", line 1, in run
{STAMP}    raise AssertionError(text)
{STAMP}AssertionError: 14 pages leaked
(EngineCore pid=7) INFO 11-30 10:00:02 [core.py:3] giving up
(EngineCore pid=7) INFO 11-30 10:00:02 [core.py:3] giving up
---------------------
"""


class _Ended:
    def __init__(self, code: int) -> None:
        self._code = code

    def poll(self) -> int:
        return self._code

    def exit_description(self) -> str:
        return f"exit code {self._code}"


def _death(tmp_path: Path, engine: str, log: str, code: int = 1) -> TargetError:
    (tmp_path / "server.log").write_text(log, encoding="utf-8")
    launch = Launch(
        lane="a",
        role="normal",
        model_path="/m",
        served_name="m",
        flags={},
        env={},
        ports={"http": 1},
        folder=tmp_path,
    )
    process: Any = _Ended(code)
    server = RunningServer("normal", ENGINES[engine], launch, process, tmp_path / "server.log")
    with pytest.raises(TargetError) as caught:
        server.check(serving=False)
    assert caught.value.code is Code.SERVER_EXITED
    return caught.value


@pytest.mark.parametrize(
    ("log", "remedy"),
    [
        ("vllm-kv-too-small", "lower the maximum length, or give the KV cache more memory"),
        ("sglang-no-model", "check the model path"),
        ("vllm-bad-flag", "compare the command with the `--help`"),
    ],
)
def test_a_known_cause_comes_with_the_remedy_that_triage_has(tmp_path: Path, log: str, remedy: str) -> None:
    error = _death(tmp_path, log.partition("-")[0], (LOGS / f"{log}.txt").read_text(encoding="utf-8"))
    assert error.fix.startswith(remedy)
    assert error.cause != "not named in the log"
    assert error.fix.count("\n    | ") <= MAX_LINES
    assert error.evidence.startswith(str(tmp_path / "server.log:"))


def test_a_traceback_and_its_repetitions_are_told_once(tmp_path: Path) -> None:
    finding = _death(tmp_path, "vllm", CRASH).finding()
    assert finding.message.count("pages leaked") == 1, finding.message
    assert finding.message.count("giving up") == 1
    assert "what to do: read server.log from line 8 on; last words of server.log:" in finding.message
    assert "8 blocks are left" not in finding.message, "it stands before the cause"
    assert "Traceback" not in finding.message
    assert "raise" not in finding.message


def test_a_kill_that_no_log_names_points_to_the_kernel(tmp_path: Path) -> None:
    assert "dmesg" in _death(tmp_path, "vllm", "", code=-9).fix
    assert _death(tmp_path, "vllm", "", code=1).fix == "read server.log"


def test_a_line_that_is_told_already_is_not_a_last_word() -> None:
    grammar = ENGINES["llamacpp"].grammar
    lines = tail(LOGS / "llamacpp-bad-flag.txt", LINES_READ)
    assert last_words(lines, grammar, "error: invalid argument: --prot") == []
    assert last_words(lines, grammar, "") == ["error: invalid argument: --prot"]
    assert last_words([], grammar, "") == []
    bar = ["starting", *(f"Loading: {share}%|{'#' * share}" for share in range(9)), "", "-----"]
    assert last_words(bar, grammar, "") == ["starting", "Loading: 8%|########"]
