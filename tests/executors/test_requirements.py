"""Hardware conditions skip with the reason; a misspelt one is a problem, not a silent yes."""

from itertools import combinations
from typing import Any

import pytest

from harness.executors import requirements
from harness.host.gpu.inventory import Gpu, Inventory, Link

H200 = Gpu(0, "GPU-0", "NVIDIA H200", 90, 143771)
H20 = Gpu(0, "GPU-0", "NVIDIA H20", 90, 97871)
H100 = Gpu(0, "GPU-0", "NVIDIA H100 80GB HBM3", 90, 81559)
A100 = Gpu(0, "GPU-0", "NVIDIA A100-SXM4-80GB", 80, 81920)
L4 = Gpu(0, "GPU-0", "NVIDIA L4", 89, 23034)
L40S = Gpu(0, "GPU-0", "NVIDIA L40S", 89, 46068)
B200 = Gpu(0, "GPU-0", "NVIDIA B200", 100, 183359)


@pytest.fixture(autouse=True)
def _processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements, "cpu_features", lambda: frozenset({"avx2", "fma"}))
    monkeypatch.setattr(requirements, "cpu_model", lambda: "Test CPU")


def machine(*models: Gpu, link: Link = Link.NVLINK) -> Inventory:
    gpus = tuple(
        Gpu(index, f"GPU-{index}", model.name, model.sm, model.memory_mib)
        for index, model in enumerate(models)
    )
    links = {frozenset((one.uuid, other.uuid)): link for one, other in combinations(gpus, 2)}
    return Inventory(gpus, "test", links)


def test_met() -> None:
    assert requirements.unmet({"cpu_any_of": ["avx512f", "avx2"]}, 0) == ""
    assert requirements.unmet({}, 0) == ""
    assert requirements.unmet({}, 0, machine()) == ""
    assert requirements.unmet({}, 8, machine(*[H200] * 8)) == ""
    everything = {"gpu": "hopper", "count": 8, "sm": 90, "min_sm": 80, "gpu_memory_gib": 141, "nvlink": True}
    assert requirements.unmet(everything, 8, machine(*[H200] * 8)) == ""
    assert requirements.unmet(everything, 4, machine(*[H200] * 8, L4)) == ""


def test_unmet_names_what_is_missing_and_what_is_there() -> None:
    reason = requirements.unmet({"cpu_any_of": ["avx512f", "amx_tile"]}, 0)
    assert "avx512f or amx_tile" in reason
    assert "Test CPU" in reason


def test_gpus_are_not_guessed() -> None:
    assert "4 GPU" in requirements.unmet({}, 4)
    assert "nothing is known" in requirements.unmet({"gpu": "hopper"}, 0)


@pytest.mark.parametrize(
    ("requires", "gpus", "found", "reason"),
    [
        (
            {"gpu": "hopper", "sm": 90},
            8,
            machine(L4),
            "needs 8 hopper GPUs (sm 90); this machine has 1 NVIDIA L4 (sm 89, 22 GiB)",
        ),
        (
            {},
            2,
            Inventory((), "NVML", reason="there is no NVIDIA driver here"),
            "needs 2 GPUs; this machine has no GPU: there is no NVIDIA driver here",
        ),
        (
            {"gpu": ["h200", "blackwell"], "count": 8},
            1,
            machine(*[H200] * 7, L4),
            "needs 8 h200 or blackwell GPUs; this machine has 7 NVIDIA H200 (sm 90, 140 GiB) and 1 NVIDIA L4",
        ),
        ({"sm": [100, 103]}, 1, machine(H200), "needs 1 GPU (sm 100 or 103); this machine has 1 NVIDIA H200"),
        ({"min_sm": 90}, 1, machine(L4), "needs 1 GPU (sm 90 or newer); this machine has 1 NVIDIA L4"),
        ({"gpu_memory_gib": 80}, 1, machine(L40S), "needs 1 GPU (at least 80 GiB each); this machine has 1"),
        ({"gpu": "h200"}, 0, machine(L4), "needs 1 h200 GPU; this machine has 1 NVIDIA L4"),
        ({"count": 2}, 0, machine(L4), "needs 2 GPUs; this machine has 1 NVIDIA L4"),
        (
            {"nvlink": True},
            2,
            machine(H100, H100, link=Link.SWITCH),
            "needs 2 GPUs (joined by NVLink); this machine has 2 NVIDIA H100 80GB HBM3 (sm 90, 79 GiB), but",
        ),
    ],
)
def test_the_reason_is_a_sentence(requires: dict[str, Any], gpus: int, found: Inventory, reason: str) -> None:
    assert requirements.unmet(requires, gpus, found).startswith(reason)


def test_gpus_that_were_left_out_are_told() -> None:
    found = Inventory(machine(L4).gpus, "test", notes=("GPU 1 cannot be read: GPU is lost",))
    assert requirements.unmet({}, 2, found).endswith("22 GiB) (GPU 1 cannot be read: GPU is lost)")


@pytest.mark.parametrize(
    ("requires", "fits", "fits_not"),
    [
        ({}, [L4, H200], []),
        ({"gpu": "hopper"}, [H200, H20, H100], [L4, A100, B200]),
        ({"gpu": "Hopper"}, [H200], [L4]),
        ({"gpu": "ada"}, [L4, L40S], [A100, H100]),
        ({"gpu": "h200"}, [H200], [H20, H100]),
        ({"gpu": "h20"}, [H20], [H200]),
        ({"gpu": "L4"}, [L4], [L40S]),
        ({"gpu": "NVIDIA H200"}, [H200], [H20]),
        ({"gpu": "A100-SXM4"}, [A100], [H100]),
        ({"gpu": ["l4", "blackwell"]}, [L4, B200], [H200, L40S]),
        ({"sm": 90}, [H200], [L4, B200]),
        ({"sm": [89, 100]}, [L4, B200], [H200]),
        ({"min_sm": 89}, [L4, B200], [A100]),
        ({"gpu_memory_gib": 80}, [H100, A100, H200], [L40S]),
        ({"gpu_memory_gib": 141}, [H200, B200], [H100]),
        ({"gpu_memory_gib": 180}, [B200], [H200]),
        ({"gpu": "hopper", "gpu_memory_gib": 96}, [H20, H200], [H100, B200]),
        ({"nvlink": True}, [L4], []),  # a condition on groups: see `link`
    ],
)
def test_conditions_pick_gpus(requires: dict[str, Any], fits: list[Gpu], fits_not: list[Gpu]) -> None:
    assert [gpu for gpu in fits + fits_not if requirements.matches(requires, gpu)] == fits


def test_nvlink_is_asked_of_the_group() -> None:
    assert requirements.link({"nvlink": True}) is Link.NVLINK
    assert requirements.link({"nvlink": False}) is requirements.link({}) is Link.UNKNOWN


@pytest.mark.parametrize(
    ("requires", "sentence"),
    [
        ({"cpu_anyof": ["avx2"]}, "did you mean cpu_any_of?"),
        ({"cpu_any_of": "avx2"}, "must be a list of processor features"),
        ({"cpu_any_of": []}, "must be a list"),
        ({"gpus": "hopper"}, "did you mean gpu?"),
        ({"minsm": 90}, "did you mean min_sm?"),
        ({"xyz": 1}, "known: cpu_any_of, gpu, count, sm"),
        ({"gpu": ""}, "family or model"),
        ({"gpu": "-"}, "family or model"),
        ({"gpu": []}, "family or model"),
        ({"gpu": [90]}, "family or model"),
        ({"gpu": 90}, "family or model"),
        ({"count": 0}, "whole number of GPUs"),
        ({"count": True}, "whole number of GPUs"),
        ({"count": "8"}, "whole number of GPUs"),
        ({"sm": 9.0}, "compute capability"),
        ({"sm": []}, "compute capability"),
        ({"sm": [90, "100"]}, "compute capability"),
        ({"min_sm": [90]}, "compute capability"),
        ({"gpu_memory_gib": "80"}, "memory of one GPU"),
        ({"gpu_memory_gib": float("nan")}, "memory of one GPU"),
        ({"gpu_memory_gib": True}, "memory of one GPU"),
        ({"nvlink": "yes"}, "true or false"),
    ],
)
def test_malformed_conditions_are_problems(requires: dict[str, Any], sentence: str) -> None:
    found = requirements.problems(requires)
    assert len(found) == 1
    assert sentence in found[0]
    assert requirements.unmet(requires, 8, machine()) == ""  # told as a problem; nothing else can be said


@pytest.mark.parametrize(
    ("feature", "meant"),
    [
        ("avx512", "avx512f"),
        ("avx-512f", "avx512f"),
        ("AVX512F", "avx512f"),
        ("AVX2", "avx2"),
        ("axv2", "avx2"),
        ("amx", "amx_tile"),
        ("amx-tile", "amx_tile"),
        ("amx_tiles", "amx_tile"),
        ("avx512bf16", "avx512_bf16"),
        ("asimd_dp", "asimddp"),
        ("sse3", "ssse3"),
        ("new_one", "new_ones"),  # this machine's own
    ],
)
def test_a_misspelt_feature_does_not_skip_for_ever(
    feature: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requirements, "cpu_features", lambda: frozenset({"avx2", "new_ones"}))
    (found,) = requirements.problems({"cpu_any_of": ["fma", feature]})
    assert found == f"requires.cpu_any_of: no processor feature is called `{feature}`; did you mean {meant}?"


@pytest.mark.parametrize(
    "feature",
    [
        *("avx512f", "avx512pf", "avx512_bf16", "amx_int8", "amx_fp16", "asimd", "sve2p1", "pni", "sse4_2"),
        *(
            "sha1",
            "crc32",
            "ssbs",
            "sm4",
            "vsx",
            "rvv",
            "zicbom",
            "avx10_2",
            "x",
        ),  # not known, and perhaps real
    ],
)
def test_features_that_exist_or_may(feature: str) -> None:
    assert requirements.problems({"cpu_any_of": [feature]}) == []
