"""What a plan tells before anything is started: GPUs, lengths and tokenizers that do not fit."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.checks import CHECKS
from harness.engines import ENGINES
from harness.executors.plan import make_plan
from harness.host.gpu import GpuBook, GpuSource, Inventory
from harness.host.gpu.described import load_inventory
from harness.host.ports import PortBook
from harness.scenario.load import load
from harness.scenario.model import Lane, ModelSpec, Scenario, ServerSpec

SHIPPED = Path(__file__).parents[2] / "scenarios"
NEW = ("leases", "it asks for", "tokenizer", "cpu_any_of")
EIGHT = Path(__file__).parents[2] / "labs" / "inventory-8xh200.yaml"
TOKENIZER = {
    "version": "1.0",
    "pre_tokenizer": {"type": "Whitespace"},
    "model": {"type": "WordLevel", "vocab": {"A": 0, "The": 1, "[UNK]": 2}, "unk_token": "[UNK]"},
}
HERE = Path("/models/not-here")


@pytest.fixture(autouse=True)
def own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_LOCK_DIR", str(tmp_path / "locks"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A directory with all that prompts need."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}", encoding="utf-8")
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER), encoding="utf-8")
    return folder


def lane(
    name: str = "a", *servers: ServerSpec, path: Path = HERE, engine: str = "lightllm", **more: Any
) -> Lane:
    """On an interpreter that is not there: what that says is left out by `problems`."""
    return Lane(
        name=name,
        engine=engine,
        python="/no/such/python",
        model=ModelSpec(path=str(path)),
        servers=servers or (ServerSpec(gpus=1),),
        **more,
    )


def flagged(gpus: int = 1, role: Any = "normal", **flags: Any) -> ServerSpec:
    """`max_req_total_len=1` is `--max_req_total_len: 1`."""
    return ServerSpec(role=role, gpus=gpus, flags={f"--{name}": value for name, value in flags.items()})


def problems(*lanes: Lane) -> list[str]:
    scenario = Scenario(name="s", source=Path("s.yaml"), lanes={lane.name: lane for lane in lanes})
    found = make_plan(scenario, PortBook(), GpuBook(load_inventory(EIGHT))).problems
    apart = ("no interpreter", "there is no model", "has no dir", "network card", "must be written out")
    return [problem for problem in found if not any(text in problem for text in apart)]


# GPUs


@pytest.mark.parametrize(
    ("gpus", "flags", "sentence"),
    [
        (1, {}, ""),
        (4, {"tp": 4}, ""),
        (4, {"tp": "4", "dp": 4}, ""),
        (4, {"tp": 8}, "normal leases 4 GPU(s) (`gpus:`) and would use 8 (--tp 8): set `gpus: 8`, or mend"),
        (8, {"tp": 4}, "normal leases 8 GPU(s) (`gpus:`) and would use 4 (--tp 4): set `gpus: 4`, or mend"),
        (0, {}, "normal leases 0 GPU(s) (`gpus:`) and would use 1 (--tp is not given): set `gpus: 1`"),
        (80, {"tp": 8}, "set `gpus: 8`"),  # more than there are: not only SKIPPED
    ],
)
def test_gpus_and_ranks(gpus: int, flags: dict[str, Any], sentence: str) -> None:
    found = problems(lane("a", flagged(gpus, **flags)))
    assert len(found) == bool(sentence)
    assert all(sentence in problem for problem in found)


def test_gpus_are_counted_for_each_server() -> None:
    """A master computes nothing; a lane that leases the right sum for the wrong servers is wrong."""
    servers = (flagged(6, "prefill", tp=4), flagged(2, "decode", tp=4), flagged(0, "master"))
    found = problems(lane("a", *servers))
    assert [problem.partition(" leases ")[0] for problem in found] == [
        "lane `a`: prefill",
        "lane `a`: decode",
    ]
    assert (
        problems(lane("a", *(flagged(4, role, tp=4) for role in ("prefill", "decode")), flagged(0, "master")))
        == []
    )
    assert "would use 0 (a master computes nothing): set `gpus: 0`" in "".join(
        problems(lane("a", flagged(1, "prefill"), flagged(1, "decode"), flagged(1, "master")))
    )


def test_a_misspelt_condition_on_a_machine_without_gpus_is_told_as_such(tmp_path: Path) -> None:
    """What is misspelt says nothing of the hardware: the lane is not skipped, and fits on no machine here."""
    small = tmp_path / "one.yaml"
    small.write_text("gpus:\n  - {name: NVIDIA H200, sm: 90, memory_mib: 144384}\n", encoding="utf-8")
    wide = lane("wide", flagged(4, tp=4), requires={"gppu": "hopper"})
    fitting = lane("fitting", flagged(1))
    scenario = Scenario(name="s", source=Path("s.yaml"), lanes={"wide": wide, "fitting": fitting})
    plan = make_plan(scenario, PortBook(), GpuBook(load_inventory(small)))
    said = "lane `wide`: requires: there is no condition `gppu`; did you mean gpu?"
    assert said in plan.problems
    assert plan.schedule is not None
    assert plan.schedule.order == ("fitting",)
    nothing = GpuBook(cast("GpuSource", SimpleNamespace(inventory=lambda: Inventory((), "no driver"))))
    plan = make_plan(scenario.model_copy(update={"lanes": {"wide": wide}}), PortBook(), nothing)
    assert said in plan.problems
    assert plan.schedule is None


@pytest.mark.parametrize(
    "requires",
    [
        {"min_sm": "hopper"},
        {"sm": "90"},
        {"gpu_memory_gib": "80"},
        {"gpu": 5},
        {"nvlink": "yes"},
        {"gpu": []},
    ],
)
def test_a_malformed_condition_is_told_and_not_tried(requires: dict[str, Any]) -> None:
    (problem,) = problems(lane("a", flagged(2, tp=2), requires=requires))
    assert f"requires.{next(iter(requires))} must be " in problem


def test_a_lane_that_is_skipped_by_hand_may_have_any_number() -> None:
    assert problems(lane("a", flagged(3, tp=4), skip="not yet")) == []


# Lengths


@pytest.mark.parametrize(
    ("check", "most"),
    [
        ({"cache-boundary": {"lengths": [400, 401], "output_tokens": 9}}, 410),
        ({"pause-resume": {"input_tokens": 100, "output_tokens": 50}}, 150),
        ({"cpu-reload": {"length": 300, "output_tokens": 10, "tier": False}}, 310),
        ({"accept-length": {"prompt_tokens": 300, "output_tokens": 20}}, 320),
        ({"pd-parity": {"lengths": [300, 200], "output_tokens": 20}}, 320),
        ({"mine": {"kind": "cpu-reload", "length": 300, "output_tokens": 10, "tier": False}}, 310),
    ],
)
def test_lengths_and_limits(check: dict[str, Any], most: int) -> None:
    """To the token, for a limit of requests and for one of the pool; nothing where there is none."""
    assert problems(lane("a", checks=check)) == []
    for flags, taken in (
        ({"max_req_total_len": most}, most),
        ({"max_total_token_num": most + 36}, most),
        ({"max_req_total_len": most + 1, "max_total_token_num": most + 100}, most),
    ):
        assert problems(lane("a", flagged(**flags), checks=check)) == [], (flags, taken)
    for flags in ({"max_req_total_len": most - 1}, {"max_total_token_num": most + 35}):
        found = problems(lane("a", flagged(**flags), checks=check))
        assert len(found) == 1
        (name,) = check
        assert f"check `{name}`: it asks for" in found[0]
        assert f"normal takes {most - 1} (--max_" in found[0]


def test_the_narrowest_server_of_a_lane_counts() -> None:
    servers = (
        flagged(1, "prefill", max_req_total_len=400),
        flagged(1, "decode", max_req_total_len=300),
        flagged(0, "master", max_req_total_len=200),
    )
    check = {"pd-parity": {"lengths": [199], "output_tokens": 2}}
    (found,) = problems(lane("a", *servers, checks=check))
    assert "it asks for 199 + 2 tokens, and master takes 200 (--max_req_total_len 200)" in found


def test_what_a_reference_asked_is_asked_again() -> None:
    asked = {"cache-boundary": {"lengths": [250, 260], "output_tokens": 40}}
    reference = lane("one", flagged(max_req_total_len=500), checks=asked)
    servers = (flagged(1, "prefill"), flagged(1, "decode"), flagged(0, "master", max_req_total_len=299))
    # its own lengths, 2307 and 32, are not asked
    other = lane("pd", *servers, checks={"pd-parity": {"reference": "one/cache-boundary"}})
    (found,) = problems(reference, other)
    assert "lane `pd`: check `pd-parity`: it asks for 260 + 40 tokens, and master takes 299" in found


def test_a_reference_that_is_nowhere_is_told_once() -> None:
    (found,) = problems(
        lane("pd", flagged(max_req_total_len=10), checks={"pd-parity": {"reference": "no/where"}})
    )
    assert "there is no check `where`" in found


@pytest.mark.parametrize(
    ("engine", "flags", "fits"),
    [
        ("sglang", {"context-length": 302, "device": "cpu"}, True),
        ("sglang", {"context-length": 301, "device": "cpu"}, False),
        ("sglang", {"max-total-tokens": 301, "device": "cpu"}, False),
        ("vllm", {"max-model-len": 300}, True),
        ("vllm", {"max-model-len": 299}, False),
        ("llamacpp", {"ctx-size": 1024, "parallel": 2}, True),
        ("llamacpp", {"ctx-size": 1024, "parallel": 4}, False),
    ],
)
def test_limits_of_other_engines(engine: str, flags: dict[str, Any], fits: bool, model: Path) -> None:
    check = {"accept-length": {"prompt_tokens": 280, "output_tokens": 20}}
    (model / "m.gguf").write_bytes(b"GGUF")
    path = model / "m.gguf" if engine == "llamacpp" else model
    found = problems(lane("a", flagged(0, **flags), path=path, engine=engine, checks=check))
    assert fits != any("it asks for 280 + 20 tokens, and normal takes" in problem for problem in found)


@pytest.mark.parametrize(
    ("engine", "flags", "most"),
    [
        ("sglang", {"max-running-requests": 3, "device": "cpu"}, 3),
        ("vllm", {"max-num-seqs": 3}, 3),
        ("vllm", {"max-num-seqs": 3, "data-parallel-size": 2}, None),  # of each replica
        ("llamacpp", {"parallel": 3}, 3),
        ("llamacpp", {"np": -1}, None),
        ("llamacpp", {}, None),
        ("lightllm", {"running_max_req_size": 3}, 3),
    ],
)
def test_requests_at_once_and_what_the_server_runs_at_once(
    engine: str, flags: dict[str, Any], most: int | None
) -> None:
    def found(name: str, given: dict[str, Any]) -> list[str]:
        spec = flagged(0, **flags)
        texts = problems(lane("a", spec, engine=engine, checks={name: given}))
        return [text for text in texts if "requests at once" in text]

    for lengths, together in (([300, 301, 302], True), ([300, 301, 302, 303], False)):
        assert found("cache-boundary", {"lengths": lengths, "together": together}) == []
    four = found("cache-boundary", {"lengths": [300, 301, 302, 303]})
    assert len(four) == (most is not None)
    assert all("it asks 4 requests at once, and normal runs 3 at once (--" in text for text in four)
    paused = found("pause-resume", {"concurrency": 4})
    assert len(paused) == (most is not None and engine != "llamacpp")  # which never pauses
    assert found("pause-resume", {"concurrency": 3}) == []


# Cores, flags and references of lanes that will not run


def test_more_cores_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.executors.fitting.cores", lambda: {0: (0,), 1: (1,)})
    nowhere = GpuBook(cast("GpuSource", SimpleNamespace(inventory=lambda: Inventory((), "no driver"))))
    for count, book, told in ((2, nowhere, 0), (3, nowhere, 1), (3, GpuBook(load_inventory(EIGHT)), 0)):
        spec = ServerSpec(cpus=count)  # planned for another machine, nothing is known of its cores
        one = lane("a", spec, engine="llamacpp")
        scenario = Scenario(name="s", source=Path("s.yaml"), lanes={"a": one})
        found = [text for text in make_plan(scenario, PortBook(), book).problems if "cores" in text]
        assert len(found) == told
        assert all("leases 3 CPU cores (`cpus:`), and this process may use 2" in text for text in found)


@pytest.mark.parametrize("engine", ["lightllm", "llamacpp", "sglang", "vllm"])
def test_flags_of_a_lane_that_is_skipped_for_its_hardware_are_spelled_too(engine: str) -> None:
    """And nothing else of its engine, which may be installed elsewhere only."""
    elsewhere = lane("a", flagged(1, tq=1), engine=engine, requires={"gpu": "blackwell"})
    found = [text for text in problems(elsewhere) if "would use" not in text]
    assert len(found) == 1
    assert "flag --tq" in found[0] or "--tq is " in found[0]
    assert problems(lane("a", flagged(1, tq=1), engine=engine, skip="not yet")) == []


def test_who_refers_only_to_a_skipped_lane_is_skipped_by_the_plan() -> None:
    """In the words of the run, and over any number of steps; a lane with another check still runs."""
    lanes = [
        lane("first", skip="not yet", checks={"pause-resume": {}}),
        lane("second", checks={"pause-resume": {"reference": "first"}}),
        lane("third", checks={"pause-resume": {"reference": "second"}}),
        lane("other", checks={"smoke": {}, "pause-resume": {"reference": "first"}}),
    ]
    scenario = Scenario(name="s", source=Path("s.yaml"), lanes={one.name: one for one in lanes})
    plan = make_plan(scenario, PortBook(), GpuBook(load_inventory(EIGHT)))
    whose = "with whose answers it would be compared, was skipped:"
    second = f"lane `first`, {whose} not yet"
    assert {planned.lane.name: planned.skip for planned in plan.lanes} == {
        "first": "not yet",
        "second": second,
        "third": f"lane `second`, {whose} {second}",
        "other": "",
    }
    assert plan.schedule is not None
    assert plan.schedule.order == ("other",)


@pytest.mark.parametrize(
    ("check", "said"),
    [
        ({"cpu-reload": {"control": "calm"}}, "`control: calm/cpu-reload` names a lane that was not chosen"),
        ({"pause-resume": {"reference": "calm/x"}}, "`reference: calm/x` names a lane that was not chosen"),
    ],
)
def test_a_reference_to_a_lane_that_was_not_chosen(check: dict[str, Any], said: str) -> None:
    one = lane("a", checks=check)
    scenario = Scenario(name="s", source=Path("s.yaml"), lanes={"a": one}, left_out=("calm",))
    found = make_plan(scenario, PortBook(), GpuBook(load_inventory(EIGHT))).problems
    assert any(text.endswith(f"{said}: add --lane calm") for text in found), found


# Tokenizers

PROMPTS: dict[str, Any] = {"accept-length": {}}


def test_a_sound_tokenizer(model: Path) -> None:
    assert problems(lane(path=model, checks=PROMPTS)) == []


@pytest.mark.parametrize(
    "text", ["", "{", "{}", "version https://git-lfs.github.com/spec/v1\n", "\udcff\x00"]
)
@pytest.mark.parametrize("engine", ["lightllm", "vllm"])
def test_a_tokenizer_that_cannot_be_read(model: Path, text: str, engine: str) -> None:
    """Even where the server could tell token ids: the file is what is asked first."""
    (model / "tokenizer.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    two = [lane(name, path=model, engine=engine, checks=PROMPTS) for name in "ab"]
    (found,) = problems(*two)
    assert found.startswith("lanes `a`, `b`: check `accept-length`: the tokenizer ")
    assert f"{model}/tokenizer.json cannot be read" in found
    assert found.endswith("copy the model's into its place")


@pytest.mark.parametrize(("engine", "told"), [("lightllm", True), ("sglang", True), ("vllm", False)])
def test_a_tokenizer_that_is_missing(model: Path, engine: str, told: bool) -> None:
    (model / "tokenizer.json").unlink()
    spec = flagged(0, device="cpu") if engine == "sglang" else flagged(1)
    found = problems(lane("a", spec, path=model, engine=engine, checks=PROMPTS))
    sentence = f"check `accept-length`: its prompts need {model}/tokenizer.json, which is not there"
    assert any(sentence in problem for problem in found) == told


def test_a_router_in_front_of_vllm_tells_no_ids(model: Path) -> None:
    (model / "tokenizer.json").unlink()
    servers = (flagged(0, "prefill"), flagged(0, "decode"), flagged(0, "router"))
    found = problems(lane("a", *servers, path=model, engine="vllm", checks={"pd-parity": {}}))
    assert any("which is not there" in problem for problem in found)


@pytest.mark.parametrize("checks", [{}, {"smoke": {}}, {"gsm8k": {"dataset": "arithmetic"}}])
def test_nobody_needs_a_tokenizer_who_makes_no_prompts(model: Path, checks: dict[str, Any]) -> None:
    (model / "tokenizer.json").write_text("garbage", encoding="utf-8")
    assert problems(lane(path=model, checks=checks)) == []


def test_of_a_model_that_is_not_here_nothing_is_said() -> None:
    assert problems(lane(checks=PROMPTS)) == []


@pytest.mark.parametrize("engine", ["lightllm", "llamacpp", "sglang", "vllm"])
@pytest.mark.parametrize("place", ["~nobody-such/model", f"/models/{'x' * 5000}", "a\0b"])
def test_a_path_that_cannot_be_looked_at_is_a_problem_like_others(engine: str, place: str) -> None:
    """As one in a folder of somebody else's is."""
    flags = {"mtp_mode": "eagle_with_att", "mtp_step": 1, "mtp_draft_model_dir": place}
    one = lane("a", flagged(1, **flags), engine=engine, checks=PROMPTS)
    one = one.model_copy(update={"model": ModelSpec(path=place)})
    scenario = Scenario(name="s", source=Path("s.yaml"), lanes={"a": one})
    found = make_plan(scenario, PortBook(), GpuBook(load_inventory(EIGHT))).problems
    assert any(f"{place}" in problem and "model" in problem for problem in found)


# What is shipped


@pytest.mark.parametrize("name", sorted(path.stem for path in SHIPPED.glob("*.yaml")))
def test_the_shipped_scenarios_fit(name: str, model: Path) -> None:
    """On eight H200, with a model that is there: lanes that are skipped elsewhere are planned too."""
    scenario = load(
        name,
        environ={"MODEL_DIR": str(model), "HOME": str(model.parent)},
        engines=ENGINES,
        check_params={kind: check.params for kind, check in CHECKS.items()},
    )
    found = make_plan(scenario, PortBook(), GpuBook(load_inventory(EIGHT))).problems
    assert [problem for problem in found if any(text in problem for text in NEW)] == []
