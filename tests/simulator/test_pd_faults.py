"""Every fault of prefill/decode disaggregation: what it does to answers, and what the logs then say."""

import asyncio
from typing import Any

import pytest

from harness.simulator.faults import PD, Planted
from harness.simulator.main import rewrite
from harness.simulator.pd.link import Link, connect, upgrade
from harness.simulator.settings import Fault
from tests.simulator.launched import fault, ids
from tests.simulator.pd_trio import Trio, body, prompt, together

pytestmark = pytest.mark.process
TEXT = prompt(1000)
STRANGE = b'{"kind": "register", "size": 0, "start_args": 5}\n'
IN_A_PROCESS_OF_ITS_OWN = {"prefill-dies"}  # test_pd_process.py


async def asked(trio: Trio) -> Any:
    """Two prompts: each fault spares the first."""
    first, second = await trio.ask(prompt(900, "other")), await trio.ask(TEXT)
    return first, second, trio.transfers(16), trio.transfers(32)


def run(name: str, *flags: str, **aim: Any) -> Any:
    return together(asked, *flags, settings=fault(name, after_requests=1, **aim))


@pytest.fixture(scope="module")
def right() -> Any:
    """What is answered without a fault."""
    return together(asked)[1]


def test_each_has_a_test() -> None:
    tested = {
        *("pd-no-transfer", "pd-transfer-error", "pd-corrupt-transfer", "pd-gap"),
        "health-green-while-dead",
    }
    assert set(PD) == tested | IN_A_PROCESS_OF_ITS_OWN


def test_no_transfer(right: Any) -> None:
    first, second, spared, struck = run("pd-no-transfer")
    assert ids(second) == ids(right)
    assert second["tokens"][0]["prompt_cache_len"] == 0
    assert all(side is not None and side.ranges for side in spared)
    assert struck == (None, None)
    assert first["finish_reason"] == "length"


def test_transfer_error() -> None:
    first, second, spared, struck = run("pd-transfer-error")
    assert first["finish_reason"] == "length"
    assert all(side is not None and not side.errors for side in spared)
    assert (second["finish_reason"], second["count_output_tokens"]) == ("error", 1)
    assert [token["text"] for token in second["tokens"]] == [""]
    assert all(side is not None and side.errors for side in struck)


def test_a_failed_transfer_is_in_the_logs_of_both_nodes() -> None:
    async def work(trio: Trio) -> Any:
        await trio.ask(TEXT)
        return trio.prefill.log, trio.decode.log

    prefill, decode = together(work, settings=fault("pd-transfer-error"))
    for log in (prefill, decode):
        assert "trans task ret fail:PDChunckedTransTaskRet(request_id=16, " in log
    assert "req_id: 16 forced to finished (reason=error), kv transfer error" in decode


def test_corrupt_transfer(right: Any) -> None:
    first, second, _, (sent, received) = run("pd-corrupt-transfer")
    assert first["finish_reason"] == "length"
    assert ids(second)[0] == ids(right)[0]  # the prefill node's own
    assert ids(second) != ids(right)
    assert sent.ranges == received.ranges == ((0, 512), (512, 1000))  # the logs look well


def test_gap(right: Any) -> None:
    _, second, (spared, _), (sent, received) = run("pd-gap")
    assert ids(second) == ids(right)
    assert spared.ranges == ((0, 512), (512, 900))
    assert sent.ranges == received.ranges == ((256, 512), (512, 1000))
    assert sent.state


def test_dead_and_green() -> None:
    """The decode node gives up first: its client sees a good status and a bad reason."""

    async def work(trio: Trio) -> Any:
        await trio.ask(prompt(900, "other"))
        answer = await trio.ask(TEXT)
        return answer, [
            (await server.send("GET", "/health")).status for server in (trio.prefill, trio.master)
        ]

    settings = fault("health-green-while-dead", after_requests=1)
    answer, health = together(work, settings=settings)
    assert answer["finish_reason"] == "error"
    assert health == [200, 200]


def test_share() -> None:
    async def work(trio: Trio) -> Any:
        texts = [prompt(200, str(n)) for n in range(30)]
        answers = await asyncio.gather(*(trio.ask(text) for text in texts))
        return [answer["finish_reason"] for answer in answers]

    reasons = together(work, settings=fault("pd-transfer-error", share=0.3))
    assert 3 <= reasons.count("error") <= 16
    assert reasons.count("length") == 30 - reasons.count("error")


@pytest.mark.parametrize(("name", "status"), [("stall", None), ("error-500", 417), ("busy-429", 429)])
def test_faults_of_a_single_server_strike_at_the_master(name: str, status: int | None) -> None:
    async def work(trio: Trio) -> Any:
        parameters = {"inputs": "x", "parameters": {"max_new_tokens": 2}}
        try:
            answer = await asyncio.wait_for(trio.master.send("POST", "/generate", parameters), 0.5)
        except TimeoutError:
            return None, trio.prefill.log
        return answer.status, trio.prefill.log

    seen, log = together(work, settings=fault(name, when={"run_mode": "pd_master"}))
    assert seen == status
    assert "received req" not in log


def test_nodes_of_another_kv_type_do_not_understand_each_other(right: Any) -> None:
    async def work(trio: Trio) -> Any:
        return await trio.ask(TEXT), trio.transfers(16)

    answer, (sent, received) = together(work, own={"decode": ("--llm_kv_type", "None")})
    assert ids(answer) != ids(right)
    assert sent.ranges == received.ranges == ((0, 512), (512, 1000))


def test_waiting_too_long_for_a_node_is_429() -> None:
    """A prefill node registers, lives, and says nothing about the prompt."""

    async def work(trio: Trio) -> Any:
        info = body(await trio.master.send("GET", "/get_server_info"))
        link = await upgrade("127.0.0.1", info["port"], "/pd_register")
        start = {"max_req_total_len": info["max_req_total_len"]}
        link.send("register", node_id=7, client_ip_port="127.0.0.1:1", mode="prefill", start_args=start)
        living = asyncio.create_task(_beat(link))
        await trio.joined()
        answer = await trio.master.send("POST", "/generate", {"inputs": TEXT, "parameters": {}})
        health = body(await trio.master.send("GET", "/health"))
        living.cancel()
        return answer.status, health["pd_nodes_ready"], health["pd_nodes_healthy"]

    settings = fault("pd-never-registers", when={"run_mode": "prefill"})
    assert together(work, join=False, settings=settings) == (429, True, False)


async def _beat(link: Link) -> None:
    while True:
        link.send("heartbeat")
        await asyncio.sleep(0.1)


@pytest.mark.parametrize(
    "said",
    [b"nonsense\n", b'{"kind": "register", "size": 0}\n', b'{"size": 4}\nabcd', b"\xff" * 100, STRANGE],
)
def test_a_stranger_at_the_master_is_hung_up_on(said: bytes) -> None:
    async def work(trio: Trio) -> Any:
        info = body(await trio.master.send("GET", "/get_server_info"))
        reader, writer = await asyncio.open_connection("127.0.0.1", info["port"])
        writer.write(b"GET /pd_register HTTP/1.1\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        writer.write_eof()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await asyncio.wait_for(reader.readexactly(1), 5)
        writer.close()
        return await trio.ask(TEXT)

    assert together(work)["finish_reason"] == "length"


def test_a_stranger_at_a_decode_node_is_hung_up_on() -> None:
    async def work(trio: Trio) -> Any:
        line = next(line for line in trio.decode.log.splitlines() if "control channel" in line)
        link = await connect("127.0.0.1", int(line.rpartition(":")[2]))
        link.send("hello", agent="stranger")
        link.send("request", nothing=1)
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(link.receive(), 5)
        return await trio.ask(TEXT)

    assert together(work)["finish_reason"] == "length"


@pytest.mark.parametrize("mode", ["prefill", "decode"])
@pytest.mark.parametrize(
    ("to", "name", "value"), [("", "pd_kv_page_num", 3), ("dtype=half", "dtype", "half")]
)
def test_argument_mismatch(mode: str, to: str, name: str, value: Any) -> None:
    args: dict[str, Any] = {"run_mode": mode, "pd_kv_page_num": 2, "dtype": "whole"}
    rewrite(args, Planted([Fault(fault="pd-argument-mismatch", to=to)], args))
    assert (args[name] == value) == (mode == "decode")


def test_argument_mismatch_of_none() -> None:
    args = {"run_mode": "decode"}
    with pytest.raises(ValueError, match="no start argument 'nothing'"):
        rewrite(args, Planted([Fault(fault="pd-argument-mismatch", to="nothing=1")], args))
