"""A client of the service that `recollect serve` starts, with the methods of a `Recognizer`."""

import base64
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from types import TracebackType
from typing import Any, Self, cast, overload
from urllib.parse import quote, urlencode, urlsplit

import numpy as np
import numpy.typing as npt
import urllib3
from PIL import Image

from recollect import errors
from recollect.errors import ArgumentError, PictureError, RecollectError, ServiceError, brief
from recollect.images import Array4d, Picture, Pictures, are_many, own_name, read_pixels
from recollect.recognition.results import Among, Category, Duplicate, Example, Floats, Prediction

_AT_ONCE = 32  # pictures in a call that answers them one by one
_RETRIES = 3  # when the service has no room


@dataclass(frozen=True)
class ServedModel:
    """What a service computes with."""

    recollect: str  # the version of the service
    fingerprint: str
    extractor: str
    classifier: str
    generator: str
    base_categories: int
    width: int  # numbers in a feature
    input: Mapping[str, int | None]  # `size` and `short_side` of the pictures
    says_unknown: bool
    search: str  # how pictures are compared with taught categories: "exact" or "index"
    drawn: bool  # trained on characters, which can be drawn
    needs_token: bool  # for changes
    weights_licence: str | None
    pictures: int  # at most as many in a call
    body_mb: int


class Client:
    """A recogniser on a server. Its methods are those of a `Recognizer`, and so are its errors.

    Pictures are scaled to the model's input before they are sent, so large photographs are quick to send; the
    answers are the same. Threads may share a client.
    """

    def __init__(self, url: str, token: str | None = None, *, timeout: float = 60.0) -> None:
        """Talk to the service at `url`; `token` is needed to change what it was taught."""
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ArgumentError(f"'{url}' is not the address of a service: expected http://HOST:PORT")
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        retries = urllib3.Retry(
            connect=0,
            read=0,
            redirect=0,
            status=_RETRIES,
            other=0,
            status_forcelist=[503],
            allowed_methods=None,  # a 503 says that nothing was done
            raise_on_status=False,
        )
        self._pool = urllib3.PoolManager(maxsize=8, timeout=timeout, retries=retries)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client of {self._url}>"

    def close(self) -> None:
        """Close the connections."""
        self._pool.clear()

    @cached_property
    def model(self) -> ServedModel:
        """What the service computes with."""
        return ServedModel(**self._json("GET", "model"))

    @property
    def search(self) -> str:
        """How the service compares pictures with taught categories: with each ("exact") or by an "index"."""
        return str(self._json("GET", "model")["search"])

    def categories(self) -> list[Category]:
        """Return all categories: base ones first, also hidden ones, then taught ones in order of teaching."""
        return _categories(self._json("GET", "categories"))

    def teach(
        self,
        name: str,
        pictures: Picture | Pictures,
        *,
        thumbnails: bool = False,
        skip_duplicates: bool = False,
    ) -> Category:
        """Add a category from one or a few pictures, or more pictures to one that is known.

        Pictures that it was taught before count again, unless `skip_duplicates` leaves them out.
        """
        skipped: list[int] | None = [] if skip_duplicates else None
        return self.teach_all({name: pictures}, thumbnails=thumbnails, skipped=skipped)[0]

    def teach_all(
        self,
        pictures: Mapping[str, Picture | Pictures] | Iterable[tuple[str, Picture | Pictures]],
        *,
        thumbnails: bool = False,
        skipped: list[int] | None = None,
    ) -> list[Category]:
        """Teach several categories, by name, all of them or none; return them in the same order.

        Given a list as `skipped`, pictures that their category was taught before are left out, and the place
        of each among all pictures is appended to the list.
        """
        pairs = pictures.items() if isinstance(pictures, Mapping) else pictures
        fields: list[tuple[str, Any]] = []
        count = 0
        for name, some in pairs:
            fields.append(("name", name))
            encoded = [self._part(picture, named) for picture, named in _named(some)]
            if not encoded:
                raise PictureError("no pictures were given: name at least one")
            fields += encoded
            count += len(encoded)
        if count > self.model.pictures:
            raise ServiceError(
                f"the service takes at most {self.model.pictures} pictures at once, and these are {count}: "
                "teach fewer, or start it with a larger --max-pictures"
            )
        query = {"thumbnails": _word(thumbnails), "keep_duplicates": _word(skipped is None)}
        answer = self._json("POST", "categories", query, fields=fields)
        if skipped is not None:
            skipped += answer["skipped"]
        return _categories(answer)

    def forget(self, name: str) -> None:
        """Remove a taught category, or what a base category was taught."""
        self._call("DELETE", f"categories/{_quoted(name)}")

    def examples(self, name: str) -> list[Example]:
        """Return the examples of a taught category, in the order of teaching."""
        return [
            Example(
                one["id"],
                one["added"],
                np.array(one["feature"], np.float32),
                None if one["thumbnail"] is None else base64.b64decode(one["thumbnail"]),
            )
            for one in self._json("GET", "examples", {"category": name})["examples"]
        ]

    def duplicates(self, name: str) -> list[Duplicate]:
        """Return which pictures of a category were also taught to another one, or earlier to this one."""
        found = self._json("GET", f"duplicates/{_quoted(name)}")["duplicates"]
        return [Duplicate(**one) for one in found]

    def forget_example(self, example: int) -> None:
        """Remove one example by its id; a category without examples is forgotten."""
        self._call("DELETE", f"examples/{example}")

    def rename(self, old: str, new: str) -> Category:
        """Rename a category, and return it; its id and its examples stay."""
        return self._change(old, {"name": new})

    def hide(self, name: str) -> Category:
        """Never answer with this base category again, and return it; its scores stay."""
        return self._change(name, {"hidden": True})

    def unhide(self, name: str) -> Category:
        """Allow a hidden base category as an answer again, and return it."""
        return self._change(name, {"hidden": False})

    def features(self, pictures: Picture | Pictures) -> Floats:
        """Return the features (n, d) of pictures, as the extractor gives them."""
        found = [row for answer in self._each("features", pictures, {}) for row in answer["features"]]
        return np.array(found, np.float32)

    @overload
    def predict(  # type: ignore[overload-overlap]  # an array of any shape may be either
        self, pictures: Array4d, top: int = 5, among: Among = "all", *, unknown: bool = True
    ) -> list[list[Prediction]]: ...
    @overload
    def predict(  # type: ignore[overload-overlap]  # a path is a sequence of strings to the type checker
        self, pictures: Picture, top: int = 5, among: Among = "all", *, unknown: bool = True
    ) -> list[Prediction]: ...
    @overload
    def predict(
        self, pictures: Iterable[Picture], top: int = 5, among: Among = "all", *, unknown: bool = True
    ) -> list[list[Prediction]]: ...
    def predict(
        self, pictures: Picture | Pictures, top: int = 5, among: Among = "all", *, unknown: bool = True
    ) -> list[Prediction] | list[list[Prediction]]:
        """Return the `top` most probable answers for a picture, or a list of them for each of many."""
        query = {"top": str(top), "among": among, "unknown": _word(unknown)}
        answers = [
            [Prediction(**answer) for answer in one["answers"]]
            for call in self._each("predict", pictures, query)
            for one in call["predictions"]
        ]
        return answers if are_many(pictures) else answers[0]

    def explain(self, name: str, top: int = 5) -> list[tuple[str, float]]:
        """Return the base categories that a taught one leans on, or the categories it competes with."""
        return _shares(self._json("GET", f"explain/{_quoted(name)}", {"top": str(top)}))

    def resembles(self, name: str, top: int = 5) -> list[tuple[str, float]]:
        """Return which categories, base or taught, the examples of a taught one resemble most."""
        return _shares(self._json("GET", f"resembles/{_quoted(name)}", {"top": str(top)}))

    def backup(self, name: str | None = None) -> bytes:
        """Return everything that was taught, or what one category was taught, for `restore`."""
        return self._call("GET", "taught", {} if name is None else {"category": name})

    def restore(self, backup: bytes) -> dict[str, int]:
        """Take over what a backup holds and the service does not; return how much came to each category."""
        content = self._call("POST", "taught", body=backup)
        return cast("dict[str, int]", json.loads(content)["restored"])

    def _change(self, name: str, change: Mapping[str, object]) -> Category:
        body = json.dumps(change).encode()
        headers = {"Content-Type": "application/json"}
        return Category(**self._json("PATCH", f"categories/{_quoted(name)}", body=body, headers=headers))

    def _each(self, call: str, pictures: Picture | Pictures, query: Mapping[str, str]) -> Iterator[Any]:
        """Yield the answers for a few pictures at a time."""
        rest = _named(pictures)
        done = False
        while some := list(islice(rest, min(_AT_ONCE, self.model.pictures))):
            done = True
            yield self._json("POST", call, query, fields=[self._part(*one) for one in some])
        if not done:
            raise PictureError("no pictures were given: name at least one")

    def _part(self, picture: Picture, name: str) -> tuple[str, tuple[str, bytes, str]]:
        """Return a picture as a part of a form: scaled to the model's input, without loss."""
        size, short_side = self.model.input["size"], self.model.input["short_side"]
        content = io.BytesIO()
        pixels: npt.NDArray[np.uint8] = read_pixels(picture, size or 1, short_side, name)
        Image.fromarray(pixels).save(content, "PNG", compress_level=1)
        return "picture", (name, content.getvalue(), "image/png")

    def _json(self, method: str, path: str, query: Mapping[str, str] | None = None, **more: Any) -> Any:  # noqa: ANN401
        try:
            return json.loads(self._call(method, path, query, **more))
        except ValueError as error:
            raise ServiceError(f"{self._url} is not a service of recollect: check the address") from error

    def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        fields: Sequence[tuple[str, Any]] | None = None,
    ) -> bytes:
        url = f"{self._url}/v1/{path}{'?' if query else ''}{urlencode(query or {})}"
        kind = {}
        if fields is not None:
            body, content_type = urllib3.encode_multipart_formdata(fields)
            kind = {"Content-Type": content_type}
        try:
            answer = self._pool.request(
                method, url, body=body, headers={**self._headers, **kind, **(headers or {})}
            )
        except urllib3.exceptions.HTTPError as error:
            reason = brief(getattr(error, "reason", None) or error).rsplit(": ", 1)[-1]
            raise ServiceError(f"{self._url} does not answer ({reason}): is it running?") from error
        if answer.status >= 300:
            raise self._refusal(answer.status, answer.data)
        return answer.data

    def _refusal(self, status: int, content: bytes) -> RecollectError:
        """Return the error that a refusal stands for."""
        try:
            words = json.loads(content)
            detail, name = str(words["detail"]), words.get("error")
        except (ValueError, LookupError, TypeError, AttributeError):
            return ServiceError(f"{self._url} answers with status {status}: is it a service of recollect?")
        if status == 401:
            detail += "; the command line takes it from the environment variable RECOLLECT_TOKEN"
        kind = getattr(errors, name, None) if isinstance(name, str) else None
        if isinstance(kind, type) and issubclass(kind, RecollectError):
            return kind(detail)
        return ServiceError(f"{self._url}: {detail}")


def _categories(answer: Mapping[str, Any]) -> list[Category]:
    return [Category(**one) for one in answer["categories"]]


def _shares(answer: Mapping[str, Any]) -> list[tuple[str, float]]:
    return [(one["category"], one["share"]) for one in answer["shares"]]


def _word(value: bool) -> str:
    return "true" if value else "false"


def _quoted(name: str) -> str:
    return quote(name, safe="")


def _named(pictures: Picture | Pictures) -> Iterator[tuple[Picture, str]]:
    """Yield pictures with what errors call them."""
    several = are_many(pictures)
    given = cast("Iterable[Picture]", pictures if several else [pictures])
    for number, picture in enumerate(given, 1):
        yield picture, own_name(picture) or (f"picture {number}" if several else "the picture")
