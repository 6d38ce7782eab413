"""Errors of the HTTP API, and the paths that do not exist."""

import json
from typing import Any

import pytest

from tests.simulator.launched import answered, shape

ERRORS: list[tuple[str, Any, int, str]] = [
    ("/generate", {"inputs": "x" * 200, "parameters": {}}, 400, "BadRequestError"),
    ("/generate", {"inputs": "x" * 2000, "parameters": {}}, 400, "BadRequestError"),
    ("/generate", {"inputs": [], "parameters": {}}, 400, "BadRequestError"),
    ("/generate", {"inputs": [10**6], "parameters": {}}, 400, "BadRequestError"),
    ("/generate", {"inputs": "a", "parameters": {"max_new_tokens": 0}}, 400, "BadRequestError"),
    ("/generate", {"inputs": "a", "parameters": {"top_p": 2}}, 400, "BadRequestError"),
    ("/generate", {"inputs": "a", "parameters": {"n": 9, "best_of": 9}}, 400, "BadRequestError"),
    ("/generate", {"inputs": "a", "parameters": {"stop_sequences": ["x"] * 11}}, 400, "BadRequestError"),
    ("/generate", {"inputs": "a", "parameters": {"stop_sequences": ["x" * 256]}}, 400, "BadRequestError"),
    ("/generate", b"{", 400, "BadRequestError"),
    ("/generate", {"inputs": [1.5], "parameters": {}}, 417, "InternalServerError"),
    ("/generate", {"inputs": "a"}, 417, "InternalServerError"),
    ("/generate", {"parameters": {}}, 417, "InternalServerError"),
    ("/generate", [1], 417, "InternalServerError"),
    ("/generate", {"inputs": "a", "parameters": {"max_new_tokens": "many"}}, 417, "InternalServerError"),
    ("/generate_stream", {"inputs": "a", "parameters": {"n": 2, "best_of": 2}}, 417, "InternalServerError"),
    ("/tokens", {}, 417, "InternalServerError"),
    ("/v1/completions", {"model": "m", "prompt": "x" * 200}, 400, "BadRequestError"),
    ("/v1/completions", {"model": "m", "prompt": []}, 400, "BadRequestError"),
    ("/v1/completions", {"model": "m", "prompt": "a", "suffix": "b"}, 400, "BadRequestError"),
    ("/v1/completions", {"model": "m", "prompt": "a", "logit_bias": {"1": 2}}, 400, "BadRequestError"),
    ("/v1/completions", {"model": "m", "prompt": ["a", "b"], "stream": True}, 400, "BadRequestError"),
    ("/v1/completions", {"prompt": "a"}, 422, ""),
    ("/v1/completions", {"model": "m", "prompt": 5}, 422, ""),
    ("/v1/chat/completions", {"model": "m"}, 422, ""),
    ("/v1/chat/completions", {"model": "m", "messages": []}, 400, "BadRequestError"),
    ("/profiler_start", {}, 400, "BadRequestError"),
]


@pytest.mark.parametrize(("path", "body", "status", "kind"), ERRORS, ids=lambda value: str(value)[:40])
def test_errors(path: str, body: Any, status: int, kind: str) -> None:
    response = answered(lambda server: server.send("POST", path, body), "--max_req_total_len", "100")
    assert response.status == status, response.body
    content = json.loads(response.body)
    if status == 422:
        assert content["detail"][0]["loc"][0] == "body"
    else:
        assert shape(content) == {"error": {"message": str, "type": str, "param": type(None), "code": int}}
        assert (content["error"]["type"], content["error"]["code"]) == (kind, status)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/id_generate", 404), ("GET", "/generate", 405), ("HEAD", "/health", 200)],
)
def test_other_paths_and_methods(method: str, path: str, status: int) -> None:
    assert answered(lambda server: server.send(method, path)).status == status
