"""LightLLM's log: `LEVEL mm-dd HH:MM:SS [file:line] message`, on stdout.

A message of several lines repeats the prefix on each, and all but the last end in CR LF.
"""

import contextlib
import os
import time
import traceback
from pathlib import Path
from typing import Literal, TypeAlias

Level: TypeAlias = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
LEVELS: tuple[Level, ...] = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


class Log:
    """Writes whole messages with one system call each, so that processes interleave by lines only.

    `LIGHTLLM_LOG_LEVEL` is the lowest level that is written; as in the real server it is debug when unset.
    """

    def __init__(self, descriptor: int = 1) -> None:
        level = os.environ.get("LIGHTLLM_LOG_LEVEL", "debug").upper()
        self._lowest = next((rank for rank, name in enumerate(LEVELS) if name == level), 0)
        self._descriptors = [descriptor, *_files()]

    def line(self, level: Level, place: str, message: str) -> None:
        """One message; `place` is the source file and line that it is said to come from."""
        if LEVELS.index(level) < self._lowest:
            return
        prefix = f"{level} {time.strftime('%m-%d %H:%M:%S')} [{place}] "
        self._put(f"{prefix}{message.replace(chr(10), f'{chr(13)}{chr(10)}{prefix}')}\n")

    def trace(self, place: str, message: str, error: BaseException) -> None:
        """An error with its traceback."""
        self.line(
            "ERROR", place, "\n".join([message, *"".join(traceback.format_exception(error)).splitlines()])
        )

    def raw(self, line: str) -> None:
        """A line in somebody else's format."""
        self._put(f"{line}\n")

    def _put(self, text: str) -> None:
        data = text.encode(errors="backslashreplace")
        for descriptor in self._descriptors:
            with contextlib.suppress(BrokenPipeError):  # nobody reads the log; the server serves on
                _write_all(descriptor, data)


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _files() -> list[int]:
    """With `LIGHTLLM_LOG_DIR`, a file of all processes and one of this process."""
    folder = os.environ.get("LIGHTLLM_LOG_DIR")
    if not folder:
        return []
    Path(folder).mkdir(parents=True, exist_ok=True)
    how = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    return [
        os.open(Path(folder) / name, how, 0o644) for name in ("default.log", f"process.{os.getpid()}.log")
    ]
