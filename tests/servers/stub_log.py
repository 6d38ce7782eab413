"""The stub's log, in the format of llama.cpp's: `0.00.558.297 I srv          init: message`, on stderr."""

import sys
import time


class Log:
    """Lines below the server's verbosity are left out, as it does: 3 by default, 4 tells about requests."""

    def __init__(self, verbosity: int) -> None:
        self._verbosity = verbosity
        self._born = time.monotonic()

    def line(self, place: str, message: str, *, level: str = "I", verbosity: int = 3) -> None:
        if verbosity > self._verbosity:
            return
        micros = int((time.monotonic() - self._born) * 1e6)
        minutes, seconds = divmod(micros // 1_000_000, 60)
        stamp = f"{minutes}.{seconds:02d}.{micros // 1000 % 1000:03d}.{micros % 1000:03d}"
        self.raw(f"{stamp} {level} {place}: {message}\n".encode())

    def srv(self, function: str, message: str, *, level: str = "I", verbosity: int = 3) -> None:
        self.line(f"srv  {function[:12]:>12}", message, level=level, verbosity=verbosity)

    def cmn(self, function: str, message: str, *, verbosity: int = 3) -> None:
        self.line(f"cmn  {function[:12]:>12}", message, verbosity=verbosity)

    def slot(self, function: str, task: int, message: str) -> None:
        place = f"slot {function[:12]:>12}"
        self.line(place, f"id  0 | task {task} | {message}", verbosity=4)

    def raw(self, data: bytes) -> None:
        sys.stderr.buffer.write(data)
        sys.stderr.buffer.flush()

    def request(self, task: int, prompt: int, cached: int, predicted: int) -> None:
        """What a finished generation prints."""
        new, total = prompt - cached, prompt + predicted
        self.slot("launch_slot_", task, "processing task, is_child = 0")
        self.slot("operator()", task, f"new prompt, n_ctx_slot = 4096, n_keep = 0, task.n_tokens = {prompt}")
        self.slot("operator()", task, f"cached n_tokens = {cached}, memory_seq_rm [{cached}, end)")
        speed = "0.10 ms per token, 10000.00 tokens per second"
        self.slot("print_timing", task, f"prompt eval time = {new / 10:10.2f} ms / {new:5d} tokens ({speed})")
        self.slot(
            "print_timing",
            task,
            f"       eval time = {predicted / 10:10.2f} ms / {predicted:5d} tokens ({speed})",
        )
        self.slot("print_timing", task, f"      total time = {total / 10:10.2f} ms / {total:5d} tokens")
        self.slot("release", task, f"stop processing: n_tokens = {total - 1}, truncated = 0")
        self.srv("update_slots", "all slots are idle", verbosity=4)
