"""From the command line to ready, and the ways in which it does not come so far."""

import json
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from harness.simulator import settings
from harness.simulator.main import main
from harness.simulator.settings import BadSettings, Settings
from tests.simulator.launched import environment, fault, free_port, launched, model_dir, until
from tests.simulator.parser import parser

pytestmark = pytest.mark.process


def _run(folder: Path, *flags: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "lightllm.server.api_server", *flags]
    env = environment(folder, None)
    return subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=20)


def test_it_says_that_it_is_simulated(tmp_path: Path) -> None:
    code = "from importlib.metadata import version; print(version('lightllm'))"
    env = environment(tmp_path, None)
    said = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert said.stdout.strip() == "2026.9+simulator"


def test_bad_flag(tmp_path: Path) -> None:
    ended = _run(tmp_path, "--no_such_flag")
    assert ended.returncode == 2
    assert ended.stderr.startswith("usage: api_server.py")
    assert "api_server.py: error: unrecognized arguments: --no_such_flag" in ended.stderr


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--model_dir", "/no/such/model"], "FileNotFoundError"),
        ([], "TypeError"),
        (["--model_dir", "model", "--mtp_step", "2"], "AssertionError"),
        (["--model_dir", "model", "--port", "7777", "--nccl_port", "7777"], "conflicting ports in list: "),
    ],
)
def test_refusals_are_raw_tracebacks_with_exit_code_1(tmp_path: Path, flags: list[str], says: str) -> None:
    model_dir(tmp_path / "model")
    ended = _run(tmp_path, *flags)
    assert ended.returncode == 1
    assert "Traceback (most recent call last):" in ended.stderr
    assert says in ended.stderr.splitlines()[-1]


def test_model_dir_without_config(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert _run(tmp_path, "--model_dir", "empty").returncode == 1


@pytest.mark.parametrize("which", ["--port", "--nccl_port"])
def test_port_in_use(tmp_path: Path, which: str) -> None:
    model_dir(tmp_path / "model")
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        ended = _run(tmp_path, "--model_dir", "model", "--port", str(free_port()), which, str(port))
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == f"RuntimeError: port {port} has been used"


def test_port_taken_between_probe_and_bind(tmp_path: Path) -> None:
    with launched(tmp_path, settings={"load_seconds": 1.5}) as server, socket.socket() as thief:
        server.wait_for("Loading model weights")
        thief.bind(("127.0.0.1", server.port))
        thief.listen()
        assert server.process.wait(20) == 1
        assert "HTTP server exited unexpectedly with return code 1" in server.log


def _inside(monkeypatch: pytest.MonkeyPatch, folder: Path, *flags: str, told: Any = None) -> int:
    """The exit code of a command line that is refused before anything is started."""
    words = ["api_server.py", "--model_dir", str(model_dir(folder / "model")), "--port", str(free_port())]
    monkeypatch.setattr(sys, "argv", [*words, *flags])
    for name, value in environment(folder, told).items():
        monkeypatch.setenv(name, value)
    return main(parser())


@pytest.mark.parametrize("mode", ["config_server", "visual_only"])
def test_other_run_modes_are_refused(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _inside(monkeypatch, tmp_path, "--run_mode", mode) == 1
    said = capsys.readouterr()
    assert said.err.startswith(f"simulator: there is no --run_mode {mode}")
    assert not said.out


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"accuracyy": 1}, "accuracyy"),
        ([1], "it holds no JSON object"),
        ({"accuracy": 1.5}, "accuracy"),
        ({"answer_key": "/no/such/file"}, "answer_key"),
        ({"speeed": 1}, "speeed: there is no such setting; did you mean `speed`?"),
        (fault("cold-hit"), "faults.0.fault: there is no fault `cold-hit`; did you mean `cold-hits`?"),
        (fault("oom", share=0.5), "takes no share"),
        ({"costs": {"stepp": 1}}, "there is no cost `stepp`; did you mean `step`?"),
        ({"costs": {"step": -1}}, "costs.step"),
        ({"accept_mean": 0.5}, "accept_mean"),
        ({"pd_speed": 0}, "pd_speed"),
        (fault("stall", when={"no_such_argument": 1}), "no_such_argument"),
    ],
)
def test_bad_settings(
    tmp_path: Path,
    told: dict[str, Any],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert _inside(monkeypatch, tmp_path, told=told) == 1
    error = capsys.readouterr().err
    assert "HARNESS_SIMULATOR" in error
    assert says in error
    assert "type=" not in error
    assert "pydantic" not in error


def test_an_acceptance_that_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--mtp_mode", "eagle_with_att", "--mtp_step", "2")
    assert _inside(monkeypatch, tmp_path, *flags, told={"accept_mean": 3.5}) == 1
    assert "3.5 tokens per step cannot come of 2 drafted ones" in capsys.readouterr().err


def test_settings_by_kv_type() -> None:
    told = Settings.model_validate({"accuracy": {"None": 0.6, "fp8kv_dsa": 0.55}})
    assert told.accuracies == {"None": 0.6, "fp8kv_dsa": 0.55}
    assert Settings().accuracies == {"None": 0.6}


def test_settings_file_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.VARIABLE, "/no/such/file.json")
    with pytest.raises(BadSettings, match=r"/no/such/file\.json"):
        settings.load()


def test_the_port_listens_only_when_the_model_is_loaded(tmp_path: Path) -> None:
    with launched(tmp_path, settings={"load_seconds": 1.0}) as server:
        server.wait_for("Loading model weights")
        with socket.socket() as client:
            assert client.connect_ex(("127.0.0.1", server.port)) != 0
        server.ready()
        assert server.get("/health").json() == {"message": "Ok"}
        order = [
            server.log.index(text) for text in ("init func start_router", "server start up", "Running on")
        ]
        assert order == sorted(order)


def test_model_fetched_by_relative_path_and_server_info(tmp_path: Path) -> None:
    with launched(tmp_path, "--tp", "4", "--linear_att_hash_page", "128") as server:
        info = server.ready().get("/get_server_info").json()
    assert (info["tp"], info["linear_att_hash_page_size"], info["max_total_token_num"]) == (4, 128, None)
    assert info["max_req_total_len"] == 131072


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("oom", "torch.OutOfMemoryError: CUDA out of memory."),
        ("exits-at-ready", "HTTP server exited unexpectedly"),
    ],
)
def test_start_faults_that_end_with_1(tmp_path: Path, name: str, says: str) -> None:
    with launched(tmp_path, settings=fault(name)) as server:
        assert server.process.wait(20) == 1
        assert says in server.log
    if name == "oom":
        assert re.search(r"^ERROR .* init func start_router_process : Traceback", server.log, re.MULTILINE)
        assert "Running on" not in server.log


@pytest.mark.parametrize("name", ["child-killed-launcher-hangs", "hang-loading"])
def test_start_faults_that_hang(tmp_path: Path, name: str) -> None:
    with launched(tmp_path, settings=fault(name)) as server:
        server.wait_for("| 4/8")
        children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
        if name == "child-killed-launcher-hangs":
            child = children.read_text().split()[0]
            until(lambda: ") Z" in Path(f"/proc/{child}/stat").read_text(), "a zombie child")
        time.sleep(0.5)  # it must not go on
        assert server.process.poll() is None
        assert server.log.count("\n") == server.log.count("\n", 0, server.log.rindex("| 4/8")) + 1
        assert server.end() == 0


def test_slow_but_progressing(tmp_path: Path) -> None:
    told = {"load_seconds": 0.2, **fault("slow-but-progressing", factor=6)}
    begin = time.monotonic()
    with launched(tmp_path, settings=told) as server:
        server.wait_for("| 2/8")
        assert "Running on" not in server.log
        server.ready()
    assert time.monotonic() - begin > 1.2


def test_sigterm_while_loading(tmp_path: Path) -> None:
    with launched(tmp_path, settings={"load_seconds": 60}) as server:
        server.wait_for("mode setting params")
        assert server.end() == 0


def test_sigterm_while_loading_hangs(tmp_path: Path) -> None:
    told = {"load_seconds": 60, **fault("sigterm-while-loading-hangs")}
    with launched(tmp_path, settings=told) as server:
        server.wait_for("mode setting params")
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("Received SIGTERM")
        with pytest.raises(subprocess.TimeoutExpired):
            server.process.wait(0.7)


def test_faults_strike_only_where_they_are_aimed(tmp_path: Path) -> None:
    told = fault("oom", when={"llm_kv_type": "fp8kv_dsa"})
    with launched(tmp_path, settings=told) as server:
        server.ready()
        assert server.end() == 0
    with launched(tmp_path, "--llm_kv_type", "fp8kv_dsa", settings=told) as server:
        assert server.process.wait(20) == 1


def test_kv_type_rewritten(tmp_path: Path) -> None:
    with launched(tmp_path, "--llm_kv_type", "fp8kv_dsa", settings=fault("kv-type-rewritten")) as server:
        info = server.ready().get("/get_server_info").json()
        assert json.dumps(info["llm_kv_type"]) == '"None"'
        assert "mode setting params: None" in server.log
        assert "Fp8" not in server.log


def test_wrong_model_name(tmp_path: Path) -> None:
    told = fault("wrong-model-name", to="somebody-else")
    with launched(tmp_path, "--model_name", "glm53", settings=told) as server:
        assert server.ready().get("/v1/models").json()["data"][0]["id"] == "somebody-else"
        assert server.get("/get_model_name").json() == {"model_name": "somebody-else"}
