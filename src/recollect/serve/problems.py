"""Errors as clients see them: `application/problem+json` (RFC 9457), without a path of the server."""

import json
import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import cast

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from recollect.errors import (
    ArgumentError,
    MissingError,
    ModelError,
    NameTakenError,
    PictureError,
    RecollectError,
    StoreError,
    StoreFailure,
    one_line,
)

MEDIA_TYPE = "application/problem+json"
# Of every answer.
HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_LONGEST = 1000  # characters of a message, in which a client's own name may stand
_STATUS = {
    MissingError: HTTPStatus.NOT_FOUND,
    NameTakenError: HTTPStatus.CONFLICT,
    StoreError: HTTPStatus.UNPROCESSABLE_ENTITY,  # a name that no category can have
    PictureError: HTTPStatus.UNPROCESSABLE_ENTITY,
    ArgumentError: HTTPStatus.UNPROCESSABLE_ENTITY,
}
_LATER = 5  # seconds until the disk may have room again
_log = logging.getLogger(__name__)


class Problem(Exception):  # noqa: N818
    """A request that is refused, with the status and what to do about it."""

    def __init__(
        self, status: int, detail: str, headers: Mapping[str, str] | None = None, error: str | None = None
    ) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers = status, detail, dict(headers or {})
        self.error = error  # the name of our own error

    def content(self) -> bytes:
        """Return the body of the answer."""
        detail = one_line(self.detail)[:_LONGEST]
        words = {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": detail.encode("utf-8", "backslashreplace").decode(),
            **({"error": self.error} if self.error else {}),
        }
        return json.dumps(words).encode()

    def response(self) -> Response:
        """Return the answer."""
        return Response(self.content(), self.status, self.headers, MEDIA_TYPE)


def busy(what: str, seconds: int = 1) -> Problem:
    """Return the answer for work that there is no room for now."""
    return Problem(HTTPStatus.SERVICE_UNAVAILABLE, f"{what}: try again", {"Retry-After": str(seconds)})


def problem_of(error: RecollectError) -> Problem:
    """Return how a client sees one of our errors."""
    if isinstance(error, StoreFailure):  # its message names a file of the server
        _log.error("%s", error)
        return busy("what is taught cannot be read or kept at the moment; the server's log says why", _LATER)
    if isinstance(error, ModelError):
        _log.error("%s", error)
        return busy("the model gives no answer; the server's log says why", _LATER)
    for kind, status in _STATUS.items():
        if isinstance(error, kind):
            return Problem(status, str(error), error=type(error).__name__)
    return Problem(HTTPStatus.CONFLICT, str(error), error=type(error).__name__)


async def of_ours(_: Request, error: Exception) -> Response:
    """Answer a request that is refused."""
    return (error if isinstance(error, Problem) else problem_of(error)).response()  # type: ignore[arg-type]


async def of_validation(_: Request, error: Exception) -> Response:
    """Answer a request whose parameters do not fit the description."""
    first = cast("RequestValidationError", error).errors()[0]
    where, *names = map(str, first["loc"])
    name = ".".join(names)
    texts = {
        "missing": f"'{name}' is missing",
        "extra_forbidden": f"'{name}' is not expected",
        "int_parsing": f"'{name}' must be a whole number",
        "bool_parsing": f"'{name}' must be true or false",
        "json_invalid": "this is not JSON",
    }
    words = first["msg"].removeprefix("Value error, ")
    text = texts.get(first["type"], f"'{name}': {words}" if names else words)
    return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, f"in the {where}: {text}").response()


async def of_http(_: Request, error: Exception) -> Response:
    """Answer a request for something that is not there, or with another method."""
    error = cast("HTTPException", error)
    details = {
        404: "there is nothing here: /v1/openapi.json lists every call",
        405: "this call has another method: /v1/openapi.json lists every call",
    }
    return Problem(error.status_code, details.get(error.status_code, error.detail), error.headers).response()
