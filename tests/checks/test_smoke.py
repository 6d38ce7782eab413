"""Probing: what is asked, what is kept, and each kind of answer that no server may give."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.checks import smoke
from harness.checks.base import CheckContext
from harness.checks.probes import PROBES
from harness.checks.smoke import ANSWERS, Smoke, SmokeParams
from harness.codes import Code
from harness.engines import ENGINES
from harness.errors import TargetError
from harness.verdict import Verdict

CHECK = Smoke()
PARAMS = SmokeParams()
LOOP = "and so on and so forth, " * 20
Answers = list[dict[str, Any]]
Damage = Callable[[Answers], Any]


def answers() -> Answers:
    return [
        {
            "kind": probe.kind,
            "name": probe.name,
            "prompt": probe.prompt,
            "stop": list(probe.stop),
            "max_tokens": 256,
            "latency_s": 0.5,
            "text": " a fine answer.",
            "finish_reason": "stop",
            "prompt_tokens": 12,
            "completion_tokens": 4,
        }
        for probe in PROBES
    ]


def write(folder: Path, made: Answers) -> Path:
    (folder / ANSWERS).write_text("".join(json.dumps(one) + "\n" for one in made), encoding="utf-8")
    return folder


def judged(folder: Path, params: SmokeParams = PARAMS) -> tuple[Verdict, set[Code]]:
    result = CHECK.judge(params, folder)
    return result.verdict, {finding.code for finding in result.findings}


def put(**values: Any) -> Damage:
    return lambda made: made[1].update(values)


FAULTS: dict[str, tuple[Damage, Verdict, set[Code]]] = {
    "empty": (put(text=" \n"), Verdict.FAIL, {Code.BAD_ANSWER}),
    "looping": (put(text=LOOP), Verdict.FAIL, {Code.BAD_ANSWER, Code.DEGENERATE}),
    "one character only": (put(text="!" * 200), Verdict.FAIL, {Code.BAD_ANSWER, Code.DEGENERATE}),
    "never stopping": (put(finish_reason="length"), Verdict.FAIL, {Code.STOP_RATE, Code.TRUNCATED}),
    "no tokens, reported as success": (put(completion_tokens=0), Verdict.FAIL, {Code.BAD_ANSWER}),
    "error as HTTP 200": (put(finish_reason="error"), Verdict.FAIL, {Code.BAD_ANSWER}),
    "aborted": (put(finish_reason="abort"), Verdict.FAIL, {Code.BAD_ANSWER}),
    "no finish reason": (put(finish_reason=None), Verdict.INVALID, {Code.EVIDENCE_MISSING}),
    "request failed": (put(error="answered 500"), Verdict.INVALID, {Code.REQUEST_FAILED}),
    "more tokens than allowed": (put(completion_tokens=10**6), Verdict.FAIL, {Code.BAD_ANSWER}),
    "asked twice": (lambda made: made.append(made[1]), Verdict.INVALID, {Code.NOT_EXERCISED}),
    "another limit": (put(max_tokens=9), Verdict.INVALID, {Code.NOT_EXERCISED}),
    "not asked": (lambda made: made.pop(), Verdict.INVALID, {Code.EVIDENCE_MISSING}),
    "nothing asked": (lambda made: made.clear(), Verdict.INVALID, {Code.EVIDENCE_MISSING}),
}


def test_good_answers_pass(tmp_path: Path) -> None:
    result = CHECK.judge(PARAMS, write(tmp_path, answers()))
    assert (result.verdict, result.findings) == (Verdict.PASS, [])
    assert result.metrics["natural_stop_rate"] == 1.0
    assert result.metrics["answered"] == len(PROBES)


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_found(tmp_path: Path, name: str) -> None:
    damage, verdict, codes = FAULTS[name]
    made = answers()
    damage(made)
    assert judged(write(tmp_path, made)) == (verdict, codes)


def test_the_stop_rate_is_the_scenarios(tmp_path: Path) -> None:
    made = answers()
    put(finish_reason="length")(made)
    folder = write(tmp_path, made)
    rate = (len(PROBES) - 1) / len(PROBES)
    assert judged(folder, SmokeParams(min_natural_stop=rate)) == (Verdict.PASS, {Code.TRUNCATED})
    assert judged(folder, SmokeParams(min_natural_stop=rate + 0.01))[0] is Verdict.FAIL


def test_what_is_switched_off_is_not_missed(tmp_path: Path) -> None:
    made = [one for one in answers() if one["kind"] == "completion"]
    assert judged(write(tmp_path, made), SmokeParams(chat=False)) == (Verdict.PASS, set())
    assert CHECK.problems(SmokeParams(chat=False)) == []
    assert CHECK.problems(SmokeParams(chat=False, completions=False)) != []


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"[]\n", b'{"kind": "poem"}\n'])
def test_broken_evidence_is_invalid(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / ANSWERS).write_bytes(content)
    assert judged(tmp_path) == (Verdict.INVALID, {Code.EVIDENCE_MISSING})


def test_a_probe_that_takes_too_long_is_kept_and_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = smoke.ProbeAnswer.model_validate(answers()[0] | {"latency_s": 600.1, "error": "no answer"})
    monkeypatch.setattr(smoke, "_asked", lambda *_: slow)
    context = CheckContext(
        engine=ENGINES["llamacpp"],
        base_url="http://127.0.0.1:9",
        served_name="any",
        folder=tmp_path,
        server_log=tmp_path / "server.log",
        start_command=lambda *_: pytest.fail("no program is started here"),
        progress=lambda *_: None,
    )
    with pytest.raises(TargetError, match="no whole answer to a probe within 600 s") as raised:
        CHECK.collect(PARAMS, context, None)
    assert raised.value.finding().code is Code.STALLED
    assert (tmp_path / ANSWERS).read_text(encoding="utf-8").count("no answer") == 1
