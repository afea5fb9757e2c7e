"""Errors in the format of OpenAI's API: a status, and a body with message, type, field and code."""

import errno
import logging
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from takeup.errors import BadInput, TakeupError, UnknownName
from takeup.serving.model import Cancelled, Expired

log = logging.getLogger("takeup.serving.server")

INVALID, REFUSED, BUSY, BROKEN = "invalid_request_error", "authentication_error", "rate_limit_error", "server_error"
DO_NOT_RETRY = {"x-should-retry": "false"}  # OpenAI's clients repeat 409, 429 and 504 otherwise
CLOSED_BY_CLIENT = 499
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)


class WorkerLost(TakeupError):
    """The process that made the image died, and so did the next one."""


class ErrorDetail(BaseModel):
    """The message, its type, the field at fault, and a code for programs."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    """The body of every error response."""

    error: ErrorDetail


class ApiError(Exception):
    """An error with its status."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = INVALID,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers or {}
        self.detail = ErrorDetail(message=message, type=kind, param=param, code=code)


def api_error(problem: BaseException) -> ApiError:
    """Convert any exception to an API error. Unexpected ones are logged, and reported without details."""
    if isinstance(problem, ApiError):
        return problem
    if isinstance(problem, OSError) and problem.errno in FULL_DISK:
        return ApiError(
            507,
            "the disk of the server is full; delete adapters or templates, or try again later",
            kind=BROKEN,
            code="insufficient_storage",
            headers=DO_NOT_RETRY,
        )
    for kind, make in _KNOWN.items():
        if isinstance(problem, kind):
            return make(str(problem))
    log.error("a request failed", exc_info=problem)
    return ApiError(500, "the server failed on this request; its log says why", kind=BROKEN, code="internal_error")


def _expired(message: str) -> ApiError:
    return ApiError(504, message, param="deadline_s", code="deadline_exceeded", headers=DO_NOT_RETRY)


def _lost(message: str) -> ApiError:
    return ApiError(503, message, kind=BROKEN, code="worker_lost", headers={"Retry-After": "5"})


_KNOWN: dict[type[BaseException], Callable[[str], ApiError]] = {
    Expired: _expired,
    Cancelled: lambda message: ApiError(CLOSED_BY_CLIENT, message, code="cancelled"),
    WorkerLost: _lost,
    UnknownName: lambda message: ApiError(404, message, code="not_found"),
    BadInput: lambda message: ApiError(400, message, code="invalid_value"),
}


def body_of(problem: ApiError) -> dict[str, Any]:
    """The body, as plain data."""
    return ErrorBody(error=problem.detail).model_dump()


def response_of(problem: BaseException) -> JSONResponse:
    """The response."""
    answer = api_error(problem)
    return JSONResponse(body_of(answer), answer.status, headers=answer.headers)


def install(app: FastAPI) -> None:
    """Answer every error of the app with such a body."""

    async def any_problem(_: Request, problem: Exception) -> JSONResponse:
        return response_of(problem)

    async def bad_fields(_: Request, problem: Exception) -> JSONResponse:
        assert isinstance(problem, RequestValidationError)
        return response_of(_first_problem(problem))

    async def http_problem(_: Request, problem: Exception) -> JSONResponse:
        assert isinstance(problem, HTTPException)
        if isinstance(problem.__cause__, ApiError | OSError):  # while a form was read
            return response_of(problem.__cause__)
        code = {404: "not_found", 405: "method_not_allowed"}.get(problem.status_code)
        headers = dict(problem.headers or {})
        return response_of(ApiError(problem.status_code, str(problem.detail), code=code, headers=headers))

    app.add_exception_handler(ApiError, any_problem)
    app.add_exception_handler(TakeupError, any_problem)
    app.add_exception_handler(RequestValidationError, bad_fields)
    app.add_exception_handler(HTTPException, http_problem)
    app.add_exception_handler(OSError, any_problem)


def _first_problem(problem: RequestValidationError) -> ApiError:
    """The first wrong field; its value is not repeated, as it may be long or secret."""
    first = problem.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "path", "header"))
    said = first["msg"].removeprefix("Value error, ")
    return ApiError(400, f"{where}: {said}" if where else said, param=where or None, code="invalid_value")
