"""Judging a P/D lane: a clean story passes on each engine's kind of proof, and each fault is named."""

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harness.checks import pd_proof
from harness.checks.exchange import load_evidence
from harness.checks.pd_parity import PdParity, PdParityParams
from harness.checks.pd_transfers import TRANSFERS, Moved
from harness.codes import Code
from harness.evidence.record import CheckResult
from harness.verdict import Verdict
from tests.checks.evidence_files import IDS, Story, exchange, mark

CHECK = PdParity()
OTHER = [*IDS[:5], 999, *IDS[6:]]
NODES = ("prefill", "decode")
LENGTH = 600


@dataclass(slots=True)
class Lane:
    """The evidence of the P/D lane, and of its reference."""

    story: Story
    log: dict[str, Any]
    config: dict[str, dict[str, Any]]
    moved: list[dict[str, Any]] = field(default_factory=list)
    reference: Story = field(default_factory=Story)
    reference_config: dict[str, Any] = field(default_factory=lambda: {"dtype": "bf16", "page_size": 16})

    def judged(self, run: Path, *, reference: bool = True) -> CheckResult:
        folder = self.story.write(run / "pd" / "pd-parity")
        facts = {"log": self.log, "config": self.config, "notes": self.story.notes}
        (folder / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
        lines = "".join(json.dumps(line) + "\n" for line in self.moved)
        (folder / TRANSFERS).write_text(lines, encoding="utf-8")
        other = self.reference.write(run / "one" / "cache-boundary")
        servers = {"normal": self.reference_config} if self.reference_config else {}
        facts = {"log": {}, "config": servers, "notes": {}}
        (other / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
        name = "one/cache-boundary" if reference else None
        return CHECK.judge(PdParityParams(reference=name, lengths=(LENGTH,)), folder)


def moment(label: str, line: int) -> dict[str, Any]:
    """Of a lane with nodes."""
    return mark(label) | {"lines": dict.fromkeys(NODES, line)}


def _story() -> Story:
    return Story(
        exchanges=[exchange("cold", "600"), exchange("warm", "600", cached={"total": 592})],
        marks=[moment("idle", 10), moment("asking", 20)],
        notes={
            "agree:dtype": "prefill,decode,normal",
            "agree:page_size": "prefill,decode,normal",
            "agree:max_req_total_len": "prefill,decode,master",
            "version:prefill": "1",
            "version:decode": "1",
        },
    )


def _reference() -> Story:
    return Story(exchanges=[exchange(leg, "600") for leg in ("cold", "warm", "control")], marks=[])


def lightllm() -> Lane:
    """Proved by the nodes' logs, under the number that the master gave the request."""
    config = {"dtype": "bf16", "page_size": 16, "max_req_total_len": 8192, "hybrid": True}
    moved = {"16": {"ranges": [[0, 512], [512, 600]], "state": True, "line": 50}}
    master = {"requests": {"id-cold-600": {"node_id": "16"}, "id-warm-600": {"node_id": "32"}}}
    return Lane(
        story=_story(),
        log={"master": master, **{role: {"transfers": copy.deepcopy(moved)} for role in NODES}},
        config={"master": {"max_req_total_len": 8192}, **{role: dict(config) for role in NODES}},
        reference=_reference(),
    )


def sglang() -> Lane:
    """Proved by the nodes' logs and by their counters."""
    config = {"dtype": "bf16", "page_size": 16}
    return Lane(
        story=_story(),
        log={
            "router": {},
            "prefill": {"transfers": {"id-cold-600": {"size": 4096.0}}},
            "decode": {"transfers": {"id-cold-600": {"seconds": 0.2}}},
        },
        config={"router": {}, **{role: dict(config) for role in NODES}},
        moved=[
            counted("idle", "", "prefill", 0, size=0),
            counted("idle", "", "decode", 0),
            counted("cold", "600", "prefill", 1, size=4096),
            counted("cold", "600", "decode", 1),
        ],
        reference=_reference(),
    )


def vllm() -> Lane:
    """Proved by the decode node's counters."""
    lane = sglang()
    lane.log = {"router": {}, "prefill": {}, "decode": {}}
    lane.moved = [counted("idle", "", "decode", None, tokens=0)]
    lane.moved.append(counted("cold", "600", "decode", None, tokens=592, failed=0))
    lane.story.notes["least:600"] = 576
    return lane


def counted(leg: str, case: str, role: str, requests: float | None, **more: float) -> dict[str, Any]:
    return {"leg": leg, "case": case, "role": role, "requests": requests, "failed": 0.0, **more}


def outcome(result: CheckResult) -> tuple[Verdict, set[Code]]:
    return result.verdict, {finding.code for finding in result.findings}


ENGINES = [lightllm, sglang, vllm]


@pytest.mark.parametrize("lane", ENGINES)
def test_a_clean_run_passes(lane: Callable[[], Lane], tmp_path: Path) -> None:
    assert outcome(lane().judged(tmp_path)) == (Verdict.PASS, set())


@pytest.mark.parametrize("lane", ENGINES)
def test_without_a_reference_nothing_is_claimed(lane: Callable[[], Lane], tmp_path: Path) -> None:
    assert outcome(lane().judged(tmp_path, reference=False)) == (Verdict.REPORTED, set())


def no_text(story: Story) -> None:
    story.exchanges.clear()
    story.notes["unfit:600"] = "it is no text"


Damage = Callable[[Lane], Any]
FAULTS: list[tuple[str, Callable[[], Lane], Damage, Code, Verdict]] = [
    # the servers differ
    (
        "length differs",
        lightllm,
        lambda lane: lane.config["decode"].update(max_req_total_len=16384),
        Code.PD_MISMATCH,
        Verdict.INVALID,
    ),
    (
        "a node does not tell",
        lightllm,
        lambda lane: lane.config["decode"].pop("page_size"),
        Code.PD_MISMATCH,
        Verdict.INVALID,
    ),
    (
        "versions differ",
        sglang,
        lambda lane: lane.story.notes.update({"version:decode": "2"}),
        Code.PD_MISMATCH,
        Verdict.INVALID,
    ),
    (
        "differing servers explain differing answers",
        sglang,
        lambda lane: (lane.config["decode"].update(dtype="fp32"), lane.story.of("cold").update(ids=OTHER)),
        Code.PD_MISMATCH,
        Verdict.INVALID,
    ),
    (
        "nothing that must agree is on file",
        lightllm,
        lambda lane: (
            [lane.story.notes.pop(name) for name in list(lane.story.notes) if name.startswith("agree:")],
            lane.story.notes.update({"version:prefill": "", "version:decode": "unknown"}),
        ),
        Code.EVIDENCE_MISSING,
        Verdict.INVALID,
    ),
    (
        "no node tells anything",
        sglang,
        lambda lane: (
            lane.config.update({role: {} for role in NODES}),
            [lane.story.notes.pop(f"version:{role}") for role in NODES],
        ),
        Code.EVIDENCE_MISSING,
        Verdict.INVALID,
    ),
    (
        "one node is not there",
        sglang,
        lambda lane: lane.config.pop("decode"),
        Code.PD_MISMATCH,
        Verdict.INVALID,
    ),
    (
        "one node has no version",
        sglang,
        lambda lane: lane.story.notes.update({"version:decode": ""}),
        Code.PD_MISMATCH,
        Verdict.INVALID,
    ),
    (
        "another prompt than the reference's",
        sglang,
        lambda lane: [one.update(prompt=[9, *range(1, LENGTH)]) for one in lane.story.exchanges],
        Code.NOT_EXERCISED,
        Verdict.INVALID,
    ),
    (
        "fewer tokens than the reference",
        sglang,
        lambda lane: [
            one.update(ids=IDS[:1], completion_tokens=1, max_tokens=1) for one in lane.story.exchanges
        ],
        Code.NOT_EXERCISED,
        Verdict.FAIL,
    ),
    (
        "a cold request twice",
        sglang,
        lambda lane: lane.story.exchanges.append(lane.story.of("cold")),
        Code.NOT_EXERCISED,
        Verdict.INVALID,
    ),
    (
        "a broken control of the reference hides nothing",
        sglang,
        lambda lane: (
            lane.story.of("cold").update(ids=OTHER),
            lane.reference.of("control").update(ids=IDS[:3], completion_tokens=3),
        ),
        Code.REFERENCE_UNFIT,
        Verdict.INVALID,
    ),
    (
        "a control of another prompt",
        sglang,
        lambda lane: lane.reference.of("control").update(prompt=[9, *range(1, LENGTH)]),
        Code.REFERENCE_UNFIT,
        Verdict.INVALID,
    ),
    # nothing moved
    (
        "one node shows the state",
        lightllm,
        lambda lane: (
            [lane.config[role].pop("hybrid") for role in NODES],
            lane.log["decode"]["transfers"]["16"].update(state=False),
        ),
        Code.NOT_EXERCISED,
        Verdict.INVALID,
    ),
    (
        "more than half of the tokens, and not all",
        vllm,
        lambda lane: lane.moved[1].update(tokens=560.0),
        Code.NOT_EXERCISED,
        Verdict.INVALID,
    ),
    (
        "a node that logs a transfer while nothing is asked",
        lightllm,
        lambda lane: lane.log["decode"]["transfers"].update({"8": {"ranges": [[0, 9]], "line": 15}}),
        Code.CONTROL_FAILED,
        Verdict.INVALID,
    ),
    (
        "what is logged while nothing is asked is not on file",
        lightllm,
        lambda lane: lane.story.marks.clear(),
        Code.CONTROL_FAILED,
        Verdict.INVALID,
    ),
    (
        "a transfer moves a log-probability",
        sglang,
        lambda lane: lane.story.of("cold").update(logprobs=[-0.5] * 31 + [-1.5]),
        Code.LOGPROB_DRIFT,
        Verdict.INCONCLUSIVE,
    ),
    (
        "a few tokens only",
        vllm,
        lambda lane: lane.moved[1].update(tokens=16.0),
        Code.NOT_EXERCISED,
        Verdict.INVALID,
    ),
    (
        "a counter that went back",
        vllm,
        lambda lane: lane.moved[1].update(tokens=-592.0),
        Code.NOT_EXERCISED,
        Verdict.INVALID,
    ),
    (
        "no transfer in the logs",
        lightllm,
        lambda lane: [lane.log[role].update(transfers={}) for role in NODES],
        Code.NOT_EXERCISED,
        Verdict.INVALID,
    ),
    (
        "decode already had it",
        lightllm,
        lambda lane: [lane.log[role]["transfers"]["16"].update(ranges=[]) for role in NODES],
        Code.NOT_EXERCISED,
        Verdict.INVALID,
    ),
    (
        "a part only",
        lightllm,
        lambda lane: [lane.log[role]["transfers"]["16"].update(ranges=[[512, 600]]) for role in NODES],
        Code.NOT_EXERCISED,
        Verdict.INVALID,
    ),
    (
        "a gap",
        lightllm,
        lambda lane: [
            lane.log[role]["transfers"]["16"].update(ranges=[[0, 256], [512, 600]]) for role in NODES
        ],
        Code.NOT_EXERCISED,
        Verdict.INVALID,
    ),
    (
        "the end is missing",
        lightllm,
        lambda lane: [lane.log[role]["transfers"]["16"].update(ranges=[[0, 512]]) for role in NODES],
        Code.NOT_EXERCISED,
        Verdict.INVALID,
    ),
    (
        "sent, not received",
        lightllm,
        lambda lane: lane.log["decode"]["transfers"].pop("16"),
        Code.NOT_EXERCISED,
        Verdict.INVALID,
    ),
    (
        "received less than sent",
        lightllm,
        lambda lane: lane.log["decode"]["transfers"]["16"].update(ranges=[[0, 512]]),
        Code.NOT_EXERCISED,
        Verdict.INVALID,
    ),
    (
        "the state stayed behind",
        lightllm,
        lambda lane: lane.log["decode"]["transfers"]["16"].update(state=False),
        Code.NOT_EXERCISED,
        Verdict.INVALID,
    ),
    (
        "the master's log is lost",
        lightllm,
        lambda lane: lane.log["master"].update(requests={}),
        Code.NOT_EXERCISED,
        Verdict.INVALID,
    ),
    (
        "0 bytes sent",
        sglang,
        lambda lane: lane.log["prefill"]["transfers"]["id-cold-600"].update(size=0.0),
        Code.NOT_EXERCISED,
        Verdict.INVALID,
    ),
    (
        "decode waited for nothing",
        sglang,
        lambda lane: lane.log["decode"]["transfers"]["id-cold-600"].update(seconds=0.0),
        Code.NOT_EXERCISED,
        Verdict.INVALID,
    ),
    (
        "nothing counted",
        sglang,
        lambda lane: lane.moved[2].update(size=0.0),
        Code.NOT_EXERCISED,
        Verdict.INVALID,
    ),
    (
        "decode computed all of it",
        vllm,
        lambda lane: lane.moved[1].update(tokens=0.0),
        Code.NOT_EXERCISED,
        Verdict.INVALID,
    ),
    ("nobody tells", vllm, lambda lane: lane.moved.clear(), Code.NOT_EXERCISED, Verdict.INVALID),
    # errors
    (
        "an error as HTTP 200",
        lightllm,
        lambda lane: lane.story.of("cold").update(finish_reason="error"),
        Code.PD_TRANSFER,
        Verdict.FAIL,
    ),
    (
        "an error in a node's log",
        lightllm,
        lambda lane: lane.log["decode"]["transfers"]["16"].update(errors=["xfer error"]),
        Code.PD_TRANSFER,
        Verdict.FAIL,
    ),
    (
        "a counted failure",
        vllm,
        lambda lane: lane.moved[1].update(failed=2.0),
        Code.PD_TRANSFER,
        Verdict.FAIL,
    ),
    # answers
    (
        "another answer",
        sglang,
        lambda lane: lane.story.of("cold").update(ids=OTHER),
        Code.OUTPUT_DIFFERS,
        Verdict.FAIL,
    ),
    (
        "another answer when warm",
        sglang,
        lambda lane: lane.story.of("warm").update(ids=OTHER),
        Code.OUTPUT_DIFFERS,
        Verdict.FAIL,
    ),
    (
        "the reference is unsteady itself",
        sglang,
        lambda lane: (
            lane.story.of("cold").update(ids=OTHER),
            lane.reference.of("control").update(ids=[7, *IDS[1:]]),
        ),
        Code.OUTPUT_UNSTABLE,
        Verdict.INCONCLUSIVE,
    ),
    (
        "not cold",
        sglang,
        lambda lane: lane.story.of("cold").update(cached={"total": 592}),
        Code.COLD_NOT_COLD,
        Verdict.INVALID,
    ),
    (
        "a request refused",
        sglang,
        lambda lane: lane.story.of("cold").update(error="answered 500"),
        Code.REQUEST_FAILED,
        Verdict.INVALID,
    ),
    (
        "too few tokens",
        sglang,
        lambda lane: lane.story.of("cold").update(ids=IDS[:3], completion_tokens=3),
        Code.OUTPUT_COUNT,
        Verdict.FAIL,
    ),
    # the control, and the reference
    (
        "counting without a request",
        sglang,
        lambda lane: lane.moved[0].update(size=100.0),
        Code.CONTROL_FAILED,
        Verdict.INVALID,
    ),
    (
        "the reference ran otherwise",
        sglang,
        lambda lane: lane.reference_config.update(page_size=1),
        Code.REFERENCE_UNFIT,
        Verdict.INVALID,
    ),
    (
        "the reference has nodes of its own",
        sglang,
        lambda lane: lane.reference_config.clear(),
        Code.REFERENCE_UNFIT,
        Verdict.INVALID,
    ),
    (
        "the reference failed",
        sglang,
        lambda lane: lane.reference.of("cold").update(error="answered 500", ids=[]),
        Code.REFERENCE_UNFIT,
        Verdict.INVALID,
    ),
    (
        "the reference is empty",
        sglang,
        lambda lane: lane.reference.exchanges.clear(),
        Code.REFERENCE_UNFIT,
        Verdict.INVALID,
    ),
    (
        "a prompt that is no text",
        lightllm,
        lambda lane: no_text(lane.story),
        Code.REFERENCE_UNFIT,
        Verdict.INVALID,
    ),
    (
        "a prompt that was not asked",
        sglang,
        lambda lane: lane.story.exchanges.pop(0),
        Code.EVIDENCE_MISSING,
        Verdict.INVALID,
    ),
]


@pytest.mark.parametrize(
    ("lane", "damage", "code", "verdict"), [fault[1:] for fault in FAULTS], ids=[fault[0] for fault in FAULTS]
)
def test_every_fault_is_named(
    lane: Callable[[], Lane], damage: Damage, code: Code, verdict: Verdict, tmp_path: Path
) -> None:
    damaged = lane()
    damage(damaged)
    found, codes = outcome(damaged.judged(tmp_path))
    assert code in codes
    assert found is verdict


def test_what_no_node_tells_is_said(tmp_path: Path) -> None:
    lane = lightllm()
    for role in NODES:
        lane.config[role]["dtype"] = None
    lane.reference_config.pop("dtype")
    result = lane.judged(tmp_path)
    assert outcome(result) == (Verdict.PASS, set())
    assert (result.metrics["settings_equal"], result.metrics["settings_not_told"]) == (3, "dtype")
    assert result.told.endswith("3 settings equal, 1 unset or not told")


def test_a_mismatch_names_the_key_and_both_values(tmp_path: Path) -> None:
    lane = lightllm()
    lane.config["decode"]["max_req_total_len"] = 16384
    (finding,) = lane.judged(tmp_path).findings
    assert finding.where == "max_req_total_len"
    assert all(word in finding.message for word in ("master 8192", "prefill 8192", "decode 16384"))


def test_a_warm_request_may_move_nothing(tmp_path: Path) -> None:
    """The decode node may hold it all: only cold requests prove a transfer."""
    lane = lightllm()
    assert "32" not in lane.log["decode"]["transfers"]
    assert lane.judged(tmp_path).verdict is Verdict.PASS


def test_where_the_reference_has_no_control_its_warm_answer_is_one(tmp_path: Path) -> None:
    lane = sglang()
    lane.reference.exchanges.pop()
    lane.story.of("cold")["ids"] = OTHER
    assert Code.OUTPUT_DIFFERS in outcome(lane.judged(tmp_path))[1]


def test_without_a_reference_a_differing_warm_answer_is_unexplained(tmp_path: Path) -> None:
    lane = sglang()
    lane.story.of("warm")["ids"] = OTHER
    result = lane.judged(tmp_path, reference=False)
    assert outcome(result) == (Verdict.INCONCLUSIVE, {Code.OUTPUT_UNSTABLE})


def test_a_lane_without_nodes_is_skipped(tmp_path: Path) -> None:
    lane = sglang()
    lane.story.notes["skipped"] = "this lane has no prefill and decode nodes"
    assert outcome(lane.judged(tmp_path)) == (Verdict.SKIPPED, {Code.NOT_RUN})


@pytest.mark.parametrize("name", ["exchanges.jsonl", "facts.json", TRANSFERS])
def test_broken_evidence_is_invalid(name: str, tmp_path: Path) -> None:
    sglang().judged(tmp_path)
    folder = tmp_path / "pd" / "pd-parity"
    (folder / name).write_bytes(b'\xff{"leg": ')
    params = PdParityParams(reference="one/cache-boundary")
    assert outcome(CHECK.judge(params, folder)) == (Verdict.INVALID, {Code.EVIDENCE_MISSING})
    (folder / name).unlink()
    assert outcome(CHECK.judge(params, folder)) == (Verdict.INVALID, {Code.EVIDENCE_MISSING})


def test_a_reference_that_is_gone_is_invalid(tmp_path: Path) -> None:
    sglang().judged(tmp_path)
    folder = tmp_path / "pd" / "pd-parity"
    result = CHECK.judge(PdParityParams(reference="nowhere/at-all"), folder)
    assert outcome(result) == (Verdict.INVALID, {Code.EVIDENCE_MISSING})


@pytest.mark.parametrize(
    ("sizes", "found"),
    [
        ((6000, 6000, 12000), set()),
        ((6010, 6000, 12000), set()),
        ((6000, 12000, 12000), {"600"}),  # as long as the second, and half as much
        ((6000, 6010, 5000), {"1200"}),
        ((2000, 6000, 12000), {"600"}),
    ],
)
def test_bytes_are_held_against_those_of_other_requests(
    tmp_path: Path, sizes: tuple[int, int, int], found: set[str]
) -> None:
    lengths = ("600", "600b", "1200")
    made = Story([exchange("cold", case, asked_tokens=int(case.rstrip("b"))) for case in lengths])
    moved = [
        Moved(leg="cold", case=case, role="prefill", requests=1, size=size)
        for case, size in zip(lengths, sizes, strict=True)
    ]
    told = pd_proof.transfers(load_evidence(made.write(tmp_path)), moved, "cold")
    assert {case for finding in told for case in lengths if f"cold {case}:" in finding.message} == found


def test_a_broken_control_hides_no_fault_of_another_case(tmp_path: Path) -> None:
    """It is unfit, and so does not count as unsteady."""
    lane = sglang()
    for story in (lane.story, lane.reference):
        story.exchanges += [one | more(one) for one in story.exchanges]
    lane.moved += [one | {"case": "700"} for one in lane.moved if one["case"]]
    lane.log["prefill"]["transfers"]["id-cold-700"] = {"size": 4096.0}
    lane.log["decode"]["transfers"]["id-cold-700"] = {"seconds": 0.2}
    assert outcome(lane.judged(tmp_path / "clean")) == (Verdict.PASS, set())
    lane.story.of("cold")["ids"] = OTHER
    lane.reference.exchanges[-1].update(ids=IDS[:3], completion_tokens=3)
    verdict, codes = outcome(lane.judged(tmp_path / "broken"))
    assert (verdict, codes) == (Verdict.FAIL, {Code.OUTPUT_DIFFERS, Code.REFERENCE_UNFIT})


def more(one: dict[str, Any]) -> dict[str, Any]:
    """The same request with another prompt of the same length."""
    return {
        "case": "700",
        "request_id": f"id-{one['leg']}-700",
        "prompt": [7, *range(1, LENGTH)],
        "ids": [*IDS[:-1], 7],
    }


@pytest.mark.parametrize(("reference", "code"), [(True, Code.REFERENCE_UNFIT), (False, Code.NOT_EXERCISED)])
def test_answers_that_cannot_show_damage(tmp_path: Path, reference: bool, code: Code) -> None:
    lane = sglang()
    for story in (lane.story, lane.reference):
        for one in story.exchanges:
            one["ids"] = [0] * len(IDS)
    assert outcome(lane.judged(tmp_path, reference=reference)) == (Verdict.INVALID, {code})


def test_a_length_that_is_there_twice_is_refused() -> None:
    assert CHECK.problems(PdParityParams(lengths=(600, 600))) != []
