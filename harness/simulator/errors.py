"""Errors as LightLLM answers them."""

from typing import Any

from pydantic import ValidationError

from harness.simulator.http import Response
from harness.simulator.service import ServerBusy

EXPECTATION_FAILED = 417


def error_body(message: str, kind: str, code: int) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def error_response(error: Exception, *, openai: bool) -> Response:
    """`openai`: for the `/v1` endpoints, where an unexpected error is a bare 500."""
    if isinstance(error, ValidationError):
        return _invalid(error)
    if isinstance(error, ServerBusy):
        return Response.of(error_body(str(error), "RateLimitError", 429), 429)
    if isinstance(error, ValueError):
        return Response.of(error_body(str(error), "BadRequestError", 400), 400)
    if openai:
        return Response.text("Internal Server Error", 500)
    return Response.of(error_body(str(error), "InternalServerError", EXPECTATION_FAILED), EXPECTATION_FAILED)


def _invalid(error: ValidationError) -> Response:
    problems = error.errors(include_url=False, include_context=False)
    return Response.of(
        {"detail": [{**problem, "loc": ["body", *problem["loc"]]} for problem in problems]}, 422
    )
