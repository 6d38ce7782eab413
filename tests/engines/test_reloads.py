"""What each engine's configuration says of its second cache tier, and what counters say of two moments."""

from typing import Any

import pytest

from harness.engines import ENGINES
from harness.engines import counter_names as names
from harness.engines.base import AcceptCounters, KvCapacity
from harness.engines.made_up import made_up_acceptance
from harness.errors import TargetError

LLAMACPP: dict[str, Any] = {"max_length": 4096, "n_parallel": 3, "cache_ram": "8192 MiB"}
LIGHTLLM: dict[str, Any] = {
    "hit_unit": 128,
    "kv_tokens": 4096,
    "cpu_tokens": None,
    "enable_cpu_cache": True,
    "cpu_cache_token_page_size": 256,
}
SGLANG: dict[str, Any] = {"page_size": 64, "kv_tokens": 8192, "enable_hierarchical_cache": True}
VLLM: dict[str, Any] = {
    "cache_config.block_size": 16,
    "kv_tokens": 10_000,
    "cache_config.kv_offloading_size": 4.0,
}


@pytest.mark.parametrize(
    ("engine", "config", "tokens", "expected"),
    [
        ("llamacpp", LLAMACPP, 2304, 2303),
        ("llamacpp", LLAMACPP | {"cache_ram": "disabled"}, 2304, 0),
        ("llamacpp", LLAMACPP | {"cache_ram": None}, 2304, 2303),  # a log that tells nothing: not known off
        ("lightllm", LIGHTLLM, 2304, 2048),  # larger pages than the KV cache's, which would give 2176
        ("lightllm", LIGHTLLM, 2305, 2304),
        ("lightllm", LIGHTLLM | {"cpu_cache_token_page_size": 64}, 129, 0),  # a prompt too short to copy
        ("lightllm", LIGHTLLM | {"cpu_cache_token_page_size": 200}, 200, 0),
        ("lightllm", LIGHTLLM | {"cpu_cache_token_page_size": 64}, 257, 256),
        ("lightllm", LIGHTLLM | {"enable_cpu_cache": False}, 2304, 0),
        ("sglang", SGLANG, 2304, 2240),
        ("sglang", SGLANG | {"enable_hierarchical_cache": False}, 2304, 0),
        ("vllm", VLLM, 2304, 2288),
        ("vllm", VLLM | {"cache_config.kv_offloading_size": None}, 2304, 0),
    ],
)
def test_how_much_comes_back(engine: str, config: dict[str, Any], tokens: int, expected: int) -> None:
    assert ENGINES[engine].expected_reload(tokens, config) == expected


@pytest.mark.parametrize(
    ("engine", "config", "tokens", "expected"),
    [
        ("sglang", SGLANG, 2305, 2304),
        *(
            ("sglang", SGLANG | {"speculative_algorithm": name}, tokens, hit)
            for name in ("EAGLE", "EAGLE3", "NEXTN", "FROZEN_KV_MTP")
            for tokens, hit in ((2304, 2240), (2305, 2240), (2306, 2304))
        ),
        ("sglang", SGLANG | {"speculative_algorithm": "EAGLE", "page_size": 1}, 300, 298),
        ("sglang", SGLANG | {"speculative_algorithm": "STANDALONE"}, 2305, 2304),
        ("sglang", SGLANG | {"speculative_algorithm": None}, 2305, 2304),
        ("vllm", VLLM, 2305, 2304),
        *(
            ("vllm", VLLM | {"speculative_config.method": name}, 2305, 2288)
            for name in ("eagle", "eagle3", "mtp", "dflash", "dspark")
        ),
        ("vllm", VLLM | {"speculative_config.method": "mtp"}, 17, 0),
        ("vllm", VLLM | {"speculative_config.method": "mtp"}, 16, 0),
        ("vllm", VLLM | {"speculative_config.method": "draft_model"}, 2305, 2304),
        (
            "vllm",
            VLLM | {"speculative_config.method": "mtp", "speculative_config.disable_eagle_block_drop": True},
            2305,
            2304,
        ),
    ],
)
def test_a_drafter_that_reads_hidden_states_shortens_the_hit(
    engine: str, config: dict[str, Any], tokens: int, expected: int
) -> None:
    assert ENGINES[engine].expected_hit(tokens, config) == expected


@pytest.mark.parametrize(
    ("engine", "config", "lengths"),
    [
        ("llamacpp", LLAMACPP, (64, 64, 64)),  # one for each slot
        ("lightllm", LIGHTLLM, (2304, 2304)),
        ("sglang", SGLANG, (2304,) * 4),
        ("vllm", VLLM, (2304,) * 5),
    ],
)
def test_what_pushes_a_prompt_out(engine: str, config: dict[str, Any], lengths: tuple[int, ...]) -> None:
    assert ENGINES[engine].evicting(2304, config) == lengths


@pytest.mark.parametrize(("engine", "config"), [("lightllm", LIGHTLLM), ("sglang", SGLANG), ("vllm", VLLM)])
def test_what_pushes_out_exceeds_the_device(engine: str, config: dict[str, Any]) -> None:
    device = ENGINES[engine].capacity(config).device
    assert device is not None
    for tokens in (1, 100, device - 1, device, device + 1):
        assert sum(ENGINES[engine].evicting(tokens, config)) > device


def test_a_configuration_that_does_not_tell() -> None:
    for engine in ENGINES.values():
        with pytest.raises(TargetError):
            engine.evicting(2304, {})


def test_vllm_tells_its_device_only() -> None:
    assert ENGINES["vllm"].capacity(VLLM) == KvCapacity(device=10_000)
    without = VLLM | {"cache_config.kv_offloading_size": None}
    assert ENGINES["vllm"].capacity(without) == KvCapacity(device=10_000, host=0)


def test_counters_between_two_scrapes() -> None:
    before = {"vllm:spec_decode_num_drafts_total": 10.0, "vllm:spec_decode_num_accepted_tokens_total": 20.0}
    after = {"vllm:spec_decode_num_drafts_total": 16.0, "vllm:spec_decode_num_accepted_tokens_total": 44.0}
    assert names.accepted(before, after) == AcceptCounters(accepted=24, steps=6)
    assert names.accepted({}, {}) is None
    assert (
        names.grown(names.HOST_HITS, {}, {names.HOST_HITS[0]: 512.0}) == 512
    )  # absent until it first counts
    assert names.grown(names.HOST_HITS, {}, {"sglang:cached_tokens_total{cache_source=device}": 4.0}) is None


def test_acceptance_that_is_made_up() -> None:
    config = {"speculative_config.method": "mtp", "speculative_config.synthetic_acceptance_rates": None}
    assert made_up_acceptance({"SGLANG_SIMULATE_ACC_LEN": "-1"}, config) == []
    config["speculative_config.rejection_sample_method"] = "synthetic"
    assert made_up_acceptance({"SGLANG_SIMULATE_ACC_LEN": "3"}, config) == [
        "SGLANG_SIMULATE_ACC_LEN=3",
        "speculative_config.rejection_sample_method=synthetic",
    ]
