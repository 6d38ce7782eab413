"""What a plan tells of two lanes that the run would find unequal for certain."""

from pathlib import Path
from typing import Any

import pytest

from harness.executors.plan import make_plan
from harness.executors.planned import Plan
from harness.host.gpu import GpuBook
from harness.host.gpu.described import load_inventory
from harness.host.ports import PortBook
from harness.scenario.model import Lane, ModelSpec, Pair, Scenario, ServerSpec

EIGHT = Path(__file__).parents[2] / "labs" / "inventory-8xh200.yaml"
FLAGS = {"--tp": "1"}
ENDING = "and the pair does not exempt it (`may_differ`)"


@pytest.fixture(autouse=True)
def own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_LOCK_DIR", str(tmp_path / "locks"))


def lane(name: str, *servers: ServerSpec, path: Path = Path("/models/not-here"), **more: Any) -> Lane:
    more.setdefault("checks", {"gsm8k": {}})
    return Lane(
        name=name,
        engine="lightllm",
        python="/no/such/python",
        model=ModelSpec(path=str(path)),
        servers=servers or (ServerSpec(gpus=1, flags=dict(FLAGS)),),
        **more,
    )


def server(gpus: int = 1, flags: dict[str, Any] | None = None, **more: Any) -> ServerSpec:
    return ServerSpec(gpus=gpus, flags={**FLAGS, **(flags or {})}, **more)


def planned(baseline: Lane, candidate: Lane, *may_differ: str) -> Plan:
    pair = Pair(name="p", baseline="a", candidate="b", may_differ=may_differ)
    lanes = {one.name: one for one in (baseline, candidate)}
    scenario = Scenario(name="s", source=Path("s.yaml"), lanes=lanes, pairs={"p": pair})
    return make_plan(scenario, PortBook(), GpuBook(load_inventory(EIGHT)))


def told(baseline: Lane, candidate: Lane, *may_differ: str) -> list[str]:
    front = "lane `b`: pair `p`: "
    problems = planned(baseline, candidate, *may_differ).problems
    return [text.removeprefix(front) for text in problems if text.startswith(front)]


def test_equal_lanes_are_equal() -> None:
    """Their ports, GPUs and folders are their own."""
    assert told(lane("a"), lane("b")) == []
    assert told(lane("a", server(4)), lane("b", server(4))) == []


def test_a_flag() -> None:
    other = lane("b", server(flags={"--max_req_total_len": "2"}))
    said = f"flags.--max_req_total_len is '2' on b and is not set on a, {ENDING}"
    assert told(lane("a"), other) == [said]
    assert told(lane("a"), other, "flags.--max_req_*") == []


@pytest.mark.parametrize(
    ("other", "key"),
    [
        (lane("b", server(env={"LIGHTLLM_X": "1"})), "env.LIGHTLLM_X"),
        (lane("b", server(gpus=2)), "gpus"),
        (lane("b", checks={"smoke": {}, "gsm8k": {}}), "check.smoke."),
        (lane("b", checks={"gsm8k": {"num_concurrent": 3}}), "check.gsm8k.num_concurrent"),
    ],
)
def test_what_else_is_certain(other: Lane, key: str) -> None:
    found = told(lane("a"), other)
    assert found
    assert all(text.startswith(key) for text in found), found


def test_what_runs_after_the_pairs_check_counts_for_nothing() -> None:
    later: dict[str, Any] = {"gsm8k": {}, "smoke": {}}
    assert told(lane("a"), lane("b", checks=later)) == []


def test_a_check_that_may_yet_be_left_out_is_not_certain() -> None:
    first = lane("a", checks={"pause-resume": {}, "gsm8k": {}})
    assert told(first, lane("b", checks={"pause-resume": {"reference": "a"}, "gsm8k": {}})) == []
    assert told(first, lane("b", checks={"pause-resume": {"output_tokens": 9}, "gsm8k": {}})) != []


def test_other_roles_are_told_shortly() -> None:
    nodes = [server(role=role, host="127.0.0.1") for role in ("prefill", "decode")]
    found = told(lane("a"), lane("b", *nodes, server(0, role="master")))
    assert len(found) == 9
    assert "more settings differ: " in found[-1]


def test_copies_of_one_model_are_equal(tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}" if name != "three" else "{ }", encoding="utf-8")
    assert told(lane("a", path=tmp_path / "one"), lane("b", path=tmp_path / "two")) == []
    found = told(lane("a", path=tmp_path / "one"), lane("b", path=tmp_path / "three"))
    assert [text.partition(" ")[0] for text in found] == ["model.digest"]


def test_a_masked_secret_is_no_difference_as_at_run() -> None:
    """Whatever repeats the secret is masked with it."""
    a, b = [
        lane(name, server(env={"HF_TOKEN": secret, "LIGHTLLM_X": f"with {secret}"}))
        for name, secret in (("a", "sesame-open"), ("b", "sesame-shut"))
    ]
    assert told(a, b) == []


def test_a_lane_that_is_skipped_is_compared_with_nothing() -> None:
    assert told(lane("a", skip="broken"), lane("b", server(flags={"--max_req_total_len": "2"}))) == []


def test_the_time_limit_of_a_lane_is_that_of_its_checks_and_no_difference() -> None:
    patient = lane("b", checks={"smoke": {}, "pause-resume": {"request_s": 5}, "gsm8k": {}})
    patient = patient.model_copy(update={"timeouts": patient.timeouts.model_copy(update={"request_s": 120})})
    found = planned(lane("a", checks={"smoke": {}, "pause-resume": {}, "gsm8k": {}}), patient)
    assert not any("pair `p`" in text for text in found.problems)
    checks = {check.name: check for one in found.lanes if one.lane.name == "b" for check in one.checks}
    limits = {name: check.params.model_dump().get("request_s") for name, check in checks.items()}
    assert limits == {"smoke": 120, "pause-resume": 5, "gsm8k": None}
    assert checks["smoke"].params_given["request_s"] == 120  # so that the judge reads the same
    assert found.scenario.lanes["b"].checks["smoke"]["request_s"] == 120
    assert "request_s" not in found.scenario.lanes["a"].checks["smoke"]
