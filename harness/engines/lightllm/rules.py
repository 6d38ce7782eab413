"""What LightLLM refuses, or quietly rewrites, when it starts: found before it does.

It checks its arguments after minutes of imports, with bare assertions; and it changes some of them without a
word. Each rule here is a sentence that says what to change.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from harness.engines.arguments import ArgumentList
from harness.engines.flags import given
from harness.host.paths import expanded, is_file, is_folder
from harness.scenario.model import FlagValue

# The release that brought a flag, for a checkout that lacks it.
V1_2 = "v1.2.0 (2026-08-10) or later"
LATE_SUMMER = "one newer than 2026-08-21"
SINCE: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "--disable_vision",
            "--llm_kv_type",
            "--linear_att_cache_size",
            "--linear_att_hash_page_size",
            "--linear_att_page_block_num",
            "--linear_att_ssm_data_type",
            "--enable_prefill_cudagraph",
            "--prefill_cudagraph_max_handle_token",
            "--enable_cpu_cache",
            "--cpu_cache_storage_size",
            "--cpu_cache_token_page_size",
            "--enable_disk_cache",
            "--disk_cache_dir",
            "--disk_cache_storage_size",
            "--pd_trans_mode",
            "--pd_master_mode",
            "--pd_kv_page_size",
            "--pd_kv_page_num",
            "--reasoning_parser",
            "--detail_log",
        ),
        V1_2,
    ),
    **dict.fromkeys(
        ("--page_size", "--cache_placement_strategy", "--disable_pd_cache_high_priority"), LATE_SUMMER
    ),
}
CALIBRATED = ("fp8kv_sph", "fp8kv_spt")
HYBRID = ("qwen3_next", "qwen3_5", "glm5_next")  # how `model_type` of models with linear attention begins
FP8_STATE_PAGE = 32768  # tokens of an FP8 transfer page that hold a hybrid model's whole state
LATENT = 512  # width of the latent that fp8kv_dsa packs
DEFAULTS = {"--page_size": 1, "--pd_kv_page_size": 1024, "--linear_att_hash_page_size": 512}


@dataclass(frozen=True, slots=True)
class Setting:
    """One server's role, flags and model, as the rules look at them."""

    role: str
    flags: Mapping[str, FlagValue]
    config: Mapping[str, Any]

    def number(self, flag: str) -> float | None:
        """The flag's number, else its default; None where it has none, or is no number (told elsewhere)."""
        value = given(self.flags, flag)
        try:
            return float(str(DEFAULTS.get(flag) if value is None else value))
        except ValueError:
            return None

    def has(self, flag: str) -> bool:
        return given(self.flags, flag) is not None

    @property
    def transfers(self) -> bool:
        return self.role in ("prefill", "decode")

    @property
    def hybrid(self) -> bool:
        linear = (flag.startswith("--linear_att_") and self.has(flag) for flag in self.flags)
        return any(linear) or _is_hybrid(self.parts())

    def parts(self) -> tuple[Mapping[str, Any], ...]:
        return _parts(self.config)


def start_problems(role: str, flags: Mapping[str, FlagValue], model_path: str) -> list[str]:
    """What LightLLM would refuse or rewrite, one sentence each."""
    setting = Setting(role, flags, _model_config(model_path))
    found = [problem for rule in RULES for problem in rule(setting)] if role != "master" else []
    if role != "normal" and not setting.has("--max_req_total_len"):
        found.append("--max_req_total_len must be written out: master, prefill and decode must agree on it")
    return found


def too_new(flags: Mapping[str, FlagValue], arguments: ArgumentList) -> list[str]:
    """Flags that only later releases than this LightLLM know, set or taken out."""
    return [flag for flag in flags if flag in SINCE and arguments.find(flag) is None]


def is_hybrid(model_path: str) -> bool:
    """Whether part of the model's layers have linear attention, whose state cannot be cut at any token."""
    return _is_hybrid(_parts(_model_config(model_path)))


def _is_hybrid(parts: tuple[Mapping[str, Any], ...]) -> bool:
    return any(str(part.get("model_type", "")).startswith(HYBRID) for part in parts)


def _parts(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """The model's configuration, and that of its language model where it is nested."""
    text = config.get("text_config")
    return (config, text) if isinstance(text, Mapping) else (config,)


def _model_config(path: str) -> Mapping[str, Any]:
    try:
        config = json.loads((expanded(path) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # a missing model is told elsewhere
        return {}
    return config if isinstance(config, dict) else {}


def _speculation(setting: Setting) -> Iterator[str]:
    step = setting.number("--mtp_step") or 0
    if setting.has("--mtp_mode"):
        if step <= 0:
            yield "--mtp_mode needs `--mtp_step` above 0"
    else:
        for flag in ("--mtp_step", "--mtp_draft_model_dir"):
            if setting.has(flag) and (flag != "--mtp_step" or step > 0):
                yield f"{flag} is refused without `--mtp_mode`, such as eagle_with_att"
    drafts = given(setting.flags, "--mtp_draft_model_dir")
    for draft in drafts if isinstance(drafts, list) else [drafts]:
        if draft is not None and not is_folder(expanded(str(draft))):
            yield f"--mtp_draft_model_dir: there is no directory {draft} on this machine"


def _chunks(setting: Setting) -> Iterator[str]:
    batch = setting.number("--batch_max_tokens")
    whole = setting.has("--disable_chunked_prefill")
    flag = "--max_req_total_len" if whole else "--chunked_prefill_size"
    least = setting.number(flag)
    if batch is not None and least is not None and batch < least:
        without = " without chunked prefill" if whole else ""
        yield f"--batch_max_tokens ({batch:.0f}) must not be below {flag} ({least:.0f}){without}"


def _kv_type(setting: Setting) -> Iterator[str]:
    kind = given(setting.flags, "--llm_kv_type")
    file = given(setting.flags, "--kv_quant_calibration_config_path")
    if kind in CALIBRATED and file is None:
        yield f"--llm_kv_type {kind} needs `--kv_quant_calibration_config_path`; fp8kv_dsa needs none"
    if file is not None and not is_file(expanded(str(file))):
        yield f"--kv_quant_calibration_config_path: there is no file {file}"
    for part in setting.parts():
        rank = part.get("kv_lora_rank")
        if kind == "fp8kv_dsa" and rank is not None and rank != LATENT:
            yield f"--llm_kv_type fp8kv_dsa packs latents of {LATENT}; this model's kv_lora_rank is {rank}"


def _pages(setting: Setting) -> Iterator[str]:
    page = setting.number("--page_size")
    if page is None or page <= 1:
        return
    divided = ["--linear_att_hash_page_size"] if setting.hybrid else []
    divided += ["--pd_kv_page_size"] if setting.transfers else []
    divided += ["--cpu_cache_token_page_size"] if setting.has("--cpu_cache_token_page_size") else []
    for flag in divided:
        size = setting.number(flag)
        if size is not None and size % page:
            yield f"{flag} ({size:.0f}) must be a multiple of --page_size ({page:.0f})"
    if setting.has("--diverse_mode"):
        yield "--diverse_mode works with --page_size 1 only"


def _cpu_cache(setting: Setting) -> Iterator[str]:
    if not setting.has("--enable_cpu_cache"):
        for flag in ("--cpu_cache_storage_size", "--cpu_cache_token_page_size", "--enable_disk_cache"):
            if setting.has(flag):
                yield f"{flag} does nothing without `--enable_cpu_cache: true`"
        return
    if setting.role == "decode":
        yield "--enable_cpu_cache is not for a decode node; give it to the prefill node"
    elif setting.hybrid and not setting.has("--linear_att_page_block_num"):
        yield (
            "--enable_cpu_cache of a model with linear attention needs `--linear_att_page_block_num`: its "
            "CPU page is that many hash pages, and the default is ten million"
        )
    elif setting.hybrid and (page := setting.number("--cpu_cache_token_page_size")) is not None:
        block = setting.number("--linear_att_page_block_num") or 0
        forced = (setting.number("--linear_att_hash_page_size") or 0) * block
        if page != forced:
            yield f"--cpu_cache_token_page_size ({page:.0f}) would be replaced by {forced:.0f}; take it out"


def _transfer(setting: Setting) -> Iterator[str]:
    page = setting.number("--pd_kv_page_size") or 0
    fp8 = given(setting.flags, "--llm_kv_type") == "fp8kv_dsa"
    if setting.transfers and fp8 and setting.hybrid and page < FP8_STATE_PAGE:
        yield (
            f"--pd_kv_page_size ({page:.0f}) cannot hold the whole state of one request; with fp8kv_dsa it "
            f"has to be {FP8_STATE_PAGE} on both nodes"
        )


def _memory(setting: Setting) -> Iterator[str]:
    share = setting.number("--mem_fraction")
    if share is not None and not 0 < share < 1:
        yield f"--mem_fraction ({share:g}) must lie between 0 and 1"


def _scheduling(setting: Setting) -> Iterator[str]:
    ratio = setting.number("--router_token_ratio")
    if setting.has("--diverse_mode") and ratio != 0:
        yield "--diverse_mode needs `--router_token_ratio: 0.0`"
    tp, dp = setting.number("--tp") or 1, setting.number("--dp") or 1
    if tp % dp:
        yield f"--tp ({tp:.0f}, all GPUs) must be a multiple of --dp ({dp:.0f})"


RULES: tuple[Callable[[Setting], Iterator[str]], ...] = (
    _speculation,
    _chunks,
    _kv_type,
    _pages,
    _cpu_cache,
    _transfer,
    _memory,
    _scheduling,
)
