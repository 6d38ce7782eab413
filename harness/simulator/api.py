"""LightLLM's own endpoints, and the table of all."""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from harness.simulator import answers_json, openai_api
from harness.simulator.errors import error_response
from harness.simulator.http import Request, Response
from harness.simulator.log import Log
from harness.simulator.observer import LoggingObserver
from harness.simulator.sampling import Sampling
from harness.simulator.service import Service
from harness.simulator.types import Done

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]
Endpoints: TypeAlias = Mapping[str, Mapping[str, Endpoint]]  # by path and method


class Api:
    """Answers requests. `handle` never raises but for being cancelled."""

    def __init__(
        self,
        service: Service,
        observer: LoggingObserver,
        log: Log,
        model_defaults: Mapping[str, Any],
        own: Endpoints,
    ) -> None:
        """`own`: the endpoints of this run mode, which come before those that all have."""
        self._service = service
        self._observer = observer
        self._log = log
        self._defaults = model_defaults
        self._args = service.args
        self._name = service.planted.to("wrong-model-name", "another-model")
        if "wrong-model-name" not in service.planted:
            self._name = str(service.args["model_name"])
        self._openai = openai_api.OpenAi(service, model_defaults)
        self._table: Endpoints = {**self._endpoints(), **own}

    async def handle(self, request: Request) -> Response:
        methods = self._table.get(request.path)
        if methods is None:
            return Response.of({"detail": "Not Found"}, 404)
        endpoint = methods.get(request.method)
        if endpoint is None:
            return Response.of({"detail": "Method Not Allowed"}, 405)
        try:
            return await endpoint(request)
        except Exception as error:  # noqa: BLE001 - whatever it is, it becomes an answer, as in the real server
            self._log.trace("api_http.py:214", f"An error occurred: {error}", error)
            self._service.metrics.failure += 1
            return error_response(error, openai=request.path.startswith("/v1/"))

    def _endpoints(self) -> Endpoints:
        def both(endpoint: Endpoint) -> dict[str, Endpoint]:
            return {"GET": endpoint, "POST": endpoint}

        return {
            "/readiness": both(self._alive),
            "/liveness": both(self._alive),
            "/get_server_info": both(self._server_info),
            "/get_model_name": both(self._model_name),
            "/v1/models": {"GET": self._models},
            "/metrics": {"GET": self._metrics},
            "/tokens": both(self._tokens),
            "/generate": {"POST": self._generate},
            "/generate_stream": {"POST": self._generate_stream},
            "/": {"POST": self._either},
            "/v1/completions": {"POST": self._openai.completions},
            "/v1/chat/completions": {"POST": self._openai.chat},
            "/profiler_start": both(self._no_profiler),
            "/profiler_stop": both(self._no_profiler),
        }

    async def _alive(self, _: Request) -> Response:
        return Response.of({"status": "ok"})

    async def _server_info(self, _: Request) -> Response:
        return Response.of(dict(self._args))

    async def _model_name(self, _: Request) -> Response:
        return Response.of({"model_name": self._name})

    async def _models(self, _: Request) -> Response:
        card = {
            "id": self._name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": self._args["model_owner"] or "lightllm",
            "max_model_len": self._service.longest,
        }
        return Response.of({"object": "list", "data": [card]})

    async def _metrics(self, _: Request) -> Response:
        return Response.text(self._service.metrics.text(self._name, self._observer))

    async def _tokens(self, request: Request) -> Response:
        try:
            body = request.json()
            text, parameters = body["text"], body.get("parameters") or {}
            sampling = Sampling.of(parameters, self._defaults)
            count = self._service.count(text, add_special_tokens=sampling.add_special_tokens)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return error_response(RuntimeError(f"error: {error}"), openai=False)
        return Response.of({"ntokens": count})

    async def _either(self, request: Request) -> Response:
        stream = bool(request.json().get("stream", False))
        return await (self._generate_stream(request) if stream else self._generate(request))

    async def _generate(self, request: Request) -> Response:
        prompt, sampling, details = self._read(request)
        group, answers = await self._service.complete(prompt, sampling, request.headers)
        return Response.of(
            answers_json.generation(group, answers, details=details, mtp_step=self._args["mtp_step"])
        )

    async def _generate_stream(self, request: Request) -> Response:
        prompt, sampling, _ = self._read(request)
        if sampling.n != 1:
            raise RuntimeError("stream api only support best_of == 1")
        group, items = await self._service.stream(prompt, sampling, request.headers)

        async def events() -> AsyncGenerator[bytes, None]:
            held = None
            async for item in items:
                if held is not None:
                    yield answers_json.generation_event(group, held, item if isinstance(item, Done) else None)
                held = item

        return Response.events(events())

    def _read(self, request: Request) -> tuple[str | list[int], Sampling, bool]:
        body = request.json()
        prompt, parameters = body["inputs"], dict(body["parameters"])
        details = bool(parameters.pop("return_details", False))
        return prompt, Sampling.of(parameters, self._defaults), details

    async def _no_profiler(self, _: Request) -> Response:
        return error_response(
            ValueError("profiling is not enabled, start with --enable_profiling"), openai=False
        )
