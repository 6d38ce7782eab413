"""Judging CPU reload: a clean story passes, and each fault in it is found and named."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.checks.base import reference_of
from harness.checks.cpu_reload import CpuReload, CpuReloadParams
from harness.codes import Code
from harness.verdict import Verdict
from tests.checks.evidence_files import IDS, Story, exchange, mark

CHECK = CpuReload()
HIT = 512
HOST_COUNTER = "vllm:prompt_tokens_cached_by_source_total{source=host}"
LOAD_BACK = "sglang:load_back_tokens_total{pool=kv}"
Damage = Callable[[Story], Any]


def tiers(device: int, host: int) -> dict[str, int]:
    return {"total": device + host, "device": device, "host": host}


def story() -> Story:
    """Of an engine that tells tiers (LightLLM, SGLang)."""
    made = Story(
        exchanges=[
            exchange("cold", "target", first_token_s=1.0, cached=tiers(0, 0)),
            exchange("warm", "target", first_token_s=0.1, cached=tiers(HIT, 0)),
            exchange("warm-again", "target", first_token_s=0.1, cached=tiers(HIT, 0)),
            exchange("evict", "0", ids=[7], max_tokens=1),
            exchange("evict", "1", ids=[7], max_tokens=1),
            exchange("reload", "target", first_token_s=0.2, cached=tiers(0, HIT)),
            exchange("warm-after", "target", first_token_s=0.1, cached=tiers(HIT, 0)),
        ],
        marks=[mark("begin", 10), mark("evicted", 100), mark("reloaded", 120)],
        notes={
            "tier": True,
            "length": 600,
            "expected_warm": HIT,
            "expected_host": HIT,
            "device_tokens": 1000,
            "host_tokens": 50_000,
            "evict_prompts": 2,
            "evict_tokens": 1200,
        },
    )
    for one in made.exchanges:
        one["accept"] = {"accepted": 20, "proposed": 24, "steps": 12}
    return made


def totals() -> Story:
    """Of an engine that tells totals, and logs loads (llama.cpp)."""
    made = story()
    for one in made.exchanges:
        one["cached"] = {"total": one["cached"]["total"]}
    made.log = {"host_loads": [110]}
    made.notes["host_tokens"] = None
    return made


def off() -> Story:
    """The negative control: computed anew."""
    made = story()
    made.of("reload")["cached"] = tiers(0, 0)
    made.notes |= {"tier": False, "expected_host": 0, "host_tokens": 0}
    return made


def write(run: Path, main: Story, control: Story | None) -> Path:
    if control:
        control.write(run / "off" / "cpu-reload")
    return main.write(run / "on" / "cpu-reload")


def judged(run: Path, main: Story, control: Story | None) -> tuple[Verdict, set[Code]]:
    params = CpuReloadParams(length=600, control="off" if control else None)
    result = CHECK.judge(params, write(run, main, control))
    return result.verdict, {finding.code for finding in result.findings}


def judged_off(run: Path, main: Story) -> tuple[Verdict, set[Code]]:
    result = CHECK.judge(CpuReloadParams(length=600, tier=False), write(run, main, None))
    return result.verdict, {finding.code for finding in result.findings}


@pytest.mark.parametrize("made", [story, totals])
def test_a_clean_reload_passes(tmp_path: Path, made: Callable[[], Story]) -> None:
    assert judged(tmp_path, made(), off()) == (Verdict.PASS, set())


def test_without_a_negative_control_it_is_only_reported(tmp_path: Path) -> None:
    folder = write(tmp_path, story(), None)
    result = CHECK.judge(CpuReloadParams(length=600), folder)
    assert result.verdict is Verdict.REPORTED
    assert result.findings == []
    assert result.metrics["negative_control"] == "none ran: at best REPORTED"
    assert result.metrics["hit_host"] == HIT
    assert result.metrics["first_token_share"] == pytest.approx(0.2)


def test_a_first_token_in_common_with_a_stranger_s_prompt_is_no_hit(tmp_path: Path) -> None:
    """As in a cache of single tokens: all of these prompts begin with a random number."""
    made, control = story(), off()
    for one in (made, control):
        one.of("cold")["cached"] = tiers(1, 0)
    made.of("reload")["cached"] = tiers(1, HIT - 1)
    control.of("reload")["cached"] = tiers(2, 0)
    assert judged(tmp_path, made, control) == (Verdict.PASS, set())


def test_the_control_itself_passes_when_everything_is_computed_anew(tmp_path: Path) -> None:
    assert judged_off(tmp_path, off()) == (Verdict.PASS, set())


def counted(made: Story, tokens: float) -> None:
    """As vLLM: a total in the answer, the tier in a counter."""
    made.log = {}
    made.marks[1]["counters"] = {HOST_COUNTER: 40.0}
    made.marks[2]["counters"] = {HOST_COUNTER: 40.0 + tokens}


def test_a_counter_proves_it_where_neither_answer_nor_log_does(tmp_path: Path) -> None:
    made = totals()
    counted(made, HIT)
    assert judged(tmp_path, made, off()) == (Verdict.PASS, set())


def test_tiers_of_the_log_count_by_request(tmp_path: Path) -> None:
    made = story()
    for one in made.exchanges:
        one["cached"] = {"total": one["cached"]["total"]}
        one["first_token_s"] = None
    told = {"cached": tiers(0, HIT), "first_token_s": 0.2}
    made.log = {"requests": {"id-reload-target": told, "id-cold-target": {"first_token_s": 1.0}}}
    assert judged(tmp_path, made, off()) == (Verdict.PASS, set())
    made.log["requests"]["id-reload-target"]["first_token_s"] = 0.9  # told, and computed all the same
    assert judged(tmp_path, made, off()) == (Verdict.INVALID, {Code.NOT_EXERCISED})


def without_first_token(made: Story, reload_s: float) -> None:
    for one in made.exchanges:
        one["first_token_s"] = None
    made.of("cold")["latency_s"] = 3.0
    made.of("reload")["latency_s"] = reload_s


@pytest.mark.parametrize(("reload_s", "verdict"), [(2.2, Verdict.PASS), (2.9, Verdict.INVALID)])
def test_latencies_do_where_no_server_tells_the_first_token(
    tmp_path: Path, reload_s: float, verdict: Verdict
) -> None:
    made = story()
    without_first_token(made, reload_s)
    assert judged(tmp_path, made, off())[0] is verdict


def put(leg: str, **values: Any) -> Damage:
    return lambda made: made.of(leg).update(values)


def every_target(**values: Any) -> Damage:
    return lambda made: [one.update(values) for one in made.exchanges if one["leg"] != "evict"]


def note(**values: Any) -> Damage:
    return lambda made: made.notes.update(values)


def drop(leg: str) -> Damage:
    return lambda made: made.exchanges.remove(made.of(leg))


def accept(accepted: int) -> Damage:
    return put("reload", accept={"accepted": accepted, "proposed": 24, "steps": 12})


def copied(tokens: float) -> Damage:
    def damage(made: Story) -> None:
        made.marks[1]["counters"] = {LOAD_BACK: 5.0}
        made.marks[2]["counters"] = {LOAD_BACK: 5.0 + tokens}

    return damage


def both_differ(made: Story) -> None:
    put("reload", ids=[*IDS[:-1], 9])(made)
    put("warm-again", ids=[*IDS[:-1], 8])(made)


OTHER_IDS = [*IDS[:-1], 999]
FAULTS: dict[str, tuple[Damage, Verdict, Code]] = {
    "cold was not cold": (put("cold", cached=tiers(256, 0)), Verdict.INVALID, Code.COLD_NOT_COLD),
    "what pushes it out was cached": (put("evict", cached=tiers(64, 0)), Verdict.INVALID, Code.COLD_NOT_COLD),
    "one token for ever": (
        lambda made: [one.update(ids=[0] * 32) for one in made.exchanges if one["leg"] != "evict"],
        Verdict.INVALID,
        Code.NOT_EXERCISED,
    ),
    "warm hit too small": (put("warm", cached=tiers(256, 0)), Verdict.FAIL, Code.HIT_MISMATCH),
    "configured but never read": (
        put("reload", cached=tiers(0, 0)),
        Verdict.INVALID,
        Code.NOT_EXERCISED,
    ),
    "still on the device": (put("reload", cached=tiers(HIT, 0)), Verdict.INVALID, Code.NOT_EXERCISED),
    "part still on the device": (
        put("reload", cached=tiers(128, HIT - 128)),
        Verdict.INVALID,
        Code.NOT_EXERCISED,
    ),
    "host hit too small": (put("reload", cached=tiers(0, 256)), Verdict.FAIL, Code.HIT_MISMATCH),
    "logged but not copied": (put("reload", first_token_s=0.95), Verdict.INVALID, Code.NOT_EXERCISED),
    "counted as found, not as copied": (copied(0), Verdict.INVALID, Code.NOT_EXERCISED),
    "cached tokens not told": (put("reload", cached={}), Verdict.INVALID, Code.NOT_EXERCISED),
    "below the copy threshold": (note(expected_host=0), Verdict.INVALID, Code.NOT_EXERCISED),
    "tier too small for the eviction": (note(host_tokens=1500), Verdict.INVALID, Code.NOT_EXERCISED),
    "reload corrupts the answer": (put("reload", ids=OTHER_IDS), Verdict.FAIL, Code.OUTPUT_DIFFERS),
    "reload corrupts the next answer": (put("warm-after", ids=OTHER_IDS), Verdict.FAIL, Code.OUTPUT_DIFFERS),
    "answers differ without it too": (both_differ, Verdict.INCONCLUSIVE, Code.OUTPUT_UNSTABLE),
    "accept length collapses": (accept(6), Verdict.FAIL, Code.ACCEPT_COLLAPSE),
    "accept length is gone": (put("reload", accept=None), Verdict.FAIL, Code.ACCEPT_COLLAPSE),
    "request failed": (put("reload", error="no answer"), Verdict.INVALID, Code.REQUEST_FAILED),
    "eviction failed": (put("evict", error="no answer"), Verdict.INVALID, Code.REQUEST_FAILED),
    "error as HTTP 200": (put("reload", finish_reason="error"), Verdict.FAIL, Code.BAD_ANSWER),
    "answer shortened": (
        put("warm-again", ids=IDS[:9], completion_tokens=9),
        Verdict.FAIL,
        Code.OUTPUT_COUNT,
    ),
    "a device hit corrupts the answer": (
        lambda made: [
            put(leg, ids=OTHER_IDS)(made) for leg in ("warm", "warm-again", "reload", "warm-after")
        ],
        Verdict.INCONCLUSIVE,
        Code.OUTPUT_UNSTABLE,
    ),
    "reload moves a log-probability": (
        put("reload", logprobs=[-0.5] * 31 + [-1.5]),
        Verdict.INCONCLUSIVE,
        Code.LOGPROB_DRIFT,
    ),
    "prompt of another length": (put("reload", prompt_tokens=601), Verdict.INVALID, Code.NOT_EXERCISED),
    "a leg is missing": (drop("reload"), Verdict.INVALID, Code.EVIDENCE_MISSING),
    "an eviction is missing": (drop("evict"), Verdict.INVALID, Code.EVIDENCE_MISSING),
    "a mark is missing": (lambda made: made.marks.pop(), Verdict.INVALID, Code.EVIDENCE_MISSING),
    "a shorter target": (
        every_target(asked_tokens=300, prompt_tokens=300, prompt=[0, *range(1, 300)]),
        Verdict.INVALID,
        Code.NOT_EXERCISED,
    ),
    "one token for each answer": (
        every_target(max_tokens=1, completion_tokens=1, ids=IDS[:1]),
        Verdict.INVALID,
        Code.NOT_EXERCISED,
    ),
    "another target": (put("reload", prompt=[9, *range(1, 600)]), Verdict.INVALID, Code.NOT_EXERCISED),
    "asked without the cache": (put("cold", use_cache=False), Verdict.INVALID, Code.NOT_EXERCISED),
    "less was pushed in than computed": (
        put("evict", asked_tokens=200, prompt_tokens=200, prompt=[0, *range(1, 200)]),
        Verdict.INVALID,
        Code.NOT_EXERCISED,
    ),
    "one prompt pushes twice": (
        lambda made: made.exchanges[4].update(prompt=made.of("evict")["prompt"]),
        Verdict.INVALID,
        Code.NOT_EXERCISED,
    ),
    "total and tiers differ": (
        put("reload", cached={"total": 0, "device": 0, "host": HIT}),
        Verdict.INVALID,
        Code.NOT_EXERCISED,
    ),
    "first token before it was asked": (
        put("reload", first_token_s=-5.0, latency_s=9.0),
        Verdict.INVALID,
        Code.NOT_EXERCISED,
    ),
    "accept length of the reload alone": (put("warm", accept=None), Verdict.INVALID, Code.NOT_EXERCISED),
    "a negative accept length": (accept(-20), Verdict.FAIL, Code.ACCEPT_COLLAPSE),
    "the tier is not on file": (note(tier=None), Verdict.INVALID, Code.EVIDENCE_MISSING),
    "a moment twice": (
        lambda made: made.marks.append(mark("evicted", 130)),
        Verdict.INVALID,
        Code.EVIDENCE_MISSING,
    ),
    "the log went back": (
        lambda made: made.marks[2]["lines"].update(normal=50),
        Verdict.INVALID,
        Code.EVIDENCE_MISSING,
    ),
    "a note is missing": (
        lambda made: made.notes.pop("expected_host"),
        Verdict.INVALID,
        Code.EVIDENCE_MISSING,
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_found(tmp_path: Path, name: str) -> None:
    damage, verdict, code = FAULTS[name]
    made = story()
    damage(made)
    assert judged(tmp_path, made, off()) == (verdict, {code})


@pytest.mark.parametrize("notes", [{"length": 601}, {"evict_prompts": 3}, {"evict_prompts": 10**12}])
def test_another_sequence_on_file_is_neither_this_one_nor_the_control_s(
    tmp_path: Path, notes: dict[str, int]
) -> None:
    made = story()
    made.notes |= notes
    verdict, codes = judged(tmp_path, made, off())
    assert verdict is Verdict.INVALID
    assert codes & {Code.NOT_EXERCISED, Code.EVIDENCE_MISSING}
    assert Code.REFERENCE_UNFIT in codes


def test_nothing_was_to_be_pushed_out(tmp_path: Path) -> None:
    made, control = story(), off()
    for one in (made, control):
        one.notes |= {"evict_prompts": 0, "evict_tokens": 0}
        one.exchanges = [exchange for exchange in one.exchanges if exchange["leg"] != "evict"]
    verdict, codes = judged(tmp_path, made, control)
    assert (verdict, Code.NOT_EXERCISED in codes) == (Verdict.INVALID, True)


TOTALS: dict[str, tuple[Damage, Verdict, Code]] = {
    "no load in the log": (lambda made: made.log.clear(), Verdict.INVALID, Code.NOT_EXERCISED),
    "the load was another request's": (
        lambda made: made.log.update(host_loads=[90, 130]),
        Verdict.INVALID,
        Code.NOT_EXERCISED,
    ),
    "computed anew": (put("reload", cached={"total": 0}), Verdict.INVALID, Code.NOT_EXERCISED),
    "part of it": (put("reload", cached={"total": 300}), Verdict.FAIL, Code.HIT_MISMATCH),
    "counter says none": (lambda made: counted(made, 0), Verdict.INVALID, Code.NOT_EXERCISED),
    "counter says part": (lambda made: counted(made, 256), Verdict.FAIL, Code.HIT_MISMATCH),
}


@pytest.mark.parametrize("name", TOTALS)
def test_each_fault_is_found_where_only_totals_are_told(tmp_path: Path, name: str) -> None:
    damage, verdict, code = TOTALS[name]
    made = totals()
    damage(made)
    assert judged(tmp_path, made, off()) == (verdict, {code})


def total_only(tokens: int) -> Damage:
    def damage(made: Story) -> None:
        for one in made.exchanges:
            one["cached"] = {"total": one["cached"]["total"]}
        made.of("reload")["cached"] = {"total": tokens}

    return damage


CONTROLS: dict[str, tuple[Damage, Code, Code]] = {
    "a reload without a tier": (
        put("reload", cached=tiers(0, HIT)),
        Code.CONTROL_FAILED,
        Code.CONTROL_FAILED,
    ),
    "a load in the log": (
        lambda made: made.log.update(host_loads=[110]),
        Code.CONTROL_FAILED,
        Code.CONTROL_FAILED,
    ),
    "a hit of nobody knows where": (total_only(HIT), Code.CONTROL_FAILED, Code.CONTROL_FAILED),
    "its tier was on": (note(expected_host=HIT), Code.CONTROL_FAILED, Code.CONTROL_FAILED),
    "nothing was pushed out": (
        put("reload", cached=tiers(HIT, 0)),
        Code.NOT_EXERCISED,
        Code.REFERENCE_UNFIT,
    ),
    "cached tokens not told": (put("reload", cached={}), Code.NOT_EXERCISED, Code.REFERENCE_UNFIT),
    "a request failed": (put("reload", error="gone"), Code.REQUEST_FAILED, Code.REFERENCE_UNFIT),
}


@pytest.mark.parametrize("name", CONTROLS)
def test_a_control_that_does_not_hold(tmp_path: Path, name: str) -> None:
    """Found in its own lane, and in the lane that relies on it."""
    damage, own, relying = CONTROLS[name]
    control = off()
    damage(control)
    assert judged_off(tmp_path / "a", control) == (Verdict.INVALID, {own})
    assert judged(tmp_path / "b", story(), control) == (Verdict.INVALID, {relying})


@pytest.mark.parametrize("damage", [note(tier=True), note(length=700), note(evict_prompts=1)])
def test_a_control_that_is_none(tmp_path: Path, damage: Damage) -> None:
    control = off()
    damage(control)
    assert judged(tmp_path, story(), control) == (Verdict.INVALID, {Code.REFERENCE_UNFIT})


def test_a_control_that_is_not_there(tmp_path: Path) -> None:
    folder = write(tmp_path, story(), None)
    result = CHECK.judge(CpuReloadParams(length=600, control="off"), folder)
    assert (result.verdict, {finding.code for finding in result.findings}) == (
        Verdict.INVALID,
        {Code.REFERENCE_UNFIT},
    )


@pytest.mark.parametrize("name", ["exchanges.jsonl", "marks.jsonl", "facts.json"])
@pytest.mark.parametrize("content", [None, b"\xff\xfe{", b"[]\n"])
def test_broken_evidence_is_invalid(tmp_path: Path, name: str, content: bytes | None) -> None:
    folder = write(tmp_path, story(), off())
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    params = CpuReloadParams(length=600, control="off")
    assert {finding.code for finding in CHECK.judge(params, folder).findings} == {Code.EVIDENCE_MISSING}


def test_parameters() -> None:
    params = CpuReloadParams.model_validate({"control": "off", "evict": 3})
    assert reference_of(params, "cpu-reload") == ("off", "cpu-reload")
    assert CHECK.problems(params) == []
    assert CHECK.problems(CpuReloadParams(evict=0)) != []
    assert CHECK.problems(CpuReloadParams.model_validate({"tier": "off", "control": "x"})) != []


@pytest.mark.parametrize(
    ("evict", "said"), [(0, "push nothing out"), (10_000_000_000, "100000 are the most")]
)
def test_a_number_of_prompts_that_nobody_can_have_meant(evict: int, said: str) -> None:
    (problem,) = CHECK.problems(CpuReloadParams(evict=evict))
    assert said in problem
