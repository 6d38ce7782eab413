"""LightLLM's P/D log lines: which request's KV was moved, in which pieces, and what went wrong."""

import pytest

from harness.engines.base import Transfer
from harness.engines.lightllm.adapter import Lightllm
from harness.engines.lightllm.facts import log_facts
from harness.engines.lightllm.pd import PdLog, read
from harness.errors import TargetError
from tests.engines.canned import Canned

STAMP = "INFO 09-20 03:04:05 [manager.py:538] "
TASK = (
    "PDChunckedTransTask(request_id={id}, start_kv_index={a}, end_kv_index={b}, time_out_secs=182, "
    "error_info=None, page_kind='{kind}', req_idx=None)"
)
RET = (
    "trans task ret {word}:PDChunckedTransTaskRet(request_id={id}, start_kv_index={a}, end_kv_index={b}, "
    "has_error={error}, error_info={why}, first_gen_token_id=None, first_gen_token_logprob=None){cost}"
)


def done(a: int, b: int, cost: str, name: int = 16) -> str:
    return RET.format(word="success", id=name, a=a, b=b, error=False, why="None", cost=cost)


def sent(a: int, b: int, name: int = 16) -> list[str]:
    return [
        f"send WRITE done nixl notify request_id={name} kv=[{a},{b}) src_page=0 dst_page=1",
        done(a, b, " cost time: 0.0123 s", name),
    ]


def received(a: int, b: int, kind: str = "kv", read_ms: str = "1.234", name: int = 16) -> list[str]:
    return [
        f"recv WRITE done from prefill: {TASK.format(id=name, a=a, b=b, kind=kind)}",
        done(a, b, f" cost time: 0.0123 s read_page_gpu_time: {read_ms} ms", name),
    ]


def log(*messages: str) -> PdLog:
    return read((number, f"{STAMP}{message}\n") for number, message in enumerate(messages, 1))


def transfer(*messages: str) -> Transfer:
    return log(*messages).transfers["16"]


@pytest.mark.parametrize("side", [sent, received])
def test_pieces_in_order(side: object) -> None:
    assert callable(side)
    lines = [*side(512, 2304), *side(0, 512), *side(2304, 2304), *side(0, 7, name=24)]
    found = log(*lines).transfers
    assert found["16"] == Transfer(ranges=((0, 512), (512, 2304)), state=True, line=6)
    assert found["24"] == Transfer(ranges=((0, 7),), line=8)


def test_a_piece_needs_its_line_and_its_outcome() -> None:
    piece, outcome = received(0, 2304)
    assert transfer(piece).ranges == ()
    assert transfer(outcome).ranges == ()
    assert transfer(outcome, piece).ranges == ((0, 2304),)


def test_nothing_was_read() -> None:
    """The decode node had it all: a negative time, or no cost at all."""
    assert transfer(*received(0, 2304, read_ms="-1.000")).ranges == ()
    assert transfer(received(0, 2304)[0], done(0, 2304, "")).ranges == ()


def test_failures() -> None:
    fail = RET.format(word="fail", id=16, a=0, b=2304, error=True, why="'xfer error'", cost="")
    forced = "req_id: 16 forced to finished (reason=error), kv transfer error"
    found = transfer(received(0, 2304)[0], fail, forced)
    assert found.ranges == ()
    assert found.errors == (
        "[0,2304): 'xfer error'",
        "forced to finished (reason=error), kv transfer error",
    )
    assert transfer(RET.format(word="success", id=16, a=0, b=1, error=True, why="None", cost="")).errors


def test_two_messages_in_one_line() -> None:
    piece, outcome = sent(0, 9)
    assert read([(1, f"{STAMP}{piece}{STAMP}{outcome}")]).transfers["16"].ranges == ((0, 9),)


@pytest.mark.parametrize(
    "line", ["", "\0", " WRITE done ", STAMP + "trans task ret success:(", "\x1b[31m" * 9]
)
def test_odd_lines(line: str) -> None:
    assert read([(1, line)]) == PdLog({}, {})


def test_a_master_connects_the_client_with_the_nodes() -> None:
    ids = "X-Request-Id:{} X-Session-Id: start_time:2026-09-20 03:04:05 lightllm_req_id:{}"
    lines = [
        f"received req {ids.format('one', 8)} ",
        "pd log gen sub req id 16 for main req id 8",
        "pd log gen sub req id 24 for main req id 8",  # for the second half of a long output
        f"received req {ids.format('two', 32)} ",
    ]
    facts = log_facts((number, f"{STAMP}{line}") for number, line in enumerate(lines, 1))
    assert facts.requests["one"].node_id == "16"
    assert facts.requests["two"].node_id is None


def test_lines_in_full() -> None:
    task = (
        "recv WRITE done from prefill: PDChunckedTransTask(request_id=8, start_kv_index=0, "
        "end_kv_index=2304, time_out_secs=182, pd_master_node_id=0, prefill_dp_index=0, "
        "decode_dp_index=None, src_device_id=0, dst_device_id=None, mem_indexes=None, "
        "prefill_agent_name='a', prefill_agent_metadata=b'xxx', prefill_num_pages=2, "
        "prefill_page_reg_desc=b'xxx', decode_agent_name='b', write_stage='done', src_page_index=0, "
        "dst_page_index=1, xfer_handle=None, create_time=1789872245.1, start_trans_time=None, "
        "error_info=None, transfer_time_out_secs=66, page_kind='kv', req_idx=None)"
    )
    outcome = (
        "trans task ret success:PDChunckedTransTaskRet(request_id=8, start_kv_index=0, end_kv_index=2304, "
        "has_error=False, error_info=None, first_gen_token_id=None, first_gen_token_logprob=None) "
        "cost time: 0.0123 s read_page_gpu_time: 1.234 ms"
    )
    assert log(task, outcome).transfers["8"].ranges == ((0, 2304),)


def test_joined() -> None:
    health = {"pd_nodes_ready": True, "registered_prefill_nodes": 1, "registered_decode_nodes": 0}
    assert Lightllm().joined(Canned(health=health)) == {"prefill"}
    with pytest.raises(TargetError):
        Lightllm().joined(Canned(health={"message": "Ok"}))
    with pytest.raises(TargetError):
        Lightllm().joined(Canned(health=500))
