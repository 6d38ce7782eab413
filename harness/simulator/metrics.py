"""Prometheus text of `/metrics`."""

from dataclasses import dataclass

from harness.simulator.observer import LoggingObserver
from harness.simulator.request_lines import tokens_per_step
from harness.simulator.types import Done


@dataclass(slots=True)
class Metrics:
    """Counters since the start; lengths in tokens."""

    count: int = 0
    success: int = 0
    failure: int = 0
    input_length: int = 0
    output_length: int = 0
    cache_length: int = 0
    mtp_sum: float = 0.0

    def add(self, prompt: int, out: int, done: Done) -> None:
        """A request that was served."""
        self.success += 1
        self.input_length += prompt
        self.output_length += out
        self.cache_length += done.gpu_cached + done.cpu_cached + done.disk_cached
        self.mtp_sum += tokens_per_step(out, done)

    def text(self, model_name: str, observer: LoggingObserver) -> str:
        counters = {
            "lightllm_request_count": self.count,
            "lightllm_request_success": self.success,
            "lightllm_request_failure": self.failure,
        }
        gauges = {
            "lightllm_batch_pause_size": observer.paused_now,
            "lightllm_queue_size": observer.waiting_now,
            "lightllm_num_running_reqs": observer.running_now,
        }
        sums: dict[str, float] = {
            "lightllm_request_input_length": self.input_length,
            "lightllm_request_output_length": self.output_length,
            "lightllm_cache_length": self.cache_length,
            "lightllm_request_mtp_avg_token_per_step": self.mtp_sum,
        }
        label = f'{{model_name="{model_name}"}}'
        lines: list[str] = []
        for name, number in counters.items():
            lines += [f"# TYPE {name} counter", f"{name}_total{label} {float(number)}"]
        for name, number in gauges.items():
            lines += [f"# TYPE {name} gauge", f"{name}{label} {float(number)}"]
        for name, total in sums.items():
            lines += [
                f"# TYPE {name} histogram",
                f'{name}_bucket{{le="+Inf",{label[1:-1]}}} {float(self.success)}',
                f"{name}_count{label} {float(self.success)}",
                f"{name}_sum{label} {float(total)}",
            ]
        return "\n".join([*lines, ""])
