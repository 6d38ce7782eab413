"""Shapes, defaults and errors of the HTTP API, against a written expectation."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.simulator.launched import Inside, answered, ids, shape

TEXT = "What is 2 + 3?"


GENERATE = {"max_new_tokens": 5, "return_details": True}
TOKEN = {
    "id": int,
    "logprob": float,
    "cumlogprob": float,
    "special": bool,
    "count_output_tokens": int,
    "prompt_cache_len": int,
    "mtp_accepted_token_num": int,
    "mtp_verify_token_num": int,
    "mtp_verify_step_num": int,
    "prompt_tokens": int,
    "text": str,
}
USAGE = {
    "prompt_tokens": int,
    "completion_tokens": int,
    "total_tokens": int,
    "prompt_tokens_details": {"cached_tokens": int, "audio_tokens": int},
}
SHAPES: list[tuple[str, str, Any, Any]] = [
    ("GET", "/health", None, {"message": str}),
    ("GET", "/healthz", None, {"message": str}),
    ("GET", "/readiness", None, {"status": str}),
    ("POST", "/readiness", None, {"status": str}),
    ("GET", "/liveness", None, {"status": str}),
    ("GET", "/get_model_name", None, {"model_name": str}),
    (
        "GET",
        "/v1/models",
        None,
        {
            "object": str,
            "data": [{"id": str, "object": str, "created": int, "owned_by": str, "max_model_len": int}],
        },
    ),
    (
        "GET",
        "/token_load",
        None,
        {"current_load": float, "logical_max_load": float, "dynamic_max_load": float},
    ),
    ("POST", "/tokens", {"text": TEXT}, {"ntokens": int}),
    ("GET", "/tokens", {"text": TEXT, "parameters": {}}, {"ntokens": int}),
    (
        "POST",
        "/v1/completions",
        {"model": "m", "prompt": TEXT, "max_tokens": 5},
        {
            "id": str,
            "object": str,
            "created": int,
            "model": str,
            "choices": [{"text": str, "index": int, "logprobs": type(None), "finish_reason": str}],
            "usage": USAGE,
        },
    ),
    (
        "POST",
        "/v1/chat/completions",
        {"model": "m", "messages": [{"role": "user", "content": TEXT}], "max_tokens": 5},
        {
            "id": str,
            "object": str,
            "created": int,
            "model": str,
            "choices": [
                {
                    "index": int,
                    "message": {"role": str, "content": str},
                    "logprobs": type(None),
                    "finish_reason": str,
                }
            ],
            "usage": USAGE,
        },
    ),
]


@pytest.mark.parametrize(("method", "path", "body", "wanted"), SHAPES, ids=lambda value: str(value)[:24])
def test_shapes(method: str, path: str, body: Any, wanted: Any) -> None:
    async def work(server: Inside) -> Any:
        response = await server.send(method, path, body)
        assert response.status == 200
        return json.loads(response.body)

    assert shape(answered(work)) == wanted


@pytest.mark.parametrize("path", ["/generate", "/"])
def test_generate(path: str) -> None:
    body = {"inputs": TEXT, "parameters": GENERATE}
    answer = answered(lambda server: server.post(path, body))
    assert {name: shape(value) for name, value in answer.items() if name != "logprobs"} == {
        "generated_text": [str],
        "count_output_tokens": int,
        "finish_reason": str,
        "prompt_tokens": int,
        "tokens": [TOKEN],
        "input_usage": {"prompt_tokens": int, "cached_tokens": int},
    }
    assert (answer["count_output_tokens"], answer["finish_reason"], len(answer["tokens"])) == (5, "length", 5)
    assert answer["prompt_tokens"] == len(TEXT) + 1
    assert "".join(token["text"] for token in answer["tokens"]) == answer["generated_text"][0]
    assert [next(iter(entry)) for entry in answer["logprobs"]] == [str(one) for one in ids(answer)]
    total = sum(token["logprob"] for token in answer["tokens"])
    assert answer["tokens"][-1]["cumlogprob"] == pytest.approx(total)


def test_details_only_on_demand() -> None:
    body = {"inputs": TEXT, "parameters": {"max_new_tokens": 5}}
    assert "tokens" not in answered(lambda server: server.post("/generate", body))


def test_several_sequences_are_lists() -> None:
    parameters = {**GENERATE, "n": 2, "best_of": 2, "do_sample": True, "temperature": 1.0, "seed": 1}
    answer = answered(lambda server: server.post("/generate", {"inputs": TEXT, "parameters": parameters}))
    assert answer["count_output_tokens"] == [5, 5]
    assert [len(tokens) for tokens in answer["tokens"]] == [5, 5]
    assert answer["generated_text"][0] != answer["generated_text"][1]


def test_greedy_is_repeatable_and_sampling_is_not() -> None:
    async def work(server: Inside) -> list[list[str]]:
        def body(**more: Any) -> Any:
            return {"inputs": TEXT, "parameters": {"max_new_tokens": 20, **more}}

        sampled = {"do_sample": True, "temperature": 0.8}
        rounds = []
        for parameters in ({}, sampled, {**sampled, "seed": 5}, {**sampled, "temperature": 0.0}):
            texts = [(await server.post("/generate", body(**parameters)))["generated_text"][0] for _ in "ab"]
            rounds.append(texts)
        return rounds

    greedy, sampled, seeded, cold = answered(work)
    assert greedy[0] == greedy[1] == cold[0]
    assert sampled[0] != sampled[1]
    assert seeded[0] == seeded[1] != greedy[0]


def test_the_models_own_sampling_is_the_default(tmp_path: Path) -> None:
    from harness.simulator.sampling import Sampling

    assert Sampling.of({}, {}).greedy
    assert not Sampling.of({}, {"do_sample": True, "temperature": 0.7}).greedy
    assert Sampling.of({"do_sample": False}, {"do_sample": True, "temperature": 0.7}).greedy


def test_stream() -> None:
    async def work(server: Inside) -> Any:
        body = {"inputs": TEXT, "parameters": GENERATE}
        return await server.events("/generate_stream", body), await server.post("/generate", body)

    events, whole = answered(work)
    read = [json.loads(event) for event in events]
    assert shape(read[0]) | {"token": {}} == {
        "token": {},
        "generated_text": type(None),
        "finished": bool,
        "finish_reason": type(None),
        "details": type(None),
        "input_usage": type(None),
    }
    assert [event["token"]["id"] for event in read] == ids(whole)
    assert [event["finished"] for event in read] == [False] * 4 + [True]
    assert read[-1]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": TEXT}),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "text", "text": TEXT}]}]},
        ),
    ],
)
def test_openai_streams(path: str, body: dict[str, Any]) -> None:
    same = {"model": "m", "max_tokens": 9, "temperature": 0, **body}

    async def work(server: Inside) -> Any:
        options = {"stream": True, "stream_options": {"include_usage": True}}
        return await server.events(path, {**same, **options}), await server.post(path, same)

    events, whole = answered(work)
    assert events[-1].strip() == "[DONE]"
    read = [json.loads(event) for event in events[:-1]]
    choices = [event["choices"][0] for event in read if event["choices"]]
    wanted = whole["choices"][0]
    if path == "/v1/completions":
        assert "".join(choice["text"] for choice in choices) == wanted["text"]
    else:
        assert choices[0]["delta"]["role"] == "assistant"
        said = "".join(choice["delta"].get("content", "") for choice in choices)
        assert said == wanted["message"]["content"]
    assert choices[-1]["finish_reason"] == "length"
    assert read[-1]["usage"]["completion_tokens"] == 9


def test_cache_is_reported() -> None:
    async def work(server: Inside) -> Any:
        body = {"inputs": "x" * 1100, "parameters": GENERATE}
        cold, warm = await server.post("/generate", body), await server.post("/generate", body)
        control = await server.post(
            "/generate", {**body, "parameters": {**GENERATE, "disable_prompt_cache": True}}
        )
        openai = {"model": "m", "prompt": "<|begin|>" + "x" * 1100, "max_tokens": 1}
        return cold, warm, control, await server.post("/v1/completions", openai)

    cold, warm, control, openai = answered(work)
    lengths = [answer["tokens"][0]["prompt_cache_len"] for answer in (cold, warm, control)]
    assert lengths == [0, 1024, 0]
    assert ids(cold) == ids(warm) == ids(control)
    assert openai["usage"]["prompt_tokens_details"]["cached_tokens"] == 1024


def test_max_new_tokens_is_cut_silently() -> None:
    async def work(server: Inside) -> Any:
        body = {"inputs": "x" * 90, "parameters": {"max_new_tokens": 512, "ignore_eos": True}}
        return await server.post("/generate", body), server.log

    answer, log = answered(work, "--max_req_total_len", "100")
    assert (answer["count_output_tokens"], answer["finish_reason"]) == (9, "length")
    assert "the input prompt token len 91 + max_new_tokens512 > 100,so change max_new_tokens to 9" in log


def test_unknown_parameters_are_ignored() -> None:
    body = {"inputs": "a", "parameters": {"max_new_tokens": 2, "no_such_parameter": 1}}
    assert answered(lambda server: server.post("/generate", body))["count_output_tokens"] == 2


def test_stop_sequence_and_end_token() -> None:
    async def work(server: Inside) -> Any:
        free = {"inputs": TEXT, "parameters": {"max_new_tokens": 400, "return_details": True}}
        natural = await server.post("/generate", free)
        word = natural["generated_text"][0].split()[3]
        stopped = {**free["parameters"], "stop_sequences": [f" {word}"]}  # type: ignore[dict-item]
        early = await server.post("/generate", {**free, "parameters": stopped})
        most = {"max_new_tokens": 400, "min_new_tokens": 400, "ignore_eos": True}
        return natural, word, early, await server.post("/generate", {**free, "parameters": most})

    natural, word, early, full = answered(work)
    assert natural["finish_reason"] == "stop"
    assert natural["tokens"][-1]["text"] == ""
    assert natural["tokens"][-1]["special"] is True
    assert early["finish_reason"] == "stop"
    assert early["generated_text"][0].endswith(word)
    assert (full["count_output_tokens"], full["finish_reason"]) == (400, "length")


def test_server_info_models_and_metrics() -> None:
    async def work(server: Inside) -> Any:
        body = {"inputs": "x" * 600, "parameters": GENERATE}
        await server.post("/generate", body)
        await server.post("/generate", body)
        await server.send("POST", "/generate", {"inputs": "x"})
        info, models, metrics = [
            await server.send("GET", path) for path in ("/get_server_info", "/v1/models", "/metrics")
        ]
        return json.loads(info.body), json.loads(models.body), metrics.body.decode()

    info, models, metrics = answered(work, "--max_total_token_num", "4096", "--llm_kv_type", "fp8kv_dsa")
    assert (info["llm_kv_type"], info["max_total_token_num"], info["graph_max_len_in_batch"]) == (
        "fp8kv_dsa",
        4096,
        131072,
    )
    assert models["data"][0]["id"] == "glm53"
    assert models["data"][0]["max_model_len"] == 4096 - 36
    assert 'lightllm_request_count_total{model_name="glm53"} 2.0' in metrics
    assert 'lightllm_request_failure_total{model_name="glm53"} 1.0' in metrics
    assert 'lightllm_cache_length_sum{model_name="glm53"} 512.0' in metrics


def test_chosen_health_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEBUG_HEALTHCHECK_RETURN_FAIL", "true")
    response = answered(lambda server: server.send("GET", "/health"))
    assert (response.status, response.body) == (503, b'{"message": "Error"}')
