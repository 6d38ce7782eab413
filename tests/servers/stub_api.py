"""The stub's HTTP interface: the paths of llama.cpp's server, and the faults that show in its answers."""

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.servers import stub_shapes
from tests.servers.stub_faults import Faults
from tests.servers.stub_http import Request, Response, error_response, json_response
from tests.servers.stub_log import Log
from tests.servers.stub_model import VOCABULARY, Generated, Model, decode, encode

GARBAGE = b'{"id": "chatcmpl-0", "choices": [{"index": 0, "te'
Shape = Callable[[str, Mapping[str, Any], stub_shapes.Placed], Response]


class Api:
    """Answers 503 until `ready` is set."""

    def __init__(self, flags: dict[str, str], faults: Faults, model: Model, log: Log, slots: int) -> None:
        self._flags = flags
        self._faults = faults
        self._model = model
        self._log = log
        self._slots = slots
        self._name = flags.get("--alias", Path(flags["--model"]).name)
        if "wrong-model" in faults:
            self._name = "somebody-elses-model"
        context = int(flags.get("--ctx-size", 4096))
        self.slot_context = context // slots if "--parallel" in flags else context
        self._lock = threading.Lock()
        self._tasks = itertools.count()
        self._answered = 0
        self._totals = dict.fromkeys(("prompt", "cached", "predicted", "longest"), 0)
        self.ready = False
        self._routes: dict[tuple[str, str], Callable[[Request], Response]] = {
            ("GET", "/health"): lambda request: json_response({"status": "ok"}),
            ("GET", "/models"): lambda request: json_response(self._models()),
            ("GET", "/props"): lambda request: json_response(self._props()),
            ("GET", "/slots"): lambda request: self._slot_states(),
            ("GET", "/metrics"): lambda request: self._metrics(),
            ("POST", "/tokenize"): _tokenize,
            ("POST", "/detokenize"): _detokenize,
            ("POST", "/completion"): lambda request: self._generation(request.json(), stub_shapes.native),
            ("POST", "/v1/completions"): lambda request: self._generation(
                request.json(), stub_shapes.completions
            ),
            ("POST", "/chat/completions"): lambda request: self._generation(
                _from_messages(request.json()), stub_shapes.chat
            ),
        }
        for method, path, other in (
            ("POST", "/completion", "/completions"),
            ("POST", "/chat/completions", "/v1/chat/completions"),
            ("GET", "/models", "/v1/models"),
            ("GET", "/health", "/v1/health"),
        ):
            self._routes[method, other] = self._routes[method, path]

    def handle(self, request: Request) -> Response:
        if not self.ready:
            return error_response(503, "Loading model")
        method = "GET" if request.method == "HEAD" else request.method
        route = self._routes.get((method, request.path))
        if route is None:
            return error_response(404, "File Not Found")
        try:
            response = route(request)
        except ValueError as error:
            return error_response(400, f"[json.exception.parse_error.101] {error}")
        except KeyError as error:
            return error_response(400, f"[json.exception.out_of_range.403] key {error} not found")
        if "garbage-json" in self._faults and request.path != "/health":
            return Response(response.status, GARBAGE)
        return response

    def _generation(self, settings: dict[str, Any], shape: Shape) -> Response:
        prompts = _prompts(settings["prompt"])
        self._live_or_not(len(prompts))
        if "slow-answers" in self._faults:
            time.sleep(self._faults.number("slow-answers", 1.0))
        asked = {place: text for place, text in enumerate(map(_text, prompts)) if self._model.is_asked(text)}
        failing = [
            self._faults.hits("error-share", text) or self._faults.hits_once("error-once-share", text)
            for text in asked.values()
        ]
        if any(failing) or "warmup-fails" in self._faults:
            return error_response(500, "Compute error.")
        choices = int(settings.get("n") or 1)
        limit = _limit(settings)
        results = [
            self._model.generate(prompt, settings, limit) for prompt in prompts for _ in range(choices)
        ]
        self._count(results, len(prompts))
        if "swap-answers" in self._faults:
            results = results[1:] + results[:1]
        dropped = {place for place, text in asked.items() if self._faults.hits("drop-choice", text)}
        placed = [(index, result) for index, result in enumerate(results) if index // choices not in dropped]
        return shape(self._name, settings, placed)

    def _live_or_not(self, more: int) -> None:
        """Die or hang where that is planted, before the prompt that would be one too many."""
        with self._lock:
            after = self._answered + more
        if after > self._faults.number("die-after"):
            os.kill(os.getpid(), signal.SIGKILL)
        if after > self._faults.number("hang-after"):
            threading.Event().wait()

    def _count(self, results: list[Generated], prompts: int) -> None:
        with self._lock:
            self._answered += prompts
            for result in results:
                self._totals["prompt"] += len(result.prompt_ids) - result.cached
                self._totals["cached"] += result.cached
                self._totals["predicted"] += len(result.ids)
                longest = max(self._totals["longest"], len(result.prompt_ids) + len(result.ids))
                self._totals["longest"] = longest
                self._log.request(next(self._tasks), len(result.prompt_ids), result.cached, len(result.ids))

    def _models(self) -> dict[str, Any]:
        meta = {
            "vocab_type": 2,
            "n_vocab": VOCABULARY,
            "n_ctx": self.slot_context,
            "n_ctx_train": 8192,
            "n_embd": 576,
            "n_params": 134515008,
            "size": 96576768,
            "ftype": "Q4_1",
        }
        entry = {
            "id": self._name,
            "aliases": [self._name],
            "tags": [],
            "object": "model",
            "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
            "created": int(time.time()),
            "owned_by": "llamacpp",
            "meta": meta,
        }
        old = {"name": self._name, "model": self._name, "type": "model", "capabilities": ["completion"]}
        return {"models": [old], "object": "list", "data": [entry]}

    def _props(self) -> dict[str, Any]:
        return {
            "default_generation_settings": {"params": stub_shapes.SAMPLING, "n_ctx": self.slot_context},
            "total_slots": self._slots,
            "model_alias": self._name,
            "model_ftype": "Q4_1",
            "model_path": self._flags["--model"],
            "modalities": {"vision": False, "video": False, "audio": False},
            "endpoint_slots": "--no-slots" not in self._flags,
            "endpoint_props": "--props" in self._flags,
            "endpoint_metrics": "--metrics" in self._flags,
            "chat_template": "{% for message in messages %}{{ message['content'] }}{% endfor %}",
            "chat_template_caps": {"supports_string_content": True, "supports_system_role": True},
            "bos_token": "<|im_start|>",
            "eos_token": "<|im_end|>",
            "build_info": "b0-unknown",
            "is_sleeping": False,
        }

    def _slot_states(self) -> Response:
        if "--no-slots" in self._flags:
            return _switched_off("slots")
        state = {"n_ctx": self.slot_context, "speculative": False, "is_processing": False}
        return json_response([{"id": number, **state} for number in range(self._slots)])

    def _metrics(self) -> Response:
        if "--metrics" not in self._flags:
            return _switched_off("metrics")
        values = {
            "prompt_tokens_total": self._totals["prompt"],
            "prompt_tokens_cached_total": self._totals["cached"],
            "prompt_seconds_total": self._totals["prompt"] / 10000,
            "tokens_predicted_total": self._totals["predicted"],
            "tokens_predicted_seconds_total": self._totals["predicted"] / 10000,
            "n_decode_total": self._totals["predicted"],
            "n_tokens_max": self._totals["longest"],
            "spec_decode_num_draft_tokens_total": 0,
            "spec_decode_num_accepted_tokens_total": 0,
            "spec_decode_num_drafts_total": 0,
            "prompt_tokens_seconds": 10000,
            "predicted_tokens_seconds": 10000,
            "requests_processing": 0,
            "requests_deferred": 0,
            "n_busy_slots_per_decode": 0,
        }
        gauges = list(values)[-5:]
        lines = (
            f"# TYPE llamacpp:{name} {'gauge' if name in gauges else 'counter'}\nllamacpp:{name} {value}\n"
            for name, value in values.items()
        )
        return Response(200, "".join(lines).encode(), "text/plain; version=0.0.4")


def _switched_off(name: str) -> Response:
    return error_response(501, f"This server does not support {name} endpoint. Start it with `--{name}`")


def _tokenize(request: Request) -> Response:
    body = request.json()
    ids = encode(str(body["content"]))
    if not body.get("with_pieces"):
        return json_response({"tokens": ids})
    return json_response({"tokens": [{"id": number, "piece": _text([number])} for number in ids]})


def _detokenize(request: Request) -> Response:
    return json_response({"content": _text(request.json()["tokens"])})


def _text(prompt: str | list[int]) -> str:
    return prompt if isinstance(prompt, str) else decode(prompt).decode("utf-8", "replace")


def _prompts(value: Any) -> list[str | list[int]]:
    """A text, token ids, or a list of either."""
    if isinstance(value, list) and not any(isinstance(item, int) for item in value):
        return value
    return [value]


def _limit(settings: Mapping[str, Any]) -> int:
    """Most tokens to generate, below 0 for no limit."""
    wanted = (settings.get(name) for name in ("n_predict", "max_tokens", "max_completion_tokens"))
    return next((int(number) for number in wanted if number is not None), -1)


def _from_messages(settings: dict[str, Any]) -> dict[str, Any]:
    turns = (f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>\n" for turn in settings["messages"])
    return {**settings, "prompt": "".join(turns) + "<|im_start|>assistant\n"}
