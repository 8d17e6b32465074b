"""What every request passes: whom it is for, where it comes from, how large it is; and a line in the log."""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit

from recollect.errors import one_line
from recollect.serve import metrics
from recollect.serve.logs import REQUESTS, timestamp
from recollect.serve.problems import HEADERS, MEDIA_TYPE, Problem, busy
from recollect.serve.settings import Limits, Settings

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

_log = logging.getLogger(__name__)
_requests = logging.getLogger(REQUESTS)
_SAFE = {"GET", "HEAD", "OPTIONS"}
_HEADERS = {name.encode(): value.encode() for name, value in HEADERS.items()}
_LINGER = 5.0  # seconds for the rest of a body that is not wanted
_GONE = 499  # in the log: the client went away before its answer


class Gate:
    """The application behind all checks."""

    def __init__(self, app: App, settings: Settings) -> None:
        self._app = app
        self._limits = settings.limits
        self._names = {name.lower() for name in ("localhost", settings.host, *settings.hosts)}
        self._held = 0  # bytes of all bodies

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":  # the start and end of the service
            await self._app(scope, receive, send)
            return
        passage = _Passage(self, scope, receive, send)
        try:
            self._check(scope)
            await self._app(scope, passage.receive, passage.send)
        except Problem as problem:
            await passage.refuse(problem)
        except Exception:  # noqa: BLE001 -- whoever asked must be told
            _log.exception("a bug, in the answer to %s", one_line(scope["path"]))
            await passage.refuse(Problem(500, "a bug of the service; its log says more"))
        finally:
            self._held -= passage.received
            passage.record()
        await passage.linger()

    def hold(self, count: int) -> None:
        """Count bytes of a body that are kept until its request is answered."""
        self._held += count
        if self._held > self._limits.memory_mb << 20:
            metrics.refused.labels("memory").inc()
            raise busy("too many large requests are being answered")

    @property
    def limits(self) -> Limits:
        """Return the limits that bodies keep to."""
        return self._limits

    def _check(self, scope: Message) -> None:
        headers = {}
        for name, value in scope["headers"]:
            if name in headers and name in {b"host", b"origin", b"content-length"}:
                raise Problem(HTTPStatus.BAD_REQUEST, f"the header {name.decode()} is given twice")
            headers[name] = value.decode("latin-1")
        host = headers.get(b"host", "")
        if not self._is_ours(host):
            raise Problem(
                HTTPStatus.MISDIRECTED_REQUEST,
                "this service is not known by that name: start it with --allow-host NAME",
            )
        if b"%" in scope["raw_path"]:
            try:
                unquote_to_bytes(scope["raw_path"]).decode()
            except UnicodeDecodeError as error:
                raise Problem(HTTPStatus.BAD_REQUEST, "the path is not UTF-8") from error
        if scope["method"] in _SAFE:
            return
        site = headers.get(b"sec-fetch-site", "none")
        origin = headers.get(b"origin")
        if site not in {"none", "same-origin"} or (
            origin is not None and origin not in {f"http://{host}", f"https://{host}"}
        ):
            raise Problem(HTTPStatus.FORBIDDEN, "requests from the pages of other sites are refused")
        length = headers.get(b"content-length", "0")
        if length.isdecimal() and int(length) > self._limits.body_mb << 20:
            raise self.too_large()

    def too_large(self) -> Problem:
        """Return the answer for a body that is too large."""
        most = self._limits.body_mb
        return Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a request has at most {most} MiB: send less")

    def _is_ours(self, host: str) -> bool:
        """Say whether a Host header is one that a browser sends for us.

        A page that makes its own name point to this machine sends that name: only addresses, which no other
        site can have, and names that were allowed are taken.
        """
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name in self._names:
            return True
        try:
            ip_address(name)
        except ValueError:
            return False
        return True


class _Passage:
    """One request on its way in and out."""

    def __init__(self, gate: Gate, scope: Message, receive: Receive, send: Send) -> None:
        self._gate, self._scope = gate, scope
        self._receive, self._send = receive, send
        self._began = time.perf_counter()
        self._status = 0
        self._whole = False  # all of the body is here
        self._open = False  # the answer was sent, and its end is not yet said
        self.received = 0

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            count = len(message.get("body", b""))
            self.received += count
            self._gate.hold(count)
            if self.received > self._gate.limits.body_mb << 20:
                raise self._gate.too_large()
            self._whole = not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            own = {name for name, _ in message["headers"]}
            message["headers"] = [
                *message["headers"],
                *((name, value) for name, value in _HEADERS.items() if name not in own),
            ]
            if self._has_more():
                message["headers"].append((b"connection", b"close"))
        elif not message.get("more_body", False) and self._has_more():
            message, self._open = {**message, "more_body": True}, True
        await self._send(message)

    async def refuse(self, problem: Problem) -> None:
        if self._status:  # too late: all that can be done is to cut the answer off
            return
        content = problem.content()
        headers = [
            (b"content-type", MEDIA_TYPE.encode()),
            (b"content-length", str(len(content)).encode()),
            *((name.lower().encode(), value.encode()) for name, value in problem.headers.items()),
        ]
        await self.send({"type": "http.response.start", "status": problem.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": content})

    async def linger(self) -> None:
        """Throw away the rest of the body: whoever sends to a closed connection may never see the answer.

        Not for ever, and no more than a body may have. By now nothing of this one is kept.
        """
        if not self._open:
            return
        left = self._gate.limits.body_mb << 20
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER):
                while left > 0 and (message := await self._receive()).get("more_body", False):
                    left -= len(message["body"])
        await self._send({"type": "http.response.body"})

    def record(self) -> None:
        """Count the request, and write its line."""
        took = time.perf_counter() - self._began
        scope, status = self._scope, self._status or _GONE
        route = getattr(scope.get("route"), "path", "none")
        metrics.requests.labels(scope["method"] if route != "none" else "none", route, status).inc()
        metrics.seconds.labels(route).observe(took)
        metrics.received.inc(self.received)
        words = {
            "time": timestamp(time.time()),
            "client": scope["client"][0] if scope.get("client") else None,
            "method": scope["method"],
            "path": scope["path"],
            "status": status,
            "ms": round(took * 1000, 1),
            "bytes": self.received,
            **scope.get("recollect", {}),
        }
        _requests.info("%s", json.dumps(words))

    def _has_more(self) -> bool:
        """Say whether the request has a body of which not all was read."""
        return not self._whole and any(
            (name == b"content-length" and value != b"0") or name == b"transfer-encoding"
            for name, value in self._scope["headers"]
        )
