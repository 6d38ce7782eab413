"""What LightLLM logs of one piece of KV on its way."""

import time
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Kind = Literal["kv", "linear_att_state"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """The KV of the tokens [first, last) of one request, or the state after `last`, where both are equal."""

    request_id: int
    first: int
    last: int
    kind: Kind = "kv"
    prefill: str  # agent names
    decode: str
    pages: int
    src_page: int
    dst_page: int | None = None
    created: float = field(default_factory=time.time)

    @property
    def key(self) -> str:
        return f"{self.request_id}_{self.kind}_{self.first}_{self.last}"

    @property
    def span(self) -> str:
        return f"request_id={self.request_id} kv=[{self.first},{self.last})"

    def on(self, page: int) -> "Piece":
        return replace(self, dst_page=page)

    def task(self, stage: str) -> str:
        """As Python shows LightLLM's own object."""
        values: dict[str, Any] = {
            "request_id": self.request_id,
            "start_kv_index": self.first,
            "end_kv_index": self.last,
            "time_out_secs": 182,
            "pd_master_node_id": 0,
            "prefill_dp_index": 0,
            "decode_dp_index": None,
            "src_device_id": 0,
            "dst_device_id": None,
            "mem_indexes": None,
            "prefill_agent_name": self.prefill,
            "prefill_agent_metadata": b"",
            "prefill_num_pages": self.pages,
            "prefill_page_reg_desc": b"",
            "decode_agent_name": self.decode,
            "decode_agent_metadata": b"",
            "decode_num_pages": self.pages,
            "decode_page_reg_desc": b"",
            "first_gen_token_id": None,
            "first_gen_token_logprob": None,
            "write_stage": stage,
            "src_page_index": self.src_page,
            "dst_page_index": self.dst_page,
            "xfer_handle": None,
            "create_time": self.created,
            "start_trans_time": None,
            "error_info": None,
            "transfer_time_out_secs": 66,
            "page_kind": self.kind,
            "req_idx": None,
        }
        return f"PDChunckedTransTask({_shown(values)})"

    def outcome(self, error: str | None = None) -> str:
        """The beginning of the line with the result."""
        values = {
            "request_id": self.request_id,
            "start_kv_index": self.first,
            "end_kv_index": self.last,
            "has_error": error is not None,
            "error_info": error,
            "first_gen_token_id": None,
            "first_gen_token_logprob": None,
        }
        word = "success" if error is None else "fail"
        return f"trans task ret {word}:PDChunckedTransTaskRet({_shown(values)})"


def _shown(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in values.items())
