"""Who may join a P/D master, what master and nodes tell of it, and what they refuse."""

from typing import Any

import pytest

from harness.simulator import start_args
from harness.simulator.model import Model
from tests.simulator.launched import GLM, model_dir
from tests.simulator.parser import parser
from tests.simulator.pd_trio import PLAIN, Trio, body, prompt, together

pytestmark = pytest.mark.process


def test_what_a_master_refuses() -> None:
    async def work(trio: Trio) -> Any:
        asked: list[tuple[str, Any]] = [
            ("/generate", {"inputs": [1, 2, 3], "parameters": {}}),
            ("/generate", {"inputs": "x", "parameters": {"disable_prompt_cache": True}}),
            ("/v1/completions", {"model": "glm53", "prompt": [1, 2, 3]}),
            ("/generate", {"inputs": "x" * 9000, "parameters": {}}),
            ("/generate", {"inputs": "x" * 70000, "parameters": {}}),
        ]
        answers = [await trio.master.send("POST", path, content) for path, content in asked]
        load = await trio.master.send("GET", "/token_load")
        count = await trio.master.post("/tokens", {"text": "abc", "parameters": {}})
        return [answer.status for answer in answers], load.status, count

    assert together(work) == ([417, 417, 500, 400, 400], 500, {"ntokens": 4})


def test_a_prompt_that_only_a_node_cannot_take() -> None:
    async def work(trio: Trio) -> Any:
        asked = {"inputs": prompt(2000), "parameters": {"max_new_tokens": 4}}
        answer = await trio.master.send("POST", "/generate", asked)
        return answer.status, body(answer), trio.master.log, await trio.ask(prompt(100))

    own = {"decode": ("--max_total_token_num", "1024")}
    status, answer, log, later = together(work, own=own)
    assert status == 417
    assert answer["error"]["message"].startswith("PD node generate failed: the input prompt token len 2000")
    assert "received PD node generate error" in log
    assert later["count_output_tokens"] == 16


def test_nodes_answer_nobody_else() -> None:
    async def work(trio: Trio) -> Any:
        asked = {"inputs": "x", "parameters": {}}
        paths = ("/generate", "/generate_stream", "/", "/v1/completions", "/v1/chat/completions")
        nodes = (trio.prefill, trio.decode)
        refused = [await node.send("POST", path, asked) for node in nodes for path in paths]
        healthy = [(await node.send("GET", "/health")).status for node in nodes]
        info = [body(await node.send("GET", "/get_server_info")) for node in (*nodes, trio.master)]
        return refused, healthy, info

    refused, healthy, info = together(work)
    assert {answer.status for answer in refused} == {417}
    text = "service in pd mode dont recv reqs from http interface"
    assert {body(answer)["error"]["message"] for answer in refused} == {text}
    assert healthy == [200, 200]
    assert [each["run_mode"] for each in info] == ["prefill", "decode", "pd_master"]
    assert [each["router_token_ratio"] for each in info] == [0.0, 0.0, None]
    assert [each["linear_att_page_block_num"] for each in info[:2]] == [10_000_000] * 2
    assert (info[0]["disable_vision"], info[1]["disable_vision"]) == (False, True)


def test_health_tells_who_has_joined() -> None:
    async def work(trio: Trio) -> Any:
        await trio.until(lambda: "mode: decode" in trio.master.log)
        answers = [await trio.master.send("GET", path) for path in ("/health", "/readiness", "/liveness")]
        asked = await trio.master.send("POST", "/generate", {"inputs": "x", "parameters": {}})
        return answers, asked, trio.master.log

    (health, readiness, liveness), asked, log = together(
        work, join=False, settings={"faults": [_fault("pd-never-registers", run_mode="prefill")]}
    )
    assert [health.status, readiness.status, liveness.status, asked.status] == [503, 503, 200, 417]
    told = body(health)
    assert told["inference_healthy"]
    assert not told["pd_nodes_ready"]
    assert (told["registered_prefill_nodes"], told["registered_decode_nodes"]) == (0, 1)
    line = "PD nodes are not ready: current_prefill=0, expected_prefill=1, current_decode=1"
    assert line in log
    assert line in body(asked)["error"]["message"]


def test_health_when_all_have_joined() -> None:
    async def work(trio: Trio) -> Any:
        return [await trio.master.send("GET", path) for path in ("/health", "/readiness", "/healthz")]

    answers = together(work)
    assert [answer.status for answer in answers] == [200] * 3
    assert body(answers[0]) == {
        "inference_healthy": True,
        "pd_nodes_ready": True,
        "pd_nodes_healthy": True,
        "message": "Ok",
        "pd_master_mode": "1p1d",
        "registered_prefill_nodes": 1,
        "registered_decode_nodes": 1,
    }


def test_another_max_length_is_refused_for_ever() -> None:
    async def work(trio: Trio) -> Any:
        await trio.until(lambda: trio.decode.log.count("Sent registration JSON") > 2)
        return trio.master.log, trio.decode.log

    master, node = together(work, join=False, own={"decode": ("--max_req_total_len", "4096")})
    assert "client dont has same max_req_total_len params, but pd master is 8192client is 4096" in master
    assert "mode: decode" not in master
    assert "connetion to pd_master has error" in node


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--run_mode decode --enable_cpu_cache --linear_att_page_block_num 2", "enable_cpu_cache"),
        ("--run_mode prefill --page_size 16 --pd_kv_page_size 1000", "must be divisible by --page_size"),
    ],
)
def test_arguments_that_a_node_refuses(flags: str, says: str, tmp_path: Any) -> None:
    folder = model_dir(tmp_path / "model")
    given = parser().parse_args(["--model_dir", str(folder), *flags.split()])
    with pytest.raises((AssertionError, ValueError), match=says):
        start_args.resolve(given, Model.of(folder))


@pytest.mark.parametrize(
    ("kv_type", "page", "fits"),
    [("fp8kv_dsa", 16384, False), ("fp8kv_dsa", 32768, True), ("None", 16384, True), ("None", 1024, False)],
)
def test_a_transfer_page_holds_the_whole_state(kv_type: str, page: int, fits: bool, tmp_path: Any) -> None:
    args = {"llm_kv_type": kv_type, "pd_kv_page_size": page}
    model = Model.of(model_dir(tmp_path / "model", GLM))
    start_args.check_transfer_page(args, Model.of(model_dir(tmp_path / "plain", PLAIN)))
    if fits:
        start_args.check_transfer_page(args, model)
        return
    with pytest.raises(AssertionError, match=r"page bytes \d+ is smaller than linear att state bytes \d+"):
        start_args.check_transfer_page(args, model)


def _fault(name: str, **when: Any) -> dict[str, Any]:
    return {"fault": name, "when": when}
