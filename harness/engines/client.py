"""The harness's own requests to a server on this machine: one thin client over httpx.

Proxies from the environment are ignored: `http_proxy` has sent loopback traffic to the moon before.
Nothing is compressed on the way either, so that no answer is larger than what came over the wire.
"""

import json
import re
import time
from types import TracebackType
from typing import Any, Self

import httpx

from harness.errors import TargetError
from harness.findings import Code

CONNECT_S = 5.0
LARGEST = 64 << 20  # bytes of one answer; those of an honest server have a few megabytes at most
# In JSON: any escape, of which `half` is one of a character that has only half of its two.
ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][\da-fA-F]{2}\\u[dD][c-fC-F][\da-fA-F]{2}|(?P<half>u[dD][89a-fA-F][\da-fA-F]{2})|.)"
)


class RequestFailed(TargetError):
    """A request that did not return 2xx JSON. `status` is 0 when there was no HTTP answer at all."""

    default_code = Code.REQUEST_FAILED

    def __init__(
        self,
        what: str,
        *,
        status: int = 0,
        body: str = "",
        timed_out: bool = False,
        code: Code | None = None,
    ) -> None:
        super().__init__(what, code=code)
        self.timed_out = timed_out
        self.status = status
        self.body = body


class Client:
    """Requests against one base URL. Raises RequestFailed for everything but a 2xx answer, whole within
    `timeout_s` seconds and no larger than LARGEST."""

    def __init__(self, base_url: str, *, timeout_s: float = 600.0) -> None:
        self.base_url = base_url.rstrip("/")
        self._timeout_s = timeout_s
        self._http = httpx.Client(
            base_url=self.base_url,
            headers={"Accept-Encoding": "identity"},
            limits=httpx.Limits(max_connections=None),  # whoever asks decides how many are asked at once
            trust_env=False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def get_json(self, path: str, *, timeout_s: float | None = None) -> Any:
        return self._json("GET", path, None, None, timeout_s)

    def get_text(self, path: str, *, timeout_s: float | None = None) -> str:
        return self._send("GET", path, None, None, timeout_s)[1]

    def post_json(
        self, path: str, body: Any, *, headers: dict[str, str] | None = None, timeout_s: float | None = None
    ) -> Any:
        return self._json("POST", path, body, headers, timeout_s)

    def _json(
        self, method: str, path: str, body: Any, headers: dict[str, str] | None, timeout_s: float | None
    ) -> Any:
        status, text = self._send(method, path, body, headers, timeout_s)
        try:
            return json.loads(_whole_characters(text))
        except (ValueError, RecursionError) as error:  # the latter: thousands of brackets in brackets
            what = f"{method} {self.base_url}{path} answered {status} with text that is not JSON"
            raise RequestFailed(what, status=status, body=text[:2000]) from error

    def _send(
        self, method: str, path: str, body: Any, headers: dict[str, str] | None, timeout_s: float | None
    ) -> tuple[int, str]:
        """Status and text of a 2xx answer. httpx's own limit is one for each read, which an answer that
        comes by drops never reaches."""
        what = f"{method} {self.base_url}{path}"
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        timeout = httpx.Timeout(limit_s, connect=min(limit_s, CONNECT_S))
        deadline = time.monotonic() + limit_s
        content = bytearray()
        try:
            with self._http.stream(method, path, json=body, headers=headers, timeout=timeout) as response:
                status = response.status_code
                for piece in response.iter_raw():
                    content += piece
                    if len(content) > LARGEST:
                        what = f"{what} answered {status} with more than {LARGEST >> 20} MiB"
                        raise RequestFailed(what, status=status, code=Code.BAD_ANSWER)
                    if time.monotonic() > deadline:
                        what = f"{what} gave no whole answer within {limit_s:g} s"
                        raise RequestFailed(what, timed_out=True)
        except httpx.HTTPError as error:
            what = f"{what} got no answer: {type(error).__name__}: {error}"
            # Of the other limits, none says that a request was taken and not answered.
            raise RequestFailed(what, timed_out=isinstance(error, httpx.ReadTimeout)) from error
        text = content.decode(errors="replace")  # whatever charset is told: JSON and metrics have no other
        if not response.is_success:
            raise RequestFailed(f"{what} answered {status}: {text[:300]}", status=status, body=text[:2000])
        return status, text


def _whole_characters(text: str) -> str:
    r"""JSON whose texts can be written to a file: half a character becomes its escape, as text: `\ud83d`."""
    if "\\ud" not in text and "\\uD" not in text:
        return text
    return ESCAPE.sub(lambda found: f"\\\\{found['half']}" if found["half"] else found[0], text)
