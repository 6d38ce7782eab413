"""The harness's own requests to a server on this machine: one thin client over httpx.

Proxies from the environment are ignored: `http_proxy` has sent loopback traffic to the moon before.
"""

from types import TracebackType
from typing import Any, Self

import httpx

from harness.errors import TargetError
from harness.findings import Code


class RequestFailed(TargetError):
    """A request that did not return 2xx JSON. `status` is 0 when there was no HTTP answer at all."""

    default_code = Code.REQUEST_FAILED

    def __init__(self, what: str, *, status: int = 0, body: str = "", timed_out: bool = False) -> None:
        super().__init__(what)
        self.timed_out = timed_out
        self.status = status
        self.body = body


class Client:
    """Requests against one base URL. Raises RequestFailed for everything but a 2xx answer."""

    def __init__(self, base_url: str, *, timeout_s: float = 600.0) -> None:
        self.base_url = base_url.rstrip("/")
        self._http = httpx.Client(
            base_url=self.base_url,
            timeout=httpx.Timeout(timeout_s, connect=5.0),
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
        return self._send("GET", path, None, None, timeout_s).text

    def post_json(
        self, path: str, body: Any, *, headers: dict[str, str] | None = None, timeout_s: float | None = None
    ) -> Any:
        return self._json("POST", path, body, headers, timeout_s)

    def _json(
        self, method: str, path: str, body: Any, headers: dict[str, str] | None, timeout_s: float | None
    ) -> Any:
        response = self._send(method, path, body, headers, timeout_s)
        try:
            return response.json()
        except ValueError as error:
            what = (
                f"{method} {self.base_url}{path} answered {response.status_code} with text that is not JSON"
            )
            raise RequestFailed(what, status=response.status_code, body=response.text[:2000]) from error

    def _send(
        self, method: str, path: str, body: Any, headers: dict[str, str] | None, timeout_s: float | None
    ) -> httpx.Response:
        timeout = httpx.USE_CLIENT_DEFAULT if timeout_s is None else httpx.Timeout(timeout_s)
        try:
            response = self._http.request(method, path, json=body, headers=headers, timeout=timeout)
        except httpx.HTTPError as error:
            what = f"{method} {self.base_url}{path} got no answer: {type(error).__name__}: {error}"
            # Of the other limits, none says that a request was taken and not answered.
            raise RequestFailed(what, timed_out=isinstance(error, httpx.ReadTimeout)) from error
        if not response.is_success:
            what = f"{method} {self.base_url}{path} answered {response.status_code}: {response.text[:300]}"
            raise RequestFailed(what, status=response.status_code, body=response.text[:2000])
        return response
