"""Prompts of all kinds and batches of them on `/v1/completions`."""

import asyncio
from typing import Any

import pytest

from tests.simulator.launched import Inside, answered


@pytest.mark.parametrize(
    ("prompt", "choices", "tokens"),
    [("ab", 1, 2), (["ab", "cde"], 2, 5), ([97, 98, 99], 1, 3), ([[97], [98, 99]], 2, 3)],
)
def test_kinds_of_prompts(prompt: Any, choices: int, tokens: int) -> None:
    body = {"model": "m", "prompt": prompt, "max_tokens": 3, "temperature": 0}
    answer = answered(lambda server: server.post("/v1/completions", body))
    assert [choice["index"] for choice in answer["choices"]] == list(range(choices))
    assert answer["usage"]["prompt_tokens"] == tokens  # no begin token
    assert answer["usage"]["completion_tokens"] == 3 * choices


def test_every_prompt_of_a_batch_is_a_request_of_its_own() -> None:
    async def work(server: Inside) -> str:
        body = {"model": "m", "prompt": ["a", "b"], "max_tokens": 3}
        await server.post("/v1/completions", body, x_request_id="batch")
        return server.log

    log = answered(work)
    assert log.count("received req X-Request-Id:batch ") == 2
    assert "lightllm_req_id:8 " in log
    assert "lightllm_req_id:16 " in log


def test_one_bad_prompt_fails_the_batch_and_the_others_go_on() -> None:
    async def work(server: Inside) -> tuple[int, str]:
        body = {"model": "m", "prompt": ["a", "b" * 200], "max_tokens": 3}
        response = await server.send("POST", "/v1/completions", body)
        while "lightllm_req_id:8 first_token_cost" not in server.log:
            await asyncio.sleep(0.01)
        return response.status, server.log

    status, log = answered(work, "--max_req_total_len", "100")
    assert status == 400
    assert "lightllm_req_id:16 first_token_cost" not in log
