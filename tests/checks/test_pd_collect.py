"""`pd-parity` collects through the harness's own router from two nodes that speak vLLM's dialect."""

import json
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harness.checks import CHECKS
from harness.checks.base import CheckContext, ServerView
from harness.checks.exchange import load_evidence
from harness.checks.pd_parity import PdParity, PdParityParams
from harness.checks.pd_transfers import load_moved
from harness.codes import Code
from harness.engines.vllm.adapter import Vllm
from harness.engines.vllm.router import VllmRouter
from harness.evidence.record import CheckResult
from harness.verdict import Verdict
from tests.checks.evidence_files import Story, exchange
from tests.engines.test_vllm_pd import routed
from tests.servers.scripted import Received, Scripted, answer

pytestmark = pytest.mark.process
CHECK = PdParity()
CONFIG = {"dtype": "float32", "kv_dtype": "float32", "cache_config.block_size": 32}


@dataclass
class Node:
    """Answers with tokens made of the prompt. `moving`: KV comes to it from elsewhere, and is counted."""

    moving: bool = True
    shift: int = 0
    hits: int = 0
    seen: set[tuple[int, ...]] = field(default_factory=set)

    def __call__(self, request: Received) -> Iterator[bytes]:
        path = request.line.split()[1]
        if path == "/metrics":
            kind = "# TYPE vllm:external_prefix_cache_hits_total counter\n"
            yield answer(f"{kind}vllm:external_prefix_cache_hits_total {self.hits}\n".encode())
        elif path == "/tokenize":
            words = json.loads(request.body)["prompt"].split()
            yield answer(
                json.dumps({"tokens": [zlib.crc32(word.encode()) % 5000 for word in words]}).encode()
            )
        elif path == "/v1/completions":
            yield answer(json.dumps(self._complete(json.loads(request.body))).encode())
        else:
            yield answer(b"{}")

    def _complete(self, asked: Any) -> Any:
        prompt = tuple(asked["prompt"])
        ids = [(sum(prompt) + self.shift + n) % 5000 for n in range(asked["max_tokens"])]
        cached = len(prompt) - 1 if prompt in self.seen else 0
        self.seen.add(prompt)
        self.hits += (len(prompt) - 1) * self.moving
        usage = {
            "prompt_tokens": len(prompt),
            "completion_tokens": len(ids),
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        choice = {"text": "x", "token_ids": ids, "finish_reason": "length", "logprobs": None}
        return {"choices": [choice], "usage": usage}


@contextmanager
def lane(folder: Path, decode: Node, **config: Any) -> Iterator[CheckContext]:
    """The context of a check in such a lane; keywords are laid over the decode node's configuration."""
    with ExitStack() as stack:
        prefill = stack.enter_context(Scripted(Node(moving=False)))
        second = stack.enter_context(Scripted(decode))
        router = stack.enter_context(routed(prefill.url, second.url))
        log = folder / "server.log"
        log.touch()
        node, front = Vllm(), VllmRouter()

        def view(role: str, url: str, engine: Vllm, told: dict[str, Any]) -> ServerView:
            return ServerView(role=role, engine=engine, base_url=url, log=log, config=told, version="1")

        check = folder / "pd" / "pd-parity"
        check.mkdir(parents=True)
        yield CheckContext(
            engine=front,
            base_url=router,
            served_name="smol",
            folder=check,
            server_log=log,
            start_command=lambda *_: pytest.fail("nothing is started"),
            progress=lambda *_: None,
            servers=(
                view("prefill", prefill.url, node, CONFIG),
                view("decode", second.url, node, {**CONFIG, **config}),
                view("router", router, front, {}),
            ),
        )


def checked(folder: Path, params: PdParityParams, decode: Node, **config: Any) -> CheckResult:
    with lane(folder, decode, **config) as context:
        CHECK.collect(params, context, None)
    return CHECK.judge(params, folder / "pd" / "pd-parity")


def codes(result: CheckResult) -> set[Code]:
    return {finding.code for finding in result.findings}


ALONE = PdParityParams(lengths=(20, 33), output_tokens=4, request_s=20)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.checks.pd_parity.IDLE_S", 0.01)
    monkeypatch.setattr("harness.checks.pd_transfers.POLL_S", 0.01)
    monkeypatch.setattr("harness.checks.pd_transfers.SETTLE_S", 0.5)
    monkeypatch.setattr("harness.checks.asking.QUIET_S", 0.01)


def test_every_cold_request_is_proved(tmp_path: Path) -> None:
    result = checked(tmp_path, ALONE, Node())
    assert (result.verdict, result.findings) == (Verdict.REPORTED, [])
    assert result.metrics["moved_tokens"] == 19 + 32
    evidence = load_evidence(tmp_path / "pd" / "pd-parity")
    assert list(evidence.leg("cold")) == list(evidence.leg("warm")) == ["20", "33"]
    assert evidence.leg("warm")["33"].cached.total == 32, "the prefill node's word, not the decode node's"


def test_decode_computes_the_prompt_itself(tmp_path: Path) -> None:
    """Right answers, green health, and nothing was moved."""
    result = checked(tmp_path, ALONE, Node(moving=False))
    assert (result.verdict, codes(result)) == (Verdict.INVALID, {Code.NOT_EXERCISED})


def test_nodes_that_differ(tmp_path: Path) -> None:
    result = checked(tmp_path, ALONE, Node(), kv_dtype="fp8")
    assert (result.verdict, codes(result)) == (Verdict.INVALID, {Code.PD_MISMATCH})


def test_a_node_that_counts_while_idle(tmp_path: Path) -> None:
    class Restless(Node):
        def __call__(self, request: Received) -> Iterator[bytes]:
            self.hits += 1
            yield from super().__call__(request)

    assert Code.CONTROL_FAILED in codes(checked(tmp_path, ALONE, Restless()))


@pytest.mark.parametrize(
    ("shift", "verdict", "found"),
    [(0, Verdict.PASS, set()), (1, Verdict.FAIL, {Code.OUTPUT_DIFFERS})],
)
def test_the_prompts_and_answers_of_a_reference(
    tmp_path: Path, shift: int, verdict: Verdict, found: set[Code]
) -> None:
    prompt = [5, 6, 7, 8]
    made = {"prompt": prompt, "asked_tokens": 4, "prompt_tokens": 4, "ids": [26, 27], "max_tokens": 2}
    reference = Story([exchange(leg, "4", **made) for leg in ("cold", "control")])
    folder = reference.write(tmp_path / "one" / "cache-boundary")
    facts = {"log": {}, "config": {"normal": CONFIG}, "notes": {}}
    (folder / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
    result = checked(tmp_path, PdParityParams(reference="one/cache-boundary"), Node(shift=shift))
    assert (result.verdict, codes(result)) == (verdict, found)
    asked = load_evidence(tmp_path / "pd" / "pd-parity").leg("cold")["4"]
    assert (asked.prompt, asked.max_tokens) == (prompt, 2)
    assert [line.leg for line in load_moved(tmp_path / "pd" / "pd-parity")][::2] == ["idle", "cold", "warm"]


@pytest.mark.parametrize("kind", ["cache-boundary", "accept-length"])
def test_behind_a_router_the_prefill_node_s_cache_is_the_one_that_is_met(tmp_path: Path, kind: str) -> None:
    """A router has no configuration to compute from."""
    check = CHECKS[kind]
    small = {"lengths": (40, 65)} if kind == "cache-boundary" else {"prompts": 1, "prompt_tokens": 65}
    params = check.params.model_validate({**small, "output_tokens": 4})
    with lane(tmp_path, Node()) as context:
        check.collect(params, context, None)
        notes = load_evidence(context.folder).facts.notes
    expected = {"40": 32, "65": 64} if kind == "cache-boundary" else {"expected_warm": 64}
    assert {name: notes[name] for name in expected} == expected
