"""Every finding of `pause-resume`, planted once in hand-made evidence, and the words it is told in."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.checks import CHECKS
from harness.checks.base import CheckContext
from harness.checks.exchange import EXCHANGES, FACTS, MARKS, SKIPPED, Facts
from harness.checks.pause_proof import SERIAL, STRESS
from harness.checks.pause_resume import SHORT, PauseResume, PauseResumeParams
from harness.engines import ENGINES
from harness.engines.base import AcceptCounters, CachedTokens
from harness.evidence.record import CheckResult
from harness.findings import Code
from harness.scenario.model import Pair
from harness.verdict import Verdict
from tests.checks.pause_evidence import CONTROL_PARAMS, PARAMS, ROLE, Evidence, counting, lightllm

OTHER = [1, 2, 3, 4, 5, 6]
Spoil = Callable[[Evidence, Evidence], object]


def judged(
    root: Path, made: Evidence, control: Evidence | None = None, params: PauseResumeParams = PARAMS
) -> CheckResult:
    (control or lightllm(paused=False)).write(root / "large" / "pause-resume")
    return PauseResume().judge(params, made.write(root / "small" / "pause-resume"))


def alone(root: Path, made: Evidence) -> CheckResult:
    """As the control lane is judged."""
    return PauseResume().judge(CONTROL_PARAMS, made.write(root / "large" / "pause-resume"))


def codes(result: CheckResult) -> set[Code]:
    return {finding.code for finding in result.findings}


def resize(made: Evidence, prompt: int = 10, output: int = 6) -> None:
    """All of the long requests are shorter, and their answers say so."""
    for exchange in [one for one in made.exchanges if one.leg != SHORT]:
        made.change(
            exchange.leg,
            exchange.case,
            prompt=exchange.prompt[:prompt],
            asked_tokens=prompt,
            prompt_tokens=prompt,
            max_tokens=output,
            completion_tokens=output,
            ids=exchange.ids[:output],
        )


def remove(made: Evidence, *cases: str) -> None:
    """Fewer requests than the parameters say, in every leg."""
    made.exchanges = [one for one in made.exchanges if one.leg == SHORT or one.case not in cases]


def test_paused_and_resumed(tmp_path: Path) -> None:
    result = judged(tmp_path, lightllm())
    assert (result.verdict, result.findings) == (Verdict.PASS, [])
    assert result.metrics == {
        "pauses": 3,
        "requests_paused": 2,
        "kv_tokens": 40,
        "tokens_needed": 64,
        "output_estimate": 3,
        "short_requests": 1,
        "accept_alone": None,
        "accept_together": None,
        "logprob_drift": 0,
    }


def test_a_control_that_never_paused(tmp_path: Path) -> None:
    result = alone(tmp_path, lightllm(paused=False))
    assert (result.verdict, result.findings) == (Verdict.PASS, [])


@pytest.mark.parametrize(
    ("spoil", "code", "verdict"),
    [
        # what was not exercised
        (lambda it, _: it.never_paused(), Code.NOT_EXERCISED, Verdict.INVALID),
        (lambda it, _: it.change(STRESS, "0", prompt_tokens=11), Code.NOT_EXERCISED, Verdict.INVALID),
        (lambda it, _: it.log("1", paused=(120,), recovered=(119,)), Code.NOT_EXERCISED, Verdict.INVALID),
        (lambda it, _: it.log("1", paused=(), recovered=(130,)), Code.NOT_EXERCISED, Verdict.INVALID),
        (lambda it, _: it.log("1", paused=(120, 125), recovered=(130,)), Code.NOT_EXERCISED, Verdict.INVALID),
        (lambda it, _: it.log("1", paused=(120,), recovered=()), Code.NOT_EXERCISED, Verdict.INVALID),
        (lambda it, _: setattr(it, "pool_lost", None), Code.NOT_EXERCISED, Verdict.INVALID),
        # lost, shortened, changed, leaked
        (
            lambda it, _: it.change(STRESS, "1", error="no answer", ids=[], completion_tokens=0),
            Code.REQUEST_FAILED,
            Verdict.INVALID,
        ),
        (
            lambda it, _: (
                it.log("1", paused=(120,), recovered=()),
                it.change(STRESS, "1", error="no answer", ids=[], completion_tokens=0),
            ),
            Code.OUTPUT_COUNT,
            Verdict.FAIL,
        ),
        (
            lambda it, _: it.change(
                STRESS, "1", finish_reason="abort", completion_tokens=3, ids=[10, 11, 12]
            ),
            Code.BAD_ANSWER,
            Verdict.FAIL,
        ),
        (
            lambda it, _: it.change(STRESS, "1", completion_tokens=5, ids=[10, 11, 12, 13, 14]),
            Code.OUTPUT_COUNT,
            Verdict.FAIL,
        ),
        (lambda it, _: it.change(SHORT, "0", completion_tokens=5), Code.OUTPUT_COUNT, Verdict.FAIL),
        (lambda it, _: it.change(STRESS, "1", ids=OTHER), Code.OUTPUT_DIFFERS, Verdict.FAIL),
        (
            lambda it, control: (it.change(STRESS, "1", ids=OTHER), control.change(STRESS, "1", ids=OTHER)),
            Code.OUTPUT_UNSTABLE,
            Verdict.INCONCLUSIVE,
        ),
        # what moves numbers in one request of the control may move them in any
        (
            lambda it, control: (it.change(STRESS, "1", ids=OTHER), control.change(STRESS, "3", ids=OTHER)),
            Code.OUTPUT_UNSTABLE,
            Verdict.INCONCLUSIVE,
        ),
        (
            lambda it, _: it.change(STRESS, "1", logprobs=[-0.5] * 5 + [-1.5]),
            Code.LOGPROB_DRIFT,
            Verdict.INCONCLUSIVE,
        ),
        (
            lambda it, _: (
                it.change_all(SERIAL, accept=AcceptCounters(accepted=140, steps=100)),
                it.change_all(STRESS, accept=AcceptCounters(accepted=0, steps=100)),
            ),
            Code.ACCEPT_COLLAPSE,
            Verdict.FAIL,
        ),
        (lambda it, _: setattr(it, "pool_lost", 16), Code.POOL_LEAK, Verdict.FAIL),
        # references and controls that are none
        (
            lambda it, _: it.change(SERIAL, "1", cached=CachedTokens(total=8)),
            Code.CONTROL_FAILED,
            Verdict.INVALID,
        ),
        (
            lambda _, control: control.log("2", paused=(120,), recovered=(130,)),
            Code.REFERENCE_UNFIT,
            Verdict.INVALID,
        ),
        (
            lambda _, control: control.change(STRESS, "2", prompt=list(range(70, 80))),
            Code.REFERENCE_UNFIT,
            Verdict.INVALID,
        ),
        (lambda _, control: control.change(STRESS, "2", max_tokens=7), Code.REFERENCE_UNFIT, Verdict.INVALID),
        (lambda _, control: control.exchanges.pop(4), Code.REFERENCE_UNFIT, Verdict.INVALID),
        (lambda _, control: control.notes.update(role=None), Code.REFERENCE_UNFIT, Verdict.INVALID),
        (lambda _, control: control.change(STRESS, "2", error="gone"), Code.REFERENCE_UNFIT, Verdict.INVALID),
        (
            lambda _, control: control.change(STRESS, "2", started_s=9.0),
            Code.REFERENCE_UNFIT,
            Verdict.INVALID,
        ),
        (lambda _, control: control.change_all(SERIAL, ids=OTHER[:5]), Code.REFERENCE_UNFIT, Verdict.INVALID),
        # a broken control hides no fault of another request
        (
            lambda it, control: (
                it.change(STRESS, "1", ids=OTHER),
                control.change(STRESS, "0", completion_tokens=5, ids=[0, 1, 2, 3, 4]),
            ),
            Code.OUTPUT_DIFFERS,
            Verdict.FAIL,
        ),
        # nor does a reference that was spoilt after the pauses: by the control's own, the load is steady
        (lambda it, _: it.change(SERIAL, "1", ids=OTHER), Code.OUTPUT_DIFFERS, Verdict.FAIL),
        (
            lambda it, control: (
                it.change(STRESS, "1", ids=OTHER),
                it.change(SERIAL, "1", ids=OTHER[::-1]),
            ),
            Code.OUTPUT_DIFFERS,
            Verdict.FAIL,
        ),
        # another load than the parameters say
        (lambda it, _: resize(it, prompt=5), Code.NOT_EXERCISED, Verdict.INVALID),
        (lambda it, _: resize(it, output=1), Code.NOT_EXERCISED, Verdict.INVALID),
        (lambda it, _: remove(it, "3"), Code.EVIDENCE_MISSING, Verdict.INVALID),
        (lambda it, _: remove(it, "0", "1", "2", "3"), Code.EVIDENCE_MISSING, Verdict.INVALID),
        (lambda it, _: it.change(STRESS, "3", started_s=9.0), Code.NOT_EXERCISED, Verdict.INVALID),
        (lambda it, _: it.change(STRESS, "3", request_id="long-1"), Code.NOT_EXERCISED, Verdict.INVALID),
        (lambda it, _: it.change(SERIAL, "3", use_cache=True), Code.NOT_EXERCISED, Verdict.INVALID),
        (lambda it, _: it.change(SERIAL, "3", prompt=list(range(10))), Code.NOT_EXERCISED, Verdict.INVALID),
        (lambda it, _: it.exchanges.append(it.exchanges[-1]), Code.NOT_EXERCISED, Verdict.INVALID),
        # how pauses are told is not on file
        (
            lambda it, _: setattr(it, "pausing", replace(it.pausing, estimates=None)),
            Code.EVIDENCE_MISSING,
            Verdict.INVALID,
        ),
        # evidence that is not there
        (lambda it, _: it.exchanges.pop(2), Code.EVIDENCE_MISSING, Verdict.INVALID),
        (lambda it, _: it.exchanges.pop(), Code.EVIDENCE_MISSING, Verdict.INVALID),
        (lambda it, _: it.requests.pop("2"), Code.EVIDENCE_MISSING, Verdict.INVALID),
    ],
)
def test_each_fault(tmp_path: Path, spoil: Spoil, code: Code, verdict: Verdict) -> None:
    made, control = lightllm(), lightllm(paused=False)
    spoil(made, control)
    result = judged(tmp_path, made, control)
    assert (result.verdict, code in codes(result)) == (verdict, True), result.findings


def test_a_control_whose_answers_are_swapped_is_none_and_says_so_itself(tmp_path: Path) -> None:
    """It must not explain a real difference away: only answers of its other requests are a control."""
    control = lightllm(paused=False)
    ids = {case: [int(case) * 10 + at for at in range(9)] for case in ("1", "2")}
    made, params = lightllm(), PARAMS.model_copy(update={"output_tokens": 9})
    for one in (made, control):
        for exchange in [one for one in one.exchanges if one.leg != SHORT]:
            grown = ids.get(exchange.case, [*exchange.ids, 1, 2, 3])
            one.change(exchange.leg, exchange.case, ids=grown, max_tokens=9, completion_tokens=9)
    control.change(STRESS, "1", ids=ids["2"])
    control.change(STRESS, "2", ids=ids["1"])
    made.change(STRESS, "1", ids=[*ids["1"][:-1], 99])
    result = judged(tmp_path / "same", made, control, params)
    assert (result.verdict, codes(result)) == (
        Verdict.INVALID,
        {Code.REFERENCE_UNFIT, Code.OUTPUT_UNSTABLE},
    )
    made.change(STRESS, "3", ids=[*range(90, 99)])
    assert judged(tmp_path / "other", made, control, params).verdict is Verdict.FAIL
    folder = control.write(tmp_path / "alone" / "pause-resume")
    own = PauseResume().judge(params.model_copy(update={"reference": None, "expect": "none"}), folder)
    assert own.verdict is Verdict.FAIL


def test_only_pauses_after_the_load_began_count(tmp_path: Path) -> None:
    made = lightllm()
    made.never_paused()
    made.log("1", paused=(50,), recovered=(60,))
    assert codes(judged(tmp_path, made)) == {Code.NOT_EXERCISED}


def test_a_control_that_paused(tmp_path: Path) -> None:
    result = alone(tmp_path, lightllm())
    assert (result.verdict, codes(result)) == (Verdict.INVALID, {Code.CONTROL_FAILED})
    assert "192 tokens or more (it has 40)" in result.findings[0].message


def test_without_a_control_a_difference_has_no_cause(tmp_path: Path) -> None:
    made = lightllm()
    made.change(STRESS, "1", ids=[10, 11, 99, 13, 14, 15])
    params = PARAMS.model_copy(update={"reference": None})
    result = judged(tmp_path, made, params=params)
    assert (result.verdict, codes(result)) == (Verdict.INCONCLUSIVE, {Code.OUTPUT_UNSTABLE})
    assert "first at token 3 of 6" in result.findings[0].message


def test_told_whose_answers_differ(tmp_path: Path) -> None:
    made = lightllm()
    made.change(STRESS, "1", ids=[10, 11, 99, 13, 14, 15])
    made.change(STRESS, "2", ids=[10, 11, 99, 13, 14, 15])
    told = judged(tmp_path, made).told
    assert told == "2 of 4 requests paused, 3 pauses; 2 answers differ, 1 of them of paused requests"


def test_lost_requests_were_paused_too(tmp_path: Path) -> None:
    made = lightllm()
    made.log("3", paused=(121,), recovered=())
    assert judged(tmp_path, made).told == "2 of 4 requests paused, 2 pauses"


def test_a_reference_that_was_not_collected(tmp_path: Path) -> None:
    params = PARAMS.model_copy(update={"reference": "elsewhere"})
    result = judged(tmp_path, lightllm(), params=params)
    assert codes(result) == {Code.REFERENCE_UNFIT}


# Engines that only count


def test_counted(tmp_path: Path) -> None:
    result = judged(tmp_path, counting(), counting(paused=False))
    assert (result.verdict, result.findings) == (Verdict.PASS, [])
    assert (result.metrics["pauses"], result.metrics["requests_paused"]) == (3, None)
    assert result.told == "3 pauses among 4 requests"


def test_a_counter_that_first_counts_during_the_load(tmp_path: Path) -> None:
    made = counting("vllm")
    written = made.write(tmp_path / "lane" / "pause-resume")
    marks = (written / MARKS).read_text().replace('"n":2.0,', "", 1)
    (written / MARKS).write_text(marks)
    result = PauseResume().judge(PARAMS.model_copy(update={"reference": None}), written)
    assert (result.verdict, result.metrics["pauses"]) == (Verdict.PASS, 5)


def test_told_by_each_answer(tmp_path: Path) -> None:
    made = counting("sglang", paused=False)
    made.change_all(STRESS, pauses=0)
    made.change(STRESS, "2", pauses=2)
    result = judged(tmp_path, made, counting(paused=False))
    assert (result.verdict, result.metrics["pauses"]) == (Verdict.PASS, 2)
    assert result.metrics["requests_paused"] == 1


def test_told_by_lines_of_the_log(tmp_path: Path) -> None:
    made = counting("sglang", paused=False)
    made.pauses = (99, 150, 201)  # one of them while the load ran
    assert judged(tmp_path, made, counting(paused=False)).metrics["pauses"] == 1


def count(values: tuple[float, float] | None) -> Callable[[Evidence], None]:
    return lambda made: setattr(made, "counted", values)


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (count((2, 2)), Code.NOT_EXERCISED),
        (count(None), Code.NOT_EXERCISED),
        (count((5, 0)), Code.NOT_EXERCISED),  # it was started anew
        (lambda made: made.change(SERIAL, "0", pauses=1), Code.REFERENCE_UNFIT),
    ],
)
def test_each_fault_where_pauses_are_counted(
    tmp_path: Path, spoil: Callable[[Evidence], None], code: Code
) -> None:
    made = counting()
    spoil(made)
    result = judged(tmp_path, made, counting(paused=False))
    assert (result.verdict, codes(result)) == (Verdict.INVALID, {code}), result.findings


def test_a_log_without_debug_lines_is_no_proof_that_nothing_paused(tmp_path: Path) -> None:
    made = lightllm(paused=False)
    made.estimate = None
    result = alone(tmp_path, made)
    assert (result.verdict, codes(result)) == (Verdict.INVALID, {Code.NOT_EXERCISED})
    assert "look here" in result.findings[0].message


def test_silence_is_no_proof_that_nothing_paused(tmp_path: Path) -> None:
    made = counting(paused=False)
    made.counted = None
    assert codes(alone(tmp_path, made)) == {Code.NOT_EXERCISED}


# Numbers to change


@pytest.mark.parametrize(
    ("notes", "words"),
    [
        (
            {"kv_tokens": 640},
            "4 x (10 + 6) = 64 tokens fit into a KV cache of 640: raise the concurrency to 41",
        ),
        ({"kv_tokens": 640}, "or lower the cache below 64"),
        ({"kv_tokens": None}, "the server does not tell what its KV cache holds"),
        ({"kv_tokens": 60, "output_estimate": 2048}, "expected outputs of 2048 tokens"),
        ({"kv_tokens": 60, "output_estimate": None}, "did not run them all at once: let 4 run together"),
        ({}, "look here"),
    ],
)
def test_no_pause_says_what_to_change(tmp_path: Path, notes: dict[str, int | None], words: str) -> None:
    made = lightllm(paused=False)
    made.notes |= notes
    assert words in judged(tmp_path, made).findings[0].message


def test_the_small_pool_of_the_procedure_needs_a_low_estimate(tmp_path: Path) -> None:
    params = PauseResumeParams(reference=None)
    made = lightllm(paused=False)
    made.notes |= {"kv_tokens": 4096, "output_estimate": 630}
    folder = made.write(tmp_path / "lane" / "pause-resume")
    found = [
        finding for finding in PauseResume().judge(params, folder).findings if "happened" in finding.message
    ]
    assert "8 x (257 + 512) = 6152 tokens overflow a KV cache of 4096" in found[0].message
    assert "admitted about 5 at once: it has to expect 223 or less (raise max_warmups)" in found[0].message


# Evidence that cannot be judged, and servers that cannot be asked


@pytest.mark.parametrize("name", [EXCHANGES, MARKS, FACTS])
@pytest.mark.parametrize("bytes_", [None, b"", b"{", b"\xff\xfe", b"[]\n"])
def test_broken_files(tmp_path: Path, name: str, bytes_: bytes | None) -> None:
    folder = lightllm().write(tmp_path / "lane" / "pause-resume")
    (folder / name).unlink()
    if bytes_ is not None:
        (folder / name).write_bytes(bytes_)
    result = PauseResume().judge(PARAMS.model_copy(update={"reference": None}), folder)
    assert (result.verdict, result.findings[0].code) == (Verdict.INVALID, Code.EVIDENCE_MISSING)


def test_a_server_that_never_pauses_is_skipped_with_the_reason(tmp_path: Path) -> None:
    folder = lightllm().write(tmp_path / "lane" / "pause-resume")
    (folder / EXCHANGES).write_text("")
    (folder / FACTS).write_text(Facts(notes={SKIPPED: "this one never pauses"}).model_dump_json())
    result = PauseResume().judge(PARAMS, folder)
    assert (result.verdict, codes(result)) == (Verdict.SKIPPED, {Code.NOT_RUN})
    assert result.findings[0].message == "this one never pauses"


def test_it_is_not_even_asked(tmp_path: Path) -> None:
    engine = ENGINES["llamacpp"]
    context = CheckContext(
        engine=engine,
        base_url="http://127.0.0.1:9",
        served_name="any",
        folder=tmp_path,
        server_log=tmp_path / "server.log",
        start_command=lambda *_: pytest.fail("no program is started here"),
        progress=lambda *_: None,
    )
    PauseResume().collect(PauseResumeParams(), context, None)
    result = PauseResume().judge(PauseResumeParams(), tmp_path)
    assert result.verdict is Verdict.SKIPPED
    assert result.findings[0].message.startswith("llamacpp never puts a running request aside")


def test_every_engine_says_whether_it_pauses() -> None:
    told = {name: engine.pausing for name, engine in ENGINES.items()}
    assert told.pop("llamacpp") is None
    assert all(pausing and pausing.hint for pausing in told.values())
    assert [name for name, pausing in told.items() if pausing and pausing.logs_requests] == ["lightllm"]


def test_it_is_known_and_cannot_be_paired(tmp_path: Path) -> None:
    assert isinstance(CHECKS["pause-resume"], PauseResume)
    pair = Pair(name="p", baseline="a", candidate="b", check="pause-resume")
    assert PauseResume().pair(PARAMS, pair, tmp_path, tmp_path, None).verdict is Verdict.INVALID


def test_a_log_that_is_not_there_proves_nothing(tmp_path: Path) -> None:
    made = lightllm()
    made.notes["role"] = f"not {ROLE}"
    assert codes(judged(tmp_path, made)) == {Code.EVIDENCE_MISSING}


@pytest.mark.parametrize("answer", [[7] * 8, list(range(8))])
def test_answers_that_cannot_show_damage(tmp_path: Path, answer: list[int]) -> None:
    """One token over and over, or the same for every prompt: here and in the control, paused or not."""
    made, control = lightllm(), lightllm(paused=False)
    for one in (made, control):
        for leg in (STRESS, SERIAL):
            one.change_all(leg, ids=answer, max_tokens=8, completion_tokens=8, logprobs=[-0.5] * 8)
    result = judged(tmp_path, made, control, PARAMS.model_copy(update={"output_tokens": 8}))
    assert result.verdict is Verdict.INVALID
    assert codes(result) == {Code.NOT_EXERCISED, Code.REFERENCE_UNFIT}
    assert all("cannot show damage" in finding.message for finding in result.findings)
