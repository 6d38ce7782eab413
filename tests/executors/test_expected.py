"""Flags of the scenario held against the running server's own configuration."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.codes import Code
from harness.errors import TargetError
from harness.executors.expected import _differing, assert_expected
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


def _asserted(expect: dict[str, Scalar], config: dict[str, Scalar | None]) -> TargetError:
    """What is told of a server that is asked for `expect` and says that it has `config`."""
    server = SimpleNamespace(spec=SimpleNamespace(expect=expect))
    record = SimpleNamespace(role="normal", effective_config=config)
    up = SimpleNamespace(records=[record], entry=SimpleNamespace(log="server.log"))
    with pytest.raises(TargetError) as caught:
        assert_expected(cast("Any", SimpleNamespace(servers=[server])), cast("Any", up))
    assert caught.value.code is Code.CONFIG_REWRITTEN
    return caught.value


def test_a_misspelt_name_is_told_as_such_with_the_nearest() -> None:
    error = _asserted({"kv_dtyp": "fp8"}, {"kv_dtype": "fp8", "dtype": "float32", "max_length": 1})
    assert "has no `kv_dtyp` (nearest: kv_dtype, dtype)" in error.what
    assert "rewrote" not in error.cause
    assert "effective-config.normal.json" in error.fix


@pytest.mark.parametrize("told", ["auto", None])
def test_a_value_that_is_another_one_or_not_told_is_rewritten(told: str | None) -> None:
    error = _asserted({"kv_dtype": "fp8"}, {"kv_dtype": told})
    assert f"kv_dtype is {told!r}, expected 'fp8'" in error.what
    assert "has no" not in error.what
    assert error.cause == "the server rewrote a setting, or does not tell it"
