"""Start arguments: what LightLLM refuses before it starts anything, and what it rewrites without a word."""

from argparse import Namespace
from typing import Any

from harness.simulator.model import Model
from harness.simulator.types import Limits

NODES = ("prefill", "decode")
MASTER = "pd_master"
RUN_MODES = ("normal", *NODES, MASTER)
DEFAULT_CHUNK = 4096
HUGE_BLOCKS = 10_000_000  # `linear_att_page_block_num` that switches big pages off
MB_PER_TOKEN = {
    "None": 0.03125,
    "fp8kv_dsa": 0.01953125,
}  # one token of KV cache; half precision for the rest
RESERVED = 36  # tokens of the pool that no request may use


class NotSimulated(Exception):
    """Something that LightLLM has and the simulator has not."""


def resolve(given: Namespace, model: Model) -> dict[str, Any]:
    """All start arguments as the server works with them. Raises AssertionError or ValueError where the real
    launcher does; NotSimulated."""
    args = dict(vars(given))
    if args["run_mode"] not in RUN_MODES:
        known = ", ".join(RUN_MODES)
        raise NotSimulated(f"there is no --run_mode {args['run_mode']} here; there are {known}")
    _check_modes(args)
    if args["max_req_total_len"] is None:
        args["max_req_total_len"] = model.max_length
    if args["run_mode"] == MASTER:
        return args
    if args["router_token_ratio"] is None:
        args["router_token_ratio"] = 0.0 if args["run_mode"] in NODES else 0.85
    if args["data_type"] is None:
        args["data_type"] = model.data_type
    if args["eos_id"] is None:
        args["eos_id"] = list(model.eos_ids)
    if args["graph_max_len_in_batch"] == 0:
        args["graph_max_len_in_batch"] = args["max_req_total_len"]
    if args["linear_att_cache_size"] is None:
        args["linear_att_cache_size"] = 2 * args["running_max_req_size"]
    _resolve_prefill(args)
    _resolve_mtp(args)
    _resolve_pages(args, model)
    if args["run_mode"] in NODES:
        _resolve_node(args)
    return args


def _resolve_node(args: dict[str, Any]) -> None:
    if args["pd_kv_page_size"] % args["page_size"]:
        raise ValueError(
            "--pd_kv_page_size must be divisible by --page_size, "
            f"but got {args['pd_kv_page_size']}, {args['page_size']}"
        )
    if args["run_mode"] == "decode":
        assert not args["enable_cpu_cache"], "decode mode does not support --enable_cpu_cache"
        args["linear_att_page_block_num"] = HUGE_BLOCKS
        args["disable_vision"] = args["disable_audio"] = True


def _check_modes(args: dict[str, Any]) -> None:
    assert 0 < args["mem_fraction"] < 1, (
        f"Invalid mem_fraction {args['mem_fraction']}, The expected value is between 0 and 1."
    )
    assert args["zmq_mode"] in ("tcp://", "ipc:///tmp/")
    if args["llm_kv_type"] in ("fp8kv_sph", "fp8kv_spt"):
        assert args["kv_quant_calibration_config_path"] is not None, (
            f"{args['llm_kv_type']} needs --kv_quant_calibration_config_path"
        )
    if args["diverse_mode"]:
        assert args["page_size"] == 1, "diverse_mode only supports --page_size 1"
    if args["enable_disk_cache"]:
        assert args["enable_cpu_cache"], "--enable_disk_cache needs --enable_cpu_cache"


def _resolve_prefill(args: dict[str, Any]) -> None:
    longest = args["max_req_total_len"]
    if args["disable_chunked_prefill"]:
        if args["batch_max_tokens"] is None:
            args["batch_max_tokens"] = longest
        assert args["batch_max_tokens"] >= longest, "batch_max_tokens must >= max_req_total_len"
        args["chunked_prefill_size"] = args["chunked_prefill_size"] or args["batch_max_tokens"]
        return
    if args["chunked_prefill_size"] is None:
        args["chunked_prefill_size"] = min(DEFAULT_CHUNK, args["batch_max_tokens"] or longest)
    if args["batch_max_tokens"] is None:
        args["batch_max_tokens"] = max(
            args["chunked_prefill_size"], min(longest, 2 * args["chunked_prefill_size"] + 256)
        )
    assert args["batch_max_tokens"] >= args["chunked_prefill_size"], (
        "chunked prefill mode, batch_max_tokens must >= chunked_prefill_size, "
        f"but got {args['batch_max_tokens']}, {args['chunked_prefill_size']}"
    )


def _resolve_mtp(args: dict[str, Any]) -> None:
    if args["mtp_mode"] == "None":
        args["mtp_mode"] = None
    if args["mtp_mode"] is None:
        assert args["mtp_step"] == 0, "mtp_step must be 0 without --mtp_mode"
        assert args["mtp_draft_model_dir"] is None, "mtp_draft_model_dir needs --mtp_mode"
        return
    assert args["mtp_step"] > 0, "mtp_step must be > 0 with --mtp_mode"
    if args["mtp_draft_model_dir"] is None:
        args["mtp_draft_model_dir"] = [args["model_dir"]] * args["mtp_step"]


def _resolve_pages(args: dict[str, Any], model: Model) -> None:
    page, hash_page = args["page_size"], args["linear_att_hash_page_size"]
    assert page > 0, "page_size must be > 0"
    if not model.hybrid:
        if args["cpu_cache_token_page_size"] is None:
            args["cpu_cache_token_page_size"] = 256
    else:
        if hash_page % page:
            raise ValueError(
                f"--linear_att_hash_page_size must be divisible by --page_size, but got {hash_page}, {page}"
            )
        if args["enable_cpu_cache"]:
            args["cpu_cache_token_page_size"] = hash_page * args["linear_att_page_block_num"]
    if args["enable_cpu_cache"] and args["cpu_cache_token_page_size"] % page:
        raise ValueError(
            "--cpu_cache_token_page_size must be divisible by --page_size, "
            f"but got {args['cpu_cache_token_page_size']}, {page}"
        )


STATE_MB = 400  # of linear attention, for one request


def check_transfer_page(args: dict[str, Any], model: Model) -> None:
    """A P/D page has to hold one request's whole state. Raises AssertionError."""
    page, state = args["pd_kv_page_size"] * mb_per_token(args["llm_kv_type"]), STATE_MB
    assert not model.hybrid or page >= state, (
        f"pd kv page bytes {int(page * 2**20)} is smaller than linear att state bytes {state * 2**20}, "
        "increase --pd_kv_page_size on both P and D nodes"
    )


def mb_per_token(kv_type: str) -> float:
    return MB_PER_TOKEN.get(kv_type, MB_PER_TOKEN["None"] / 2)


def limits(args: dict[str, Any], model: Model, capacity: int) -> Limits:
    """What the scheduler works with; `capacity` is the KV pool where the arguments leave it open."""
    storage_mb = args["cpu_cache_storage_size"] * 1024 if args["enable_cpu_cache"] else 0
    return Limits(
        max_total_token_num=args["max_total_token_num"] or capacity,
        max_req_total_len=args["max_req_total_len"],
        page_size=args["page_size"],
        hash_page=args["linear_att_hash_page_size"] if model.hybrid else args["page_size"],
        running_max_req_size=args["running_max_req_size"],
        batch_max_tokens=args["batch_max_tokens"],
        chunked_prefill_size=args["chunked_prefill_size"],
        router_token_ratio=args["router_token_ratio"],
        mtp_step=args["mtp_step"],
        cpu_tokens=int(storage_mb / mb_per_token(args["llm_kv_type"])),
        cpu_page=args["cpu_cache_token_page_size"] or 256,
    )


def longest_request(bounds: Limits) -> int:
    """Prompt and output of one request together, in tokens."""
    return min(bounds.max_total_token_num - RESERVED, bounds.max_req_total_len)
