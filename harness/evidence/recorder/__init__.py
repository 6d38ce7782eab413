"""The recording reverse proxy: a client talks to it instead of to the server, and every prompt is on file.

An evaluator keeps neither finish reason, usage nor latency, hides retries, and turns a null answer into a
placeholder that it scores as wrong. All of that passes through here:

- `requests.jsonl`, one line per prompt: order, digest of the prompt, status, error, attempt, finish reason,
  tokens, digest of the text, times. See `lines.prompt_lines`.
- `raw_responses.jsonl` beside it, one line per HTTP request: both bodies.
"""

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Self

from harness.errors import HarnessError
from harness.evidence.recorder.journal import Counts, Journal
from harness.findings import Code

_GRACE_S = 2.0
_STOP_S = 15.0


class Recorder:
    """A proxy in front of `upstream` (a base URL) that records into `out`; a context manager.

    With `held`, requests wait in here until `release`: a client may be started while its server still loads.

    It runs in one thread of its own while the context is open. Ask for `lost_evidence` after the end: a full
    disk does not stop the answers, but makes them worthless.
    """

    def __init__(
        self, upstream: str, out: Path, *, host: str = "127.0.0.1", port: int = 0, held: bool = False
    ) -> None:
        self._upstream = upstream.rstrip("/")
        self._out = out
        self._host = host
        self._port = port
        self._held = held
        self._open: Callable[[], object] | None = None  # safe from any thread
        self._bound: Future[int] = Future()
        self._journal: Journal | None = None
        self._stop: Callable[[], object] | None = None  # safe from any thread
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)

    def __enter__(self) -> Self:
        """Start. Raises HarnessError where the port is taken, or where the evidence cannot be written or
        would overwrite an earlier recording."""
        self._journal = Journal(self._out)
        self._thread.start()
        try:
            self._port = self._bound.result()
        except OSError as error:
            self.close()
            what = f"the recorder cannot listen on {self._host}:{self._port}: {error.strerror}"
            raise HarnessError(
                what, cause="another program holds the port", fix="use port 0", code=Code.PORT_TAKEN
            ) from error
        except BaseException:  # an interrupt: leave no thread behind
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def base_url(self) -> str:
        """Where the client must send its requests."""
        return f"http://{self._host}:{self._port}"

    @property
    def counts(self) -> Counts:
        """Prompts so far. Safe from any thread."""
        return self._journal.counts if self._journal else Counts()

    @property
    def lost_evidence(self) -> str | None:
        """What is not on file although it should be, in words. Complete only after the end."""
        return self._journal.lost_evidence if self._journal else None

    def release(self) -> None:
        """Send on what was held. May be called again, and where nothing was held."""
        if self._open is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself, and said why
                self._open()

    def close(self) -> None:
        """Stop taking requests, give those in flight two seconds, record the rest as aborted, release the
        port. May be called again."""
        if self._journal is None or self._closed:
            return
        self._closed = True
        if self._stop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself, and said why
                self._stop()
        self._thread.join(_STOP_S)
        if self._thread.is_alive():
            self._journal.lose(f"the recorder did not stop within {_STOP_S:.0f} s")
        else:
            self._journal.close()

    def _run(self) -> None:
        # Imported here, for asyncio takes a good part of the time that `harness --help` may take.
        import asyncio

        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - a dead proxy must be told to the thread that waits
            if self._bound.done() and self._journal:
                self._journal.lose(f"the recorder died: {type(error).__name__}: {error}")
            else:
                self._bound.set_exception(error)

    async def _serve(self) -> None:
        import asyncio

        from harness.evidence.recorder.proxy import Proxy

        assert self._journal is not None
        stopping, gate = asyncio.Event(), asyncio.Event()
        loop, journal = asyncio.get_running_loop(), self._journal

        def open_gate() -> None:
            if not gate.is_set():
                journal.open()
                gate.set()

        if not self._held:
            gate.set()
        self._stop = lambda: loop.call_soon_threadsafe(stopping.set)
        self._open = lambda: loop.call_soon_threadsafe(open_gate)
        proxy = Proxy(self._upstream, journal, gate)
        self._bound.set_result(await proxy.start(self._host, self._port))
        await stopping.wait()
        await proxy.stop(_GRACE_S)
