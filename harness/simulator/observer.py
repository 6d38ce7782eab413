"""The log lines of what happens inside the scheduler."""

from harness.simulator.log import Log


class LoggingObserver:
    """Writes them, and keeps the number of paused requests for `/metrics`."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.paused_now = 0
        self.running_now = 0
        self.waiting_now = 0

    def paused(self, req_id: int) -> None:
        self.paused_now += 1
        self._log.line("DEBUG", "infer_batch.py:332", f"infer paused req id {req_id}")

    def recovered(self, req_id: int) -> None:
        self.paused_now -= 1
        self._log.line("DEBUG", "infer_batch.py:356", f"infer recover paused req id {req_id}")

    def released(self, req_id: int) -> None:
        self._log.line("INFO", "manager.py:371", f"router release req id {req_id}")
        self._log.line("DEBUG", "manager.py:158", f"detoken release req id {req_id}")

    def idle(self, refed: int, held: int, free: int, total: int) -> None:
        lines = (
            "free a batch state:",
            f"radix refed token num {refed}",
            f"radix hold token num {held}",
            f"mem manager can alloc token num {free}",
            f"mem manager total size {total}",
        )
        self._log.line("DEBUG", "infer_batch.py:301", "\n".join(lines))

    def status(self, running: int, waiting: int, paused: int, token_ratio: float, ema_out_len: int) -> None:
        self.paused_now, self.running_now, self.waiting_now = paused, running, waiting
        lines = (
            f"dp_i 0 current batch size: {running} ",
            f"dp_i 0 paused req num: {paused} ",
            f"dp_i 0 waiting req num: {waiting} ",
            f"dp_i 0 token used ratio: {token_ratio:.4f}",
        )
        self._log.line("DEBUG", "manager.py:247", "\n".join(lines))
        busy = 1.0 if waiting or paused else round(token_ratio, 4)
        text = f"RouterStatics busy_token_used_ratio: {busy} ema_req_out_put_len: {ema_out_len}"
        self._log.line("DEBUG", "stats.py:44", text)
