"""The shapes of generations: LightLLM's own and the OpenAI ones."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from harness.simulator.answer import Answer
from harness.simulator.types import Done, Token

if TYPE_CHECKING:
    from harness.simulator.service import Group


def generation(group: "Group", answers: Sequence[Answer], *, details: bool, mtp_step: int) -> dict[str, Any]:
    """`POST /generate`: lists over the sequences, and the bare value where there is only one; the text is
    always a list. `mtp_step` is the number of drafted tokens per step."""

    def each(values: list[Any]) -> Any:
        return values[0] if len(values) == 1 else values

    length = len(group.prompt)
    body: dict[str, Any] = {
        "generated_text": [answer.text for answer in answers],
        "count_output_tokens": each([answer.done.generated for answer in answers]),
        "finish_reason": each([answer.done.reason for answer in answers]),
        "prompt_tokens": length,
        "logprobs": each([[_logprob(token) for token in answer.tokens] for answer in answers]),
        "input_usage": input_usage(answers, length),
    }
    if details:
        body["tokens"] = each([_tokens(answer.tokens, length, mtp_step) for answer in answers])
    return body


def generation_event(group: "Group", token: Token | Done, done: Done | None) -> bytes:
    """One event of `/generate_stream`; `done` with the last token."""
    assert isinstance(token, Token)
    length = len(group.prompt)
    body = {
        "token": {
            "id": token.id,
            "text": token.text,
            "logprob": token.logprob,
            "special": token.special,
            "count_output_tokens": token.index,
            "prompt_tokens": length,
            "logprobs": _logprob(token),
        },
        "generated_text": None,
        "finished": done is not None,
        "finish_reason": done.reason if done else None,
        "details": None,
        "input_usage": None,
    }
    return f"data:{json.dumps(body, ensure_ascii=False)}\n\n".encode()


def input_usage(answers: Sequence[Answer], length: int) -> dict[str, Any]:
    return {"prompt_tokens": length, "cached_tokens": _cached(answers[0])}


def usage(lengths: Sequence[int], answers: Sequence[Answer]) -> dict[str, Any]:
    """OpenAI's, summed over all prompts and sequences."""
    prompt, out = sum(lengths), sum(answer.done.generated for answer in answers)
    cached = sum(_cached(answer) for answer in answers)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": out,
        "total_tokens": prompt + out,
        "prompt_tokens_details": {"cached_tokens": cached, "audio_tokens": 0},
    }


def completion_logprobs(tokens: Sequence[Token]) -> dict[str, Any]:
    offsets, at = [], 0
    for token in tokens:
        offsets.append(at)
        at += len(token.text)
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [{token.text: token.logprob} for token in tokens],
        "text_offset": offsets,
    }


def _cached(answer: Answer) -> int:
    return answer.done.gpu_cached + answer.done.cpu_cached + answer.done.disk_cached


def _logprob(token: Token) -> dict[str, Any]:
    return {str(token.id): {"logprob": token.logprob, "rank": 1, "decoded_token": token.text}}


def _tokens(tokens: Sequence[Token], prompt_tokens: int, mtp_step: int) -> list[dict[str, Any]]:
    total = 0.0
    shown = []
    for token in tokens:
        total += token.logprob
        steps = token.mtp_verified // mtp_step if mtp_step else 0
        shown.append(
            {
                "id": token.id,
                "logprob": token.logprob,
                "cumlogprob": total,
                "special": token.special,
                "count_output_tokens": token.index,
                "prompt_cache_len": token.prompt_cached,
                "mtp_accepted_token_num": token.mtp_accepted,
                "mtp_verify_token_num": token.mtp_verified + steps,  # each step verifies its own token too
                "mtp_verify_step_num": steps,
                "prompt_tokens": prompt_tokens,
                "text": token.text,
            }
        )
    return shown
