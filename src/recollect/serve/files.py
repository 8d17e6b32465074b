"""The page: its files, which hold nothing secret, from memory, under a strict content security policy."""

import hashlib
from pathlib import Path

from fastapi import FastAPI, Request, Response

from recollect.serve import PAGE

_START = "index.html"
_TYPES = {  # not those of the machine, of which some serve scripts as plain text
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    "cache-control": "no-cache",  # kept, and asked for again each time: the answer is mostly 304
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'"
    ),
    "permissions-policy": "camera=(self), geolocation=(), microphone=()",
}


def add_page(app: FastAPI) -> None:
    """Serve each file of the page at the root, and the page itself at `/`."""
    for path in PAGE.iterdir():
        place = "/" if path.name == _START else f"/{path.name}"
        app.add_api_route(place, _File(path), methods=["GET", "HEAD"], include_in_schema=False)


class _File:
    """A file and its headers; whoever has the same one already is told so."""

    def __init__(self, path: Path) -> None:
        self._content = path.read_bytes()
        self._type = _TYPES[path.suffix]
        self._etag = f'"{hashlib.sha256(self._content).hexdigest()[:32]}"'

    async def __call__(self, request: Request) -> Response:
        headers = {**_HEADERS, "etag": self._etag}
        if self._etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(self._content, headers=headers, media_type=self._type)
