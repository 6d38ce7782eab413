"""`plan` of lanes with several servers: whole commands, and what is wrong told before anything starts."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Harness

pytestmark = pytest.mark.process
LIGHTLLM = """
lanes:
  pd:
    engine: lightllm
    model: {{path: {model}, served_name: glm}}
    flags:
      --max_req_total_len: 8192
      --llm_kv_type: fp8kv_dsa
      --page_size: 16
      --pd_kv_page_size: {page}
    servers:
      - {{role: master, flags: {{--pd_master_mode: 1p1d}}}}
      - {{role: decode, host: {host}}}
      - {{role: prefill, host: {host}}}
    checks: {{pd-parity: }}
"""
SGLANG = """
lanes:
  pd:
    engine: sglang
    python: /bin/sh
    model: {{path: {model}}}
    servers: [{{role: prefill}}, {{role: decode}}, {{role: router}}]
"""


def planned(harness: Harness, folder: Path, text: str, **words: Any) -> Any:
    model = folder / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text('{"model_type": "glm5_next"}', encoding="utf-8")
    (folder / "pd.yaml").write_text(text.format(model=model, **words), encoding="utf-8")
    return json.loads(harness("plan", folder / "pd.yaml", "--json").out)


def commands(plan: Any) -> dict[str, str]:
    return {server["role"]: " ".join(server["argv"]) for server in plan["lanes"]["pd"]["servers"]}


def test_lightllm(harness: Harness, tmp_path: Path) -> None:
    plan = planned(harness, tmp_path, LIGHTLLM, page=32768, host="127.0.0.2")
    servers = plan["lanes"]["pd"]["servers"]
    assert [server["role"] for server in servers] == ["prefill", "decode", "master"]
    ports = {server["role"]: server["ports"] for server in servers}
    taken = [port for own in ports.values() for port in own.values()]
    assert len(taken) == len(set(taken)) == 5
    found = commands(plan)
    for role in ("prefill", "decode"):
        assert f"--host 127.0.0.2 --port {ports[role]['http']} " in found[role]
        assert f"--run_mode {role} --pd_master_ip 127.0.0.1 " in found[role]
        assert f"--pd_master_port {ports['master']['http']} " in found[role]
    assert f"--host 127.0.0.1 --port {ports['master']['http']} --run_mode pd_master " in found["master"]
    assert not any("pd_kv_page_size" in problem or "host" in problem for problem in plan["problems"])


def test_a_transfer_page_that_cannot_hold_the_state(harness: Harness, tmp_path: Path) -> None:
    plan = planned(harness, tmp_path, LIGHTLLM, page=16384, host="127.0.0.2")
    assert any("--pd_kv_page_size (16384) cannot hold the whole state" in text for text in plan["problems"])


@pytest.mark.parametrize("host", ["203.0.113.9", "0.0.0.0", "localhost"])
def test_an_address_of_another_machine(harness: Harness, tmp_path: Path, host: str) -> None:
    plan = planned(harness, tmp_path, LIGHTLLM, page=32768, host=host)
    assert any(f"host `{host}` of decode is no IPv4 address" in text for text in plan["problems"])


def test_lightllm_nodes_need_a_network_card(harness: Harness, tmp_path: Path) -> None:
    plan = planned(harness, tmp_path, LIGHTLLM, page=32768, host="127.0.0.1")
    assert any("needs a network card's address" in text for text in plan["problems"])


def test_sglang(harness: Harness, tmp_path: Path) -> None:
    plan = planned(harness, tmp_path, SGLANG)
    prefill, _, router = plan["lanes"]["pd"]["servers"]
    found = commands(plan)
    bootstrap = prefill["ports"]["bootstrap"]
    assert f"--disaggregation-bootstrap-port {bootstrap}" in found["prefill"]
    assert f"--prefill http://127.0.0.1:{prefill['ports']['http']} {bootstrap} --decode " in found["router"]
    assert set(router["ports"]) == {"http", "metrics"}


def test_an_engine_without_nodes(harness: Harness, tmp_path: Path) -> None:
    plan = planned(harness, tmp_path, SGLANG.replace("sglang", "llamacpp"))
    assert any("llamacpp has no role `prefill` here; it has: normal" in text for text in plan["problems"])


def test_gpus_that_do_not_fit(harness: Harness, tmp_path: Path) -> None:
    """Told by `plan` and refused by `run`, each server by its role, before anything is started."""
    text = LIGHTLLM.replace("role: decode,", "role: decode, gpus: 2,")
    plan = planned(harness, tmp_path, text, page=32768, host="127.0.0.2")
    found = plan["problems"]
    assert any(
        "prefill leases 0 GPU(s) (`gpus:`) and would use 1 (--tp is not given)" in one for one in found
    )
    assert not any("master leases" in one for one in found)
    run = harness("run", tmp_path / "pd.yaml")
    assert run.code == 2
    assert "decode leases 2 GPU(s) (`gpus:`) and would use 1" in run.err
    assert not (tmp_path / "runs").exists()


def test_a_master_that_takes_less_than_is_asked(harness: Harness, tmp_path: Path) -> None:
    text = LIGHTLLM.replace("--pd_master_mode: 1p1d", "--pd_master_mode: 1p1d, --max_req_total_len: 2338")
    found = planned(harness, tmp_path, text, page=32768, host="127.0.0.2")["problems"]
    sentence = "it asks for 2307 + 32 tokens, and master takes 2338 (--max_req_total_len 2338)"
    assert any(sentence in one for one in found)
    fitting = planned(harness, tmp_path, text.replace("2338", "2339"), page=32768, host="127.0.0.2")
    assert not any("it asks for" in one for one in fitting["problems"])
