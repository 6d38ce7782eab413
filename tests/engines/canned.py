"""A client that answers from recorded answers, and remembers what it was asked."""

import json
from pathlib import Path
from typing import Any

from harness.engines.client import Client, RequestFailed

DATA = Path(__file__).parents[1] / "data" / "engines"


def recorded(name: str) -> Any:
    """An answer of a real server, shortened."""
    return json.loads((DATA / name).read_text(encoding="utf-8"))


class Canned(Client):
    """`answers` maps a path to JSON, text, or an HTTP status to refuse with."""

    def __init__(self, **answers: Any) -> None:
        super().__init__("http://127.0.0.1:1")
        self.answers = {f"/{path.replace('__', '/')}": answer for path, answer in answers.items()}
        self.asked: list[tuple[str, Any, Any]] = []

    def _send(
        self, method: str, path: str, body: Any, headers: dict[str, str] | None, timeout_s: float | None
    ) -> tuple[int, str]:
        self.asked.append((path, body, headers))
        answer = self.answers[path.partition("?")[0]]
        if isinstance(answer, int):
            raise RequestFailed(f"{method} {path} answered {answer}", status=answer)
        return 200, answer if isinstance(answer, str) else json.dumps(answer)
