"""The pictures of a request: its raw body, or the parts of a form."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from fastapi import Request
from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from recollect.errors import PictureError
from recollect.serve.engine import Upload
from recollect.serve.problems import Problem
from recollect.serve.settings import Limits

_BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,./:=? -]{1,70}")  # RFC 2046
_LONGEST_FIELD = 4096  # bytes
_LONGEST_FILE_NAME = 200


class Named(NamedTuple):
    """A picture, and the `name` that stood before it in a form."""

    name: str | None
    upload: Upload


class _InMemory(MultiPartParser):
    spool_max_size = 1 << 62  # never to a file: the gate bounds the memory


async def read_uploads(request: Request, limits: Limits) -> list[Named]:
    """Return the pictures of a request, with their categories' names where a form has them."""
    if request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        found = await _form(request, limits)
    else:
        found = [Named(None, Upload(await request.body(), "the body"))]
    if not found or not all(one.upload.content for one in found):
        raise PictureError("no picture was sent: send its bytes as the body, or as 'picture' in a form")
    request.scope["recollect"] = {"pictures": len(found)}
    return found


async def _form(request: Request, limits: Limits) -> list[Named]:
    _, options = parse_options_header(request.headers["content-type"])
    boundary = options.get(b"boundary", b"").decode("latin-1")
    if not _BOUNDARY.fullmatch(boundary):
        raise Problem(400, "the form has no usable boundary")
    parser = _InMemory(
        Headers({"content-type": f'multipart/form-data; boundary="{boundary}"'}),  # and no other charset
        request.stream(),
        max_files=limits.pictures,
        max_fields=limits.pictures,
        max_part_size=_LONGEST_FIELD,
    )
    try:
        form = await parser.parse()
    except MultiPartException as error:
        status = 413 if "Too many files" in error.message else 400
        raise Problem(status, f"the form cannot be read: {error.message}") from error
    return await _named(form.multi_items())


async def _named(items: Sequence[tuple[str, str | UploadFile]]) -> list[Named]:
    found: list[Named] = []
    name: str | None = None
    for field, value in items:
        if field == "name" and isinstance(value, str):
            _require_pictures(found, name)
            name = value
        elif field == "picture" and isinstance(value, UploadFile):
            shown = (value.filename or "")[:_LONGEST_FILE_NAME] or f"picture {len(found) + 1}"
            found.append(Named(name, Upload(await value.read(), shown)))
        elif field == "picture":
            raise Problem(422, "'picture' is text, not a file: with curl, write -F picture=@FILE")
        else:
            raise Problem(422, f"the form's '{field[:100]}' is not expected: send 'picture' files and 'name'")
    _require_pictures(found, name)
    return found


def _require_pictures(found: Sequence[Named], name: str | None) -> None:
    """Refuse a name in a form that no picture follows."""
    if name is not None and (not found or found[-1].name is not name):
        raise Problem(422, f"no picture follows the name '{name[:100]}'")
