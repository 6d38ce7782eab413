"""The scripts that people start by hand: the same commands as the scenarios', and nothing left behind."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from harness.checks import CHECKS
from harness.engines import ENGINES
from harness.engines.base import Launch
from harness.engines.lightllm.rules import FP8_STATE_PAGE
from harness.scenario.load import load
from harness.scenario.model import Scenario

SCRIPTS = Path(__file__).parents[1] / "start_scripts" / "glm53"
NORMAL, PD = SCRIPTS / "glm53_normal.sh", SCRIPTS / "glm53_pd_1p1d.sh"
MODEL = "/models/GLM 5.3"  # a blank in it, as anybody's may have
WAIT_S = 20.0
NODE = {"MODEL_DIR": "/m", "NODE_IP": "10.0.0.5"}

pytestmark = pytest.mark.process


def run(script: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """The script with these settings and no others of the caller's."""
    env = {"PATH": os.environ["PATH"], **settings}
    command = [str(script), *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=30, check=False)


def dry(script: Path, *arguments: str, **settings: str) -> list[str]:
    done = run(script, *arguments, DRY_RUN="1", MODEL_DIR=MODEL, **settings)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def nodes(**settings: str) -> dict[str, list[str]]:
    """The three commands of prefill and decode, by name."""
    text = "\n".join(dry(PD, MASTER_PORT="18000", NODE_IP="10.0.0.5", **settings))
    parts = re.split(r"^# (\w+)\n", text, flags=re.MULTILINE)[1:]
    return {name: words.splitlines() for name, words in zip(parts[::2], parts[1::2], strict=True)}


def scenario_called(name: str) -> Scenario:
    return load(
        name,
        overrides=(f"params.MODEL_DIR={MODEL}",),
        environ={},
        engines=ENGINES,
        check_params={name: check.params for name, check in CHECKS.items()},
    )


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return scenario_called("glm53-fp8kv")


def planned(scenario: Scenario, lane: str) -> list[str]:
    spec = scenario.lanes[lane].servers[0]
    launch = Launch(
        lane=lane,
        role=spec.role,
        model_path=MODEL,
        served_name=scenario.lanes[lane].model.served_name,
        flags=spec.flags,
        env=spec.env,
        ports={"http": 18000, "nccl": 18100},
        folder=Path("/tmp"),
        python="python",
    )
    return ENGINES["lightllm"].argv(launch)


LAB = """
    --disable_vision --tp 4 --data_type bfloat16 --llm_kv_type fp8kv_dsa --page_size 16
    --max_total_token_num 65536 --max_req_total_len 8192
    --running_max_req_size 32 --batch_max_tokens 4096 --chunked_prefill_size 512
    --graph_max_batch_size 32 --graph_max_len_in_batch 8192
    --linear_att_cache_size 8 --linear_att_hash_page_size 512
    --mtp_mode eagle_with_att --mtp_step 2 --mtp_draft_model_dir MODEL
    --enable_prefill_cudagraph --prefill_cudagraph_max_handle_token 1024
"""


def test_the_labs_command(scenario: Scenario) -> None:
    """The accuracy lane as the lab has always started it."""
    place = ["--host", "127.0.0.1", "--port", "18000", "--nccl_port", "18100"]
    front = ["python", "-m", "lightllm.server.api_server", "--model_dir", MODEL, "--model_name", "glm53"]
    flags = [MODEL if word == "MODEL" else word for word in LAB.split()]
    assert planned(scenario, "fp8-mtp") == [*front, *place, *flags]


@pytest.mark.parametrize(
    ("lane", "settings"),
    [
        ("bf16", {}),
        ("bf16", {"KV_TYPE": "None", "MTP": "0"}),
        ("fp8", {"KV_TYPE": "fp8kv_dsa"}),
        ("fp8", {"LLM_KV_TYPE": "fp8kv_dsa"}),
        ("bf16-mtp", {"MTP": "1"}),
        ("fp8-mtp", {"MTP": "1", "KV_TYPE": "fp8kv_dsa"}),
    ],
)
def test_the_script_starts_what_the_scenario_starts(
    scenario: Scenario, lane: str, settings: dict[str, str]
) -> None:
    assert dry(NORMAL, **settings) == planned(scenario, lane)


def test_a_pair_differs_in_the_kv_type_alone(scenario: Scenario) -> None:
    for pair in scenario.pairs.values():
        baseline, candidate = (planned(scenario, name) for name in (pair.baseline, pair.candidate))
        different = [(a, b) for a, b in zip(baseline, candidate, strict=True) if a != b]
        assert different == [("None", "fp8kv_dsa")]
        assert pair.max_drop_pp is None


def test_fp8_mtp_is_a_part_of_it(scenario: Scenario) -> None:
    part = scenario_called("fp8-mtp")
    assert list(part.lanes) == ["bf16-mtp", "fp8-mtp"]
    assert part.lanes == {name: scenario.lanes[name] for name in part.lanes}
    assert list(part.pairs.values()) == [scenario.pairs["fp8-mtp"]]


def test_the_small_pool(scenario: Scenario) -> None:
    """What differs from the normal pool is exactly what it is for."""
    small = dry(NORMAL, SMALL_POOL="1", MTP="1", KV_TYPE="fp8kv_dsa", CPU_CACHE="1")
    normal = planned(scenario, "fp8-mtp")
    pairs = dict(pairwise(small))
    expected = {
        "--max_total_token_num": "4096",
        "--max_req_total_len": "3072",
        "--running_max_req_size": "8",
        "--graph_max_batch_size": "8",
        "--batch_max_tokens": "1024",
        "--chunked_prefill_size": "257",
        "--linear_att_cache_size": "8",
        "--linear_att_hash_page_size": "128",
        "--linear_att_page_block_num": "2",
        "--router_token_ratio": "1.0",
        "--cpu_cache_storage_size": "16",
        "--cache_placement_strategy": "legacy",
    }
    assert {flag: pairs.get(flag) for flag in expected} == expected
    graph = {"--enable_prefill_cudagraph", "--prefill_cudagraph_max_handle_token"}
    flags = {word for word in normal if word.startswith("--")} - graph
    added = {"--linear_att_page_block_num", "--router_token_ratio", "--enable_cpu_cache"}
    added |= {"--cpu_cache_storage_size", "--cache_placement_strategy"}
    assert {word for word in small if word.startswith("--")} == flags | added


def test_prefill_and_decode_agree_on_what_they_must(scenario: Scenario) -> None:
    commands = nodes(MTP="1", LLM_KV_TYPE="fp8kv_dsa")
    normal = planned(scenario, "fp8-mtp")
    values = {name: dict(pairwise(words)) for name, words in commands.items()}
    shared = (
        "--llm_kv_type",
        "--page_size",
        "--data_type",
        "--mtp_mode",
        "--mtp_step",
        "--max_req_total_len",
    )
    for flag in (*shared, "--chunked_prefill_size", "--batch_max_tokens", "--max_total_token_num"):
        wanted = normal[normal.index(flag) + 1]
        assert values["prefill"][flag] == values["decode"][flag] == wanted, flag
    for flag in ("--pd_kv_page_size", "--pd_kv_page_num", "--pd_trans_mode", "--linear_att_ssm_data_type"):
        assert values["prefill"][flag] == values["decode"][flag], flag
    assert values["prefill"]["--pd_kv_page_size"] == "32768"
    assert values["master"]["--max_req_total_len"] == values["decode"]["--max_req_total_len"]
    places = [(node["--host"], node["--port"], node.get("--nccl_port")) for node in values.values()]
    assert places == [
        ("10.0.0.5", "18001", "18101"),
        ("10.0.0.5", "18002", "18102"),
        ("127.0.0.1", "18000", None),
    ]
    assert [node["--run_mode"] for node in values.values()] == ["prefill", "decode", "pd_master"]


def test_prefill_and_decode_are_sound_for_the_engine(tmp_path: Path) -> None:
    """Every flag is known, and LightLLM's own rules are kept, with both KV types."""
    (tmp_path / "config.json").write_text('{"model_type": "glm5_next", "kv_lora_rank": 512}')
    owned = ("--model_dir", "--model_name", "--host", "--port", "--nccl_port", "--run_mode", "--pd_master")
    for kind in ("None", "fp8kv_dsa"):
        commands = nodes(LLM_KV_TYPE=kind)
        for role, words in commands.items():
            flags: dict[str, str | bool] = {}
            for word, after in zip(words, [*words[1:], "--"], strict=True):
                if word.startswith("--") and not word.startswith(owned):
                    flags[word] = True if after.startswith("--") else after
            launch = Launch(
                lane="pd",
                role=role,
                model_path=str(tmp_path),
                served_name="glm53",
                flags=flags,
                env={},
                ports={"http": 18000, "nccl": 18100},
                folder=tmp_path,
                host="10.0.0.5",
                python="/no/such/python",
                peers={"master": "http://127.0.0.1:18000"},
            )
            problems = ENGINES["lightllm"].problems(launch)
            assert ["no interpreter" in problem for problem in problems] == [True], problems


def test_the_labs_own_call() -> None:
    """Port, address and model as arguments, too."""
    words = dry(PD, "18500", "10.0.0.9", "/models/other")
    assert words.count("/models/other") == 3
    assert words.count("18500") == 3
    assert words.count("10.0.0.9") == 2


@pytest.mark.parametrize(
    ("script", "settings", "sentence"),
    [
        (NORMAL, {}, "set MODEL_DIR"),
        (NORMAL, {"MODEL_DIR": "/m", "MTP": "yes"}, "MTP is 0 or 1, not 'yes'"),
        (NORMAL, {"MODEL_DIR": "/m", "MTP": ""}, "MTP is 0 or 1, not ''"),
        (NORMAL, {"MODEL_DIR": "/m", "KV_TYPE": "fp8"}, "KV_TYPE is None or fp8kv_dsa, not fp8"),
        (NORMAL, {"MODEL_DIR": "/m", "KV_TYPE": ""}, "KV_TYPE or LLM_KV_TYPE is set to nothing"),
        (NORMAL, {"MODEL_DIR": "/m", "LLM_KV_TYPE": ""}, "KV_TYPE or LLM_KV_TYPE is set to nothing"),
        (NORMAL, {"MODEL_DIR": "/m", "TP": ""}, "TP is a whole number from 1 to 1024, not ''"),
        (NORMAL, {"MODEL_DIR": "/m", "TP": "four"}, "TP is a whole number"),
        (NORMAL, {"MODEL_DIR": "/m", "TP": "0"}, "TP is a whole number"),
        (NORMAL, {"MODEL_DIR": "/m", "TP": "04"}, "TP is a whole number"),
        (NORMAL, {"MODEL_DIR": "/m", "TP": "4 --dp 2"}, "TP is a whole number"),
        (NORMAL, {"MODEL_DIR": "/m", "TP": "x[$(touch pwned)]"}, "TP is a whole number"),
        (NORMAL, {"MODEL_DIR": "/m", "PORT": ""}, "PORT is a whole number from 1 to 65535, not ''"),
        (NORMAL, {"MODEL_DIR": "/m", "PORT": "65536"}, "PORT is a whole number"),
        (NORMAL, {"MODEL_DIR": "/m", "NCCL_PORT": "99999999999999999999"}, "NCCL_PORT is a whole number"),
        (NORMAL, {"MODEL_DIR": "/m", "PORT": "18100"}, "PORT and NCCL_PORT are both 18100"),
        (NORMAL, {"MODEL_DIR": "/m", "CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES is a list of GPUs"),
        (NORMAL, {"MODEL_DIR": "/m", "CUDA_VISIBLE_DEVICES": "0,1"}, "names fewer GPUs than TP=4: 0,1"),
        (NORMAL, {"MODEL_DIR": "/m", "CPU_CACHE": "1"}, "CPU_CACHE=1 needs SMALL_POOL=1"),
        (NORMAL, {"MODEL_DIR": "/m", "KV_TYPE": "None", "LLM_KV_TYPE": "fp8kv_dsa"}, "contradict"),
        (PD, {"NODE_IP": "10.0.0.5"}, "set MODEL_DIR"),
        (PD, {"MODEL_DIR": "/m", "NODE_IP": "127.0.0.1"}, "set NODE_IP"),
        (PD, {"MODEL_DIR": "/m", "NODE_IP": "10.0.0.5", "MASTER_PORT": "x"}, "MASTER_PORT is a whole number"),
        (PD, {"MODEL_DIR": "/m", "NODE_IP": "10.0.0.5", "CPU_CACHE": "1"}, "a decode node refuses it"),
        (PD, {**NODE, "MASTER_PORT": "65434"}, "MASTER_PORT is a whole number from 1 to 65433, not '65434'"),
        (PD, {**NODE, "PREFILL_GPUS": ""}, "PREFILL_GPUS is a list of GPUs such as 0,1,2,3, not ''"),
        (PD, {**NODE, "DECODE_GPUS": "4 5 6 7"}, "DECODE_GPUS is a list of GPUs"),
        (PD, {**NODE, "DECODE_GPUS": "4,5,6,6"}, "DECODE_GPUS names GPU 6 twice: 4,5,6,6"),
        (PD, {**NODE, "DECODE_GPUS": "4,5,6"}, "DECODE_GPUS names fewer GPUs than TP=4: 4,5,6"),
        (PD, {**NODE, "DECODE_GPUS": "3,4,5,6"}, "GPU 3 is in PREFILL_GPUS and in DECODE_GPUS"),
        (PD, {**NODE, "TP": "8"}, "PREFILL_GPUS names fewer GPUs than TP=8: 0,1,2,3"),
        (PD, {**NODE, "PD_KV_PAGE_SIZE": "32k"}, "PD_KV_PAGE_SIZE is a whole number"),
        (PD, {**NODE, "PD_KV_PAGE_SIZE": "16385"}, "PD_KV_PAGE_SIZE is a multiple of --page_size 16"),
        (
            PD,
            {**NODE, "KV_TYPE": "fp8kv_dsa", "PD_KV_PAGE_SIZE": "16384"},
            "PD_KV_PAGE_SIZE is at least 32768 with fp8kv_dsa",
        ),
        (PD, {**NODE, "KV_TYPE": "bf16"}, "KV_TYPE is None or fp8kv_dsa, not bf16"),
        (PD, {**NODE, "STOP_SECONDS": "soon"}, "STOP_SECONDS is a whole number"),
    ],
)
def test_mistakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: Path, settings: dict[str, str], sentence: str
) -> None:
    """One sentence, and nothing is started: the interpreter would leave a file."""
    monkeypatch.chdir(tmp_path)
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    python.chmod(0o755)
    done = run(script, PYTHON=str(python), **settings)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == [python]


def test_gpus_by_uuid_and_more_than_needed() -> None:
    """As CUDA takes them; the first TP of them are used."""
    gpus = {"PREFILL_GPUS": "GPU-8932f937-d72c,MIG-GPU-1a/1/0,2", "DECODE_GPUS": "20,21"}
    assert nodes(TP="2", **gpus)["prefill"] == nodes(TP="2")["prefill"]


def test_the_largest_port() -> None:
    assert dry(PD, "65433", "10.0.0.5").count("65433") == 3
    assert "65535" in dry(PD, "65433", "10.0.0.5")


@pytest.mark.parametrize("script", [NORMAL, PD])
def test_help(script: Path) -> None:
    for flag in ("-h", "--help"):
        done = run(script, flag)
        assert done.returncode == 0
        assert "MODEL_DIR" in done.stdout
    assert run(script, "--nonsense").returncode == 2


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not on PATH")
def test_shellcheck() -> None:
    files = [str(path) for path in sorted(SCRIPTS.glob("*.sh"))]
    root = SCRIPTS.parents[1]
    done = subprocess.run(["shellcheck", "-x", *files], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


# really started, with a stand-in for the interpreter

STAND_IN = """#!{python}
import os, subprocess, sys, time
gpus, level = os.environ["CUDA_VISIBLE_DEVICES"], os.environ["LIGHTLLM_LOG_LEVEL"]
print("args", sys.argv[1:], "gpus", repr(gpus), level)
print("proxy", repr(os.environ["http_proxy"]), os.environ["NO_PROXY"], flush=True)
child = subprocess.Popen(["sleep", "300"])
print("child", child.pid, flush=True)
time.sleep(300)
"""


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    path = tmp_path / "python"
    path.write_text(STAND_IN.format(python=sys.executable))
    path.chmod(0o755)
    return path


@pytest.fixture
def started(stand_in: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    env = {
        "PATH": os.environ["PATH"],
        "MODEL_DIR": MODEL,
        "NODE_IP": "10.0.0.5",
        "PYTHON": str(stand_in),
        "LOG_DIR": str(tmp_path / "logs"),
        "CUDA_VISIBLE_DEVICES": "0,1",
        "http_proxy": "http://proxy:1",
        "STOP_SECONDS": "3",
    }
    process = subprocess.Popen(
        [str(PD)], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    yield process
    if process.poll() is None:
        process.terminate()
    process.communicate(timeout=WAIT_S)


def logged(tmp_path: Path, name: str, word: str) -> str:
    """The rest of the log's line that begins with this word, once it is there."""
    path = tmp_path / "logs" / f"{name}.log"
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        lines = path.read_text().splitlines() if path.exists() else []
        if found := [line for line in lines if line.startswith(word)]:
            return found[0].removeprefix(word).strip()
        time.sleep(0.02)
    raise AssertionError(f"{path} has no line with {word}")


def gone(pid: int) -> bool:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True  # dead; whoever adopted it has yet to notice
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False


def test_nodes_are_started_and_stopped_with_all_their_children(
    started: subprocess.Popen[str], tmp_path: Path
) -> None:
    bystander = subprocess.Popen(["sleep", "300"])
    try:
        children = [int(logged(tmp_path, name, "child")) for name in ("prefill", "decode", "master")]
        assert "gpus '0,1,2,3' debug" in logged(tmp_path, "prefill", "args")
        assert "gpus '4,5,6,7' debug" in logged(tmp_path, "decode", "args")
        assert "gpus '' debug" in logged(tmp_path, "master", "args")
        assert logged(tmp_path, "prefill", "proxy") == "'' 127.0.0.1,localhost,::1,10.0.0.5"
        started.send_signal(signal.SIGTERM)
        assert started.wait(timeout=WAIT_S) == 143
        assert all(gone(pid) for pid in children)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_when_one_ends_the_others_are_stopped(
    stand_in: Path, started: subprocess.Popen[str], tmp_path: Path
) -> None:
    children = [int(logged(tmp_path, name, "child")) for name in ("prefill", "decode", "master")]
    line = next(line for line in iter(started.stdout.readline, "") if line.startswith("decode:"))  # type: ignore[union-attr]
    os.kill(int(re.search(r"pid (\d+)", line)[1]), signal.SIGKILL)  # type: ignore[index]
    assert started.wait(timeout=WAIT_S) == 1
    assert all(gone(pid) for pid in children)


def test_one_server_takes_the_place_of_the_script(stand_in: Path, tmp_path: Path) -> None:
    """`exec`: who started the script holds the server itself."""
    env = {
        "PATH": os.environ["PATH"],
        "MODEL_DIR": MODEL,
        "PYTHON": str(stand_in),
        "CUDA_VISIBLE_DEVICES": "0",
        "TP": "1",
    }
    process = subprocess.Popen([str(NORMAL)], env={**env, "LOG_DIR": str(tmp_path / "logs")})
    try:
        child = int(logged(tmp_path, "server", "child"))
        assert str(MODEL) in logged(tmp_path, "server", "args")
        status = Path(f"/proc/{child}/status").read_text()
        assert f"PPid:\t{process.pid}\n" in status
    finally:
        process.kill()
        process.wait()
        os.kill(child, signal.SIGKILL)


def options(words: list[str]) -> set[tuple[str, ...]]:
    """Each flag with its values, whatever the order."""
    found: list[list[str]] = []
    for word in words:
        if word.startswith("--"):
            found.append([word])
        elif found:
            found[-1].append(word)
    return {tuple(option) for option in found}


def test_defaults_are_the_scenario_s(scenario: Scenario) -> None:
    """GPUs of each server, and the page of a transfer; what the scripts refuse would be refused there too."""
    prefill, decode, _ = scenario.lanes["pd"].servers
    assert prefill.gpus == decode.gpus == scenario.lanes["fp8"].servers[0].gpus
    settings = {**NODE, "DRY_RUN": "1"}
    assert run(PD, TP=str(prefill.gpus), **settings).stdout == run(PD, **settings).stdout != ""
    assert run(PD, TP=str(prefill.gpus + 1), **settings).returncode == 2  # the default lists are no longer
    page = dict(pairwise(nodes(KV_TYPE="fp8kv_dsa")["prefill"]))["--pd_kv_page_size"]
    assert page == str(FP8_STATE_PAGE) == str(prefill.flags["--pd_kv_page_size"])


@pytest.mark.parametrize(("lane", "settings"), [("pause", {}), ("cpu-cache", {"CPU_CACHE": "1"})])
def test_the_small_pool_is_the_scenario_s(scenario: Scenario, lane: str, settings: dict[str, str]) -> None:
    words = dry(NORMAL, SMALL_POOL="1", MTP="1", KV_TYPE="fp8kv_dsa", **settings)
    assert options(words) == options(planned(scenario, lane))


def test_a_device_hit_and_a_reload_leave_the_same_to_compute(scenario: Scenario) -> None:
    """Else they could differ by batch shape alone, and the control, a second device hit, would not tell."""
    lane = scenario.lanes["cpu-cache"]
    flags = lane.servers[0].flags
    page = int(str(flags["--linear_att_hash_page_size"]))
    cpu_page = page * int(str(flags["--linear_att_page_block_num"]))
    tokens = lane.checks["cpu-reload"]["length"]
    assert tokens == scenario.lanes["pause"].checks["reload-control"]["length"]
    assert (tokens - 1) // page * page == (tokens - 1) // cpu_page * cpu_page


def test_prefill_decode_and_master_are_the_scenario_s(scenario: Scenario) -> None:
    commands = nodes(LLM_KV_TYPE="fp8kv_dsa")
    for number, spec in enumerate(scenario.lanes["pd"].servers):
        master = spec.role == "master"
        launch = Launch(
            lane="pd",
            role=spec.role,
            model_path=MODEL,
            served_name="glm53",
            flags=spec.flags,
            env={},
            ports={"http": 18000} if master else {"http": 18001 + number, "nccl": 18101 + number},
            folder=Path("/tmp"),
            python="python",
            host="127.0.0.1" if master else "10.0.0.5",
            peers={"master": "http://127.0.0.1:18000"},
        )
        assert options(commands[spec.role]) == options(ENGINES["lightllm"].argv(launch))
