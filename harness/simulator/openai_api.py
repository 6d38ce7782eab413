"""`/v1/completions` and `/v1/chat/completions`."""

import asyncio
import json
import time
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from harness.simulator.answer import Answer
from harness.simulator.answers_json import completion_logprobs, usage
from harness.simulator.http import Request, Response
from harness.simulator.sampling import Sampling
from harness.simulator.service import Service
from harness.simulator.types import Done

DEFAULT_NEW_TOKENS = 65536


class _Common(BaseModel):
    model_config = ConfigDict(extra="ignore")

    model: str
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    n: int = 1
    best_of: int | None = None
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    stop: str | list[str] | None = None
    max_tokens: int = DEFAULT_NEW_TOKENS
    max_completion_tokens: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    do_sample: bool = True
    ignore_eos: bool = False
    logit_bias: dict[str, float] | None = None

    def sampling(self, defaults: Mapping[str, Any]) -> Sampling:
        """Raises ValueError."""
        if self.logit_bias:
            raise ValueError("logit_bias is not supported")
        given: dict[str, Any] = {
            "max_new_tokens": self.max_completion_tokens or self.max_tokens,
            "stop_sequences": self.stop,
            "add_special_tokens": False,
            "n": self.n,
            "best_of": self.best_of if self.best_of is not None else self.n,
        }
        same = (
            "temperature",
            "top_p",
            "top_k",
            "presence_penalty",
            "frequency_penalty",
            "repetition_penalty",
        )
        given.update({name: getattr(self, name) for name in same if name in self.model_fields_set})
        given.update({name: getattr(self, name) for name in ("seed", "do_sample", "ignore_eos")})
        return Sampling.of(given, defaults)

    @property
    def wants_usage(self) -> bool:
        return bool((self.stream_options or {}).get("include_usage"))


class _Completion(_Common):
    prompt: str | list[str] | list[int] | list[list[int]]
    logprobs: int | None = None
    echo: bool = False
    suffix: str | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """Raises ValueError for an empty list."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if not self.prompt:
            raise ValueError("prompt is empty")
        if isinstance(self.prompt[0], int):
            return [[one for one in self.prompt if isinstance(one, int)]]
        return [one for one in self.prompt if not isinstance(one, int)]


class _Message(BaseModel):
    model_config = ConfigDict(extra="ignore")

    role: str
    content: str | list[dict[str, Any]] | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, str) or self.content is None:
            return self.content or ""
        return "".join(str(part.get("text", "")) for part in self.content)


class _Chat(_Common):
    messages: list[_Message]


class OpenAi:
    """Both endpoints. Raises what `errors.error_response` turns into an answer."""

    def __init__(self, service: Service, model_defaults: Mapping[str, Any]) -> None:
        self._service = service
        self._defaults = model_defaults

    async def completions(self, request: Request) -> Response:
        asked = _Completion.model_validate(request.json())
        if asked.suffix:
            raise ValueError("suffix is not supported")
        prompts, sampling = asked.prompts, asked.sampling(self._defaults)
        if asked.stream:
            if len(prompts) != 1 or sampling.n != 1:
                raise ValueError("stream is not supported for a batch of prompts")
            return await self._stream(prompts[0], sampling, request, asked, "text_completion")
        # One that fails fails them all, and the others generate on unattended, as in the real server.
        served = await asyncio.gather(
            *(self._service.complete(prompt, sampling, request.headers) for prompt in prompts)
        )
        choices: list[dict[str, Any]] = []
        for prompt, (_, answers) in zip(prompts, served, strict=True):
            front = prompt if asked.echo and isinstance(prompt, str) else ""
            for answer in answers:
                choices.append(
                    {
                        "text": None if answer.text is None else front + answer.text,
                        "index": len(choices),
                        "logprobs": completion_logprobs(answer.tokens) if asked.logprobs else None,
                        "finish_reason": answer.done.reason,
                    }
                )
        counts = usage([len(group.prompt) for group, _ in served], _flat([answers for _, answers in served]))
        return Response.of({**_head(asked.model, "text_completion"), "choices": choices, "usage": counts})

    async def chat(self, request: Request) -> Response:
        asked = _Chat.model_validate(request.json())
        if not asked.messages:
            raise ValueError("messages is empty")
        prompt, sampling = chat_prompt(asked.messages), asked.sampling(self._defaults)
        if asked.stream:
            if sampling.n != 1:
                raise ValueError("stream is not supported for n > 1")
            return await self._stream(prompt, sampling, request, asked, "chat.completion.chunk")
        group, answers = await self._service.complete(prompt, sampling, request.headers)
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": answer.text},
                "logprobs": None,
                "finish_reason": answer.done.reason,
            }
            for index, answer in enumerate(answers)
        ]
        counts = usage([len(group.prompt)], answers)
        return Response.of({**_head(asked.model, "chat.completion"), "choices": choices, "usage": counts})

    async def _stream(
        self, prompt: str | list[int], sampling: Sampling, request: Request, asked: _Common, kind: str
    ) -> Response:
        group, items = await self._service.stream(prompt, sampling, request.headers)
        head = _head(asked.model, kind)

        async def events() -> AsyncGenerator[bytes, None]:
            if kind != "text_completion":
                yield _event({**head, "choices": [_piece(kind, {"role": "assistant", "content": ""}, None)]})
            async for item in items:
                if isinstance(item, Done):
                    last = Answer((), item, "")
                    yield _event({**head, "choices": [_piece(kind, "", item.reason)]})
                    if asked.wants_usage:
                        yield _event({**head, "choices": [], "usage": usage([len(group.prompt)], [last])})
                elif item.text:
                    yield _event({**head, "choices": [_piece(kind, item.text, None)]})
            yield b"data: [DONE]\n\n"

        return Response.events(events())


def chat_prompt(messages: Sequence[_Message]) -> str:
    """A chat template of the simulator's own."""
    turns = "".join(f"<|{message.role}|>\n{message.text}\n" for message in messages)
    return f"{turns}<|assistant|>\n"


def _piece(kind: str, content: str | dict[str, Any], reason: str | None) -> dict[str, Any]:
    if kind == "text_completion":
        return {"index": 0, "text": content, "logprobs": None, "finish_reason": reason}
    delta = content if isinstance(content, dict) else {"content": content} if content else {}
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}


def _head(model: str, kind: str) -> dict[str, Any]:
    front = "cmpl" if kind == "text_completion" else "chatcmpl"
    return {"id": f"{front}-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": model}


def _event(body: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n".encode()


def _flat(lists: Sequence[Sequence[Answer]]) -> list[Answer]:
    return [answer for answers in lists for answer in answers]
