"""What LightLLM would refuse or rewrite when it starts."""

import json
from pathlib import Path

import pytest

from harness.engines.lightllm.rules import start_problems
from harness.scenario.model import FlagValue

GLM: dict[str, object] = {"model_type": "glm5_next", "kv_lora_rank": 512}


def found(
    tmp_path: Path, flags: dict[str, FlagValue], role: str = "normal", config: dict[str, object] = GLM
) -> list[str]:
    (tmp_path / "config.json").write_text(json.dumps(config))
    return start_problems(role, flags, str(tmp_path))


NORMAL: list[tuple[dict[str, FlagValue], str]] = [
    ({"--mtp_mode": "eagle_with_att"}, "--mtp_mode needs `--mtp_step` above 0"),
    ({"--mtp_mode": "eagle_with_att", "--mtp_step": 0}, "--mtp_mode needs `--mtp_step` above 0"),
    ({"--mtp_step": 2}, "--mtp_step is refused without `--mtp_mode`"),
    ({"--mtp_draft_model_dir": "/"}, "--mtp_draft_model_dir is refused without"),
    (
        {"--mtp_mode": "eagle_with_att", "--mtp_step": 1, "--mtp_draft_model_dir": ["/none/at/all"]},
        "there is no directory /none/at/all",
    ),
    ({"--batch_max_tokens": 256, "--chunked_prefill_size": 257}, "must not be below --chunked_prefill_size"),
    (
        {"--disable_chunked_prefill": True, "--batch_max_tokens": 256, "--max_req_total_len": 512},
        "must not be below --max_req_total_len (512) without chunked prefill",
    ),
    ({"--llm_kv_type": "fp8kv_sph"}, "needs `--kv_quant_calibration_config_path`"),
    (
        {"--llm_kv_type": "fp8kv_spt", "--kv_quant_calibration_config_path": "/none"},
        "there is no file /none",
    ),
    ({"--page_size": 24}, "--linear_att_hash_page_size (512) must be a multiple of --page_size (24)"),
    (
        {
            "--page_size": 16,
            "--linear_att_hash_page_size": 128,
            "--cpu_cache_token_page_size": 100,
            "--enable_cpu_cache": True,
            "--linear_att_page_block_num": 2,
        },
        "--cpu_cache_token_page_size (100) must be a multiple of --page_size (16)",
    ),
    (
        {"--page_size": 16, "--diverse_mode": True, "--router_token_ratio": 0.0},
        "--diverse_mode works with --page_size 1 only",
    ),
    ({"--diverse_mode": True}, "--diverse_mode needs `--router_token_ratio: 0.0`"),
    ({"--enable_cpu_cache": True}, "needs `--linear_att_page_block_num`"),
    (
        {"--enable_cpu_cache": True, "--linear_att_page_block_num": 2, "--cpu_cache_token_page_size": 256},
        "--cpu_cache_token_page_size (256) would be replaced by 1024",
    ),
    ({"--cpu_cache_storage_size": 16}, "does nothing without `--enable_cpu_cache: true`"),
    ({"--mem_fraction": 1}, "--mem_fraction (1) must lie between 0 and 1"),
    ({"--tp": 4, "--dp": 3}, "must be a multiple of --dp"),
]


@pytest.mark.parametrize(("flags", "sentence"), NORMAL)
def test_refused(tmp_path: Path, flags: dict[str, FlagValue], sentence: str) -> None:
    problems = found(tmp_path, flags)
    assert any(sentence in problem for problem in problems), problems


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"--mtp_mode": None, "--mtp_step": 0, "--mtp_draft_model_dir": False},
        {"--batch_max_tokens": 4096, "--chunked_prefill_size": 4096},
        {"--page_size": 16, "--max_req_total_len": 8192},
        {"--llm_kv_type": "fp8kv_dsa"},
        {"--enable_cpu_cache": True, "--linear_att_page_block_num": 2, "--linear_att_hash_page_size": 128},
        {"--mem_fraction": 0.8, "--tp": 4, "--page_size": "x"},
    ],
)
def test_accepted(tmp_path: Path, flags: dict[str, FlagValue]) -> None:
    assert found(tmp_path, flags) == []


def test_a_latent_of_another_width(tmp_path: Path) -> None:
    flags: dict[str, FlagValue] = {"--llm_kv_type": "fp8kv_dsa"}
    nested = found(
        tmp_path, flags, config={"text_config": {"model_type": "glm5_next_text", "kv_lora_rank": 256}}
    )
    assert nested == ["--llm_kv_type fp8kv_dsa packs latents of 512; this model's kv_lora_rank is 256"]


def test_a_model_without_linear_attention_has_no_hash_pages(tmp_path: Path) -> None:
    assert (
        found(tmp_path, {"--page_size": 24, "--enable_cpu_cache": True}, config={"model_type": "llama"}) == []
    )


@pytest.mark.parametrize("config", ["", "[]", '"x"', '{"text_config": 3}', "{", "\0"])
def test_any_model_configuration(tmp_path: Path, config: str) -> None:
    (tmp_path / "config.json").write_text(config)
    assert start_problems("normal", {"--page_size": 16}, str(tmp_path)) == []
    assert start_problems("normal", {"--page_size": 16}, str(tmp_path / "none")) == []


def test_prefill_and_decode(tmp_path: Path) -> None:
    flags: dict[str, FlagValue] = {
        "--max_req_total_len": 8192,
        "--llm_kv_type": "fp8kv_dsa",
        "--page_size": 16,
        "--pd_kv_page_size": 16384,
    }
    for role in ("prefill", "decode"):
        (problem,) = found(tmp_path, flags, role)
        assert "--pd_kv_page_size (16384) cannot hold the whole state" in problem
        assert found(tmp_path, {**flags, "--pd_kv_page_size": 32768}, role) == []
        assert found(tmp_path, {**flags, "--pd_kv_page_size": 32776}, role) != []
        assert found(tmp_path, flags, role, config={"model_type": "deepseek_v32"}) == []
        assert found(tmp_path, {**flags, "--llm_kv_type": "None"}, role) == []
    assert found(tmp_path, flags) == []  # a normal server transfers nothing


def test_decode_has_no_cpu_cache(tmp_path: Path) -> None:
    flags: dict[str, FlagValue] = {"--max_req_total_len": 8192, "--enable_cpu_cache": True}
    (problem,) = found(tmp_path, flags, "decode", config={"model_type": "llama"})
    assert "not for a decode node" in problem


def test_length_is_written_out_for_all_three(tmp_path: Path) -> None:
    for role in ("prefill", "decode", "master"):
        (problem,) = found(tmp_path, {}, role)
        assert "--max_req_total_len must be written out" in problem
    assert found(tmp_path, {"--max_req_total_len": 1, "--mtp_step": 2}, "master") == []
