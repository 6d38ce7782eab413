"""Prefill/decode disaggregation as three processes: their logs, their deaths, and what they leave."""

import re
import signal
from pathlib import Path
from typing import Any

import pytest

from harness.engines.lightllm.log import GRAMMAR
from tests.simulator.launched import Launched, fault, free_port, ids, launched, names_of, until, words
from tests.simulator.log_classes import classes, plain
from tests.simulator.pd_trio import NODE, PLAIN, joined, launched_pd, pd_log, prompt

pytestmark = pytest.mark.process
OF_A_MASTER = words(
    "all_start_args req_received req_done kv_field pd_registered pd_sub_req pd_upkv_recv pd_prompt_ids "
    "pd_removed"
)
OF_A_NODE = words(
    "all_start_args req_received req_done pd_reg_sent pd_ctl_listen pd_comm pd_ret_ok sigterm all_down"
)
OF_PREFILL = words("pd_p_upload pd_p_skip pd_p_request pd_p_ready pd_p_start pd_p_posted pd_p_done")
OF_DECODE = words("pd_d_recv_req pd_d_recv_page pd_d_recv_done")


def ask(server: Launched, text: str, tokens: int = 12) -> Any:
    parameters = {"max_new_tokens": tokens, "min_new_tokens": tokens, "return_details": True}
    return server.post("/generate", {"inputs": text, "parameters": parameters})


def test_from_start_to_stop(tmp_path: Path) -> None:
    """Cold as a single server, warm without a transfer, known lines only, and nothing left."""
    flags = ("--page_size", "1")
    with launched_pd(tmp_path, *flags, model=PLAIN) as servers:
        joined(servers)
        master = servers["master"]
        assert master.get("/health").status_code == 200
        cold, warm = ask(master, prompt(1500)), ask(master, prompt(1500))
        uniqs = [_uniq(server) for server in servers.values()]
        assert all(len(names_of(uniq)) > 10 for uniq in uniqs)
        assert [servers[role].end() for role in ("prefill", "decode", "master")] == [0, 0, 0]
        assert not [name for uniq in uniqs for name in names_of(uniq)]
    (tmp_path / "alone").mkdir()
    with launched(tmp_path / "alone", *NODE, *flags, model=PLAIN) as server:
        expected = ask(server.ready(), prompt(1500)).json()
    assert ids(cold.json()) == ids(warm.json()) == ids(expected)
    assert warm.json()["tokens"][0]["prompt_cache_len"] == 1499
    _check_lines({role: server.log for role, server in servers.items()})


def _check_lines(logs: dict[str, str]) -> None:
    found = {role: classes(log) for role, log in logs.items()}
    assert set(OF_A_MASTER) <= found["master"].keys()
    assert {*OF_A_NODE, *OF_PREFILL} <= found["prefill"].keys()
    assert {*OF_A_NODE, *OF_DECODE} <= found["decode"].keys()
    sides = [pd_log(logs[role]).transfers for role in ("prefill", "decode")]
    assert [list(side) for side in sides] == [["16"], ["16"]]
    assert sides[0]["16"].ranges == sides[1]["16"].ranges == ((0, 512), (512, 1024), (1024, 1500))
    for log in logs.values():
        assert not [line for line in plain(log) if _fatal(line)]
    assert any(rule.label == "nodes-joined" for rule in _phases(logs["master"]))
    assert all(
        any(rule.label == "registered" for rule in _phases(logs[role])) for role in ("prefill", "decode")
    )


def _fatal(line: str) -> bool:
    return any(rule.pattern.search(line) for rule in GRAMMAR.fatal) and not any(
        rule.pattern.search(line) for rule in GRAMMAR.benign
    )


def _phases(log: str) -> list[Any]:
    return [rule for line in plain(log) for rule in GRAMMAR.phases if rule.pattern.search(line)]


def _uniq(server: Launched) -> str:
    found = re.search(r"zmq mode head: ipc:///tmp/_(\w+)_$", server.log, re.MULTILINE)
    assert found
    return found[1]


def test_the_prefill_node_dies(tmp_path: Path) -> None:
    with launched_pd(tmp_path, settings=fault("prefill-dies", after_requests=1)) as servers:
        joined(servers)
        master = servers["master"]
        assert ask(master, prompt(600, "one")).json()["finish_reason"] == "length"
        struck = ask(master, prompt(600, "two"))
        assert servers["prefill"].process.wait(10) == -signal.SIGKILL
        master.wait_for(f"mode: prefill url: 127.0.0.1:{servers['prefill'].port} removed")
        assert (struck.status_code, struck.json()["finish_reason"]) == (200, "error")
        assert "forced to finished (reason=error), kv transfer error" in servers["decode"].log
        health = master.get("/health")
        assert (health.status_code, health.json()["registered_prefill_nodes"]) == (503, 0)
        assert ask(master, prompt(600, "three")).status_code == 417
        assert [servers[role].end() for role in ("decode", "master")] == [0, 0]


def test_a_silent_node_is_dropped_and_may_come_back(tmp_path: Path) -> None:
    with launched_pd(tmp_path) as servers:
        joined(servers)
        master, node = servers["master"], servers["decode"]
        node.process.send_signal(signal.SIGSTOP)
        master.wait_for("heartbeat timed out")
        assert master.get("/readiness").status_code == 503
        node.process.send_signal(signal.SIGCONT)
        until(lambda: master.log.count("mode: decode") == 3, "registered again")
        assert "connetion to pd_master has error" in node.log
        assert ask(master, prompt(300)).json()["finish_reason"] == "length"


def test_the_decode_node_dies_while_it_answers(tmp_path: Path) -> None:
    settings = {"speed": 1, **fault("killed", after_requests=1, when={"run_mode": "decode"})}
    with launched_pd(tmp_path, settings=settings) as servers:
        joined(servers)
        master = servers["master"]
        assert ask(master, prompt(300), 2).status_code == 200
        struck = ask(master, prompt(300, "two"), 2)
        assert struck.status_code == 417
        assert struck.json()["error"]["message"].startswith("PD node generate failed: decode node 127.0.0.1:")


@pytest.mark.parametrize("mode", ["prefill", "decode"])
def test_a_node_on_loopback_ends_itself(tmp_path: Path, mode: str) -> None:
    with launched(tmp_path, "--run_mode", mode, "--pd_kv_page_size", "32768") as server:
        assert server.process.wait(20) == 0
        assert "pd mode must specify host ip, not use 127.0.0.1 or localhost" in server.log
        assert "Received SIGINT (Ctrl+C), forcing immediate exit..." in server.log
        assert not names_of(_uniq(server))


def test_a_page_too_small_for_the_state(tmp_path: Path) -> None:
    flags = words("--run_mode decode --llm_kv_type fp8kv_dsa --pd_kv_page_size 16384")
    with launched(tmp_path, *flags, settings={"allow_loopback_nodes": True}) as server:
        assert server.process.wait(20) == 1
    assert re.search(
        r"^ERROR .* AssertionError: pd kv page bytes 335544320 is smaller than linear att state bytes \d{9},",
        server.log,
        re.MULTILINE,
    )
    assert "init func start_router_process : Traceback" in server.log


def test_a_master_has_no_router_and_needs_no_node_to_start(tmp_path: Path) -> None:
    with launched(tmp_path, "--run_mode", "pd_master") as server:
        server.ready()
        pid = server.process.pid
        assert not Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        assert "start_router_process" not in server.log
        assert _uniq(server).endswith("_pd_master")
        assert server.end() == 0


def test_a_node_without_a_master_tries_for_ever(tmp_path: Path) -> None:
    flags = words("--run_mode prefill --pd_kv_page_size 32768 --pd_master_ip 127.0.0.1 --pd_master_port 1")
    told = {"allow_loopback_nodes": True, "pd_speed": 0.01}
    with launched(tmp_path, *flags, settings=told) as server:
        until(lambda: server.log.count("connetion to pd_master has error") > 2, "tried again")
        assert server.get("/health").status_code == 200
        assert server.end() == 0


def test_the_master_may_come_last(tmp_path: Path) -> None:
    told = {"allow_loopback_nodes": True, "pd_speed": 0.02}
    flags = words("--run_mode prefill --pd_kv_page_size 32768 --pd_master_ip 127.0.0.1")
    port = free_port()
    (tmp_path / "node").mkdir()
    (tmp_path / "master").mkdir()
    with launched(tmp_path / "node", *flags, "--pd_master_port", str(port), settings=told) as node:
        node.wait_for("connetion to pd_master has error")
        with launched(tmp_path / "master", "--run_mode", "pd_master", "--port", str(port)) as master:
            master.wait_for("mode: prefill url: ")
            assert master.log.count("registed") == 1
