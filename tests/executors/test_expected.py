"""Flags of the scenario held against the running server's own configuration."""

import pytest

from harness.executors.expected import _differing
from harness.scenario.model import FlagValue, Scalar


@pytest.mark.parametrize(
    ("flag", "given", "config", "differs"),
    [
        ("--llm_kv_type", "fp8kv_dsa", {"llm_kv_type": "None"}, True),
        ("--llm_kv_type", "fp8kv_dsa", {"llm_kv_type": "fp8kv_dsa"}, False),
        ("--page-size", 64, {"page_size": 1}, True),
        ("--mem-fraction", "0.80", {"mem_fraction": 0.8}, False),
        ("--enable_prefill_cudagraph", True, {"enable_prefill_cudagraph": False}, True),
        ("--enable_prefill_cudagraph", True, {"enable_prefill_cudagraph": True}, False),
        ("--kv-cache-dtype", "auto", {"kv_cache_dtype": "bfloat16"}, False),  # resolving it was asked for
        ("--unknown", 3, {"other": 4}, False),
        ("--told-as-null", 3, {"told_as_null": None}, False),
        ("--one", "/models/x", {"one": '["/models/x"]'}, False),
        ("--one", "/models/x", {"one": '["/models/y"]'}, True),
        ("--flash-attn", "on", {"flash_attn": "enabled"}, False),
        ("--cache-ram", 0, {"cache_ram": "disabled"}, False),
        ("--flash-attn", "on", {"flash_attn": "disabled"}, True),
        ("--list", [1, 2], {"list": "[1]"}, False),
    ],
)
def test_differing(flag: str, given: FlagValue, config: dict[str, Scalar | None], differs: bool) -> None:
    assert bool(_differing({flag: given}, config)) == differs
