"""One evaluation: the recorder in front of the server, and the evaluator's process that talks to it.

It may be begun while the server still loads: the evaluator takes seconds to import itself and to read its
data, and its first requests then wait in the recorder, so that they leave as soon as the server is ready.
"""

import contextlib
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

from harness.checks.base import CheckContext, Command
from harness.evidence.recorder import Recorder

HELD_SHARE = 0.5  # of the client's own patience: then it is started anew, or it would give up and retry


class Evaluation:
    """Begun by `start`, waited for by `finish`, a context manager in between; given up by `close`.

    `command` makes the evaluator's argv from the recorder's base URL, `prepare` fills the check's folder
    before that. `patience_s` is how long the evaluator waits for an answer before it asks again.
    """

    def __init__(
        self,
        context: CheckContext,
        *,
        prepare: Callable[[], None],
        command: Callable[[str], Sequence[str]],
        env: Mapping[str, str],
        patience_s: float,
    ) -> None:
        self._context = context
        self._prepare = prepare
        self._command = command
        self._env = env
        self._patience_s = patience_s
        self._log = context.folder.parent / "eval.log"
        self._process: Command | None = None
        self._held_since: float | None = None
        self._sent = False
        self.recorder: Recorder | None = None
        self.argv: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, *, held: bool) -> None:
        """Start the recorder and the evaluator; `held`: the server is not ready yet."""
        self._context.folder.mkdir(parents=True, exist_ok=True)
        self._prepare()
        self.recorder = Recorder(self._context.base_url, self._context.folder / "requests.jsonl", held=held)
        self.recorder.__enter__()
        self.argv = list(self._command(self.recorder.base_url))
        self._process = self._context.start_command(self.argv, self._env, self._log)
        self._sent = not held

    def pulse(self) -> None:
        """Called while the server loads. An evaluator that has waited long is started anew, before its own
        time limit makes it ask again: a hidden retry."""
        if self.recorder is None or self.recorder.counts.seen == 0:
            return
        now = time.monotonic()
        self._held_since = self._held_since or now
        if now - self._held_since > self._patience_s * HELD_SHARE:
            self.close()
            self._held_since = None
            self.start(held=True)

    def finish(self, tick: Callable[[Recorder], None]) -> int:
        """Let the requests go and wait for the evaluator's end; returns its exit code. `tick` is called a few
        times a second and once at the end."""
        assert self.recorder is not None
        assert self._process is not None
        recorder = self.recorder
        self._sent = True
        recorder.release()
        code = self._process.wait(lambda: tick(recorder))
        tick(recorder)
        return code

    def close(self) -> None:
        """End the evaluator and the recorder. If nothing was ever sent to the server, all traces go."""
        with contextlib.ExitStack() as steps:  # each is tried
            if self.recorder is not None:
                steps.callback(self.recorder.close)
            if self._process is not None:
                steps.callback(self._process.stop)
        if not self._sent:
            shutil.rmtree(self._context.folder, ignore_errors=True)
            with contextlib.suppress(OSError):
                self._log.unlink()
