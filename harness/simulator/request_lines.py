"""The line that LightLLM logs when a request is done, with its cache tiers and its speculation."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.simulator.types import Done


@dataclass(slots=True)
class Timing:
    """Wall-clock seconds of one request."""

    start: float = field(default_factory=time.time)
    first: float = 0.0

    def token(self) -> None:
        if not self.first:
            self.first = time.time()


def header(req_id: int, headers: Mapping[str, str], timing: Timing) -> str:
    """How every line about a request begins; the names of HTTP headers are lower case."""
    start = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(timing.start))
    return (
        f"X-Request-Id:{headers.get('x-request-id', '')} X-Session-Id:{headers.get('x-session-id', '')} "
        f"start_time:{start} lightllm_req_id:{req_id}"
    )


def done_line(front: str, prompt: int, out: int, done: Done, timing: Timing, mtp_step: int) -> str:
    """`prompt` and `out` are lengths in tokens; `mtp_step` is the number of drafted tokens per step."""
    tiers = " ".join(
        f"{name} cache hit: {length > 0} {name}_prompt_cache_len:{length} "
        f"{name}_prompt_cache_ratio:{length / prompt}"
        for name, length in (("gpu", done.gpu_cached), ("cpu", done.cpu_cached), ("disk", done.disk_cached))
    )
    return f"{front} {_costs(prompt, out, timing)} {tiers} {_speculation(out, done, mtp_step)} "


def master_done_line(front: str, prompt: int, out: int, done: Done, timing: Timing) -> str:
    """As a P/D master writes it: without tiers."""
    cached = done.gpu_cached + done.cpu_cached + done.disk_cached
    return (
        f"{front} {_costs(prompt, out, timing)} prompt_cache_len:{cached} "
        f"prompt_cache_ratio:{cached / prompt} mtp_avg_token_per_step:{tokens_per_step(out, done)} "
    )


def _costs(prompt: int, out: int, timing: Timing) -> str:
    now = time.time()
    first = timing.first or now
    per_token = 1000 * (now - first) / max(1, out)
    return (
        f"first_token_cost:{1000 * (first - timing.start)}ms total_cost_time:{1000 * (now - timing.start)}ms,"
        f"out_token_counter:{out} mean_per_token_cost_time: {per_token}ms prompt_token_num:{prompt}"
    )


def _speculation(out: int, done: Done, mtp_step: int) -> str:
    steps = done.mtp_steps if mtp_step else 0
    verified = steps * (mtp_step + 1)
    averages = (done.mtp_accepted / steps, verified / steps) if steps else (0.0, 0.0)
    return (
        f"mtp_accepted_token_num:{done.mtp_accepted} mtp_total_verify_steps:{steps} "
        f"mtp_total_verify_tokens:{verified} mtp_avg_token_per_step:{tokens_per_step(out, done)} "
        f"mtp_avg_accepted_tokens_per_step:{averages[0]} mtp_avg_verify_tokens_per_step:{averages[1]}"
    )


def tokens_per_step(out: int, done: Done) -> float:
    """As LightLLM counts: the first token, which comes of the prefill, is a step too."""
    return out / max(1, out - done.mtp_accepted)
