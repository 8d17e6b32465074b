"""Connections: clients that are too slow, send too long a head or are too many are cut off.

Uvicorn waits for ever for the rest of a request. Here a client has `patience` seconds for it, and more for a
large one as long as it arrives at a modest rate; and as long to take its answer.
"""

import asyncio
import json
import logging
import time
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from recollect.serve import metrics
from recollect.serve.logs import REQUESTS, timestamp
from recollect.serve.problems import HEADERS, MEDIA_TYPE, Problem, busy
from recollect.serve.settings import Limits

_requests = logging.getLogger(REQUESTS)
RATE = 16 << 10  # bytes a second that a large request or answer must get through
LONGEST_HEAD = 32 << 10  # bytes of request line and headers


class PatientProtocol(HttpToolsProtocol):
    """HTTP/1.1 over one connection."""

    limits = Limits()  # of this process, set before it listens

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start to wait for the first request."""
        super().connection_made(transport)
        self._timer: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._closing: asyncio.TimerHandle | None = None
        self._in_head = True
        if len(self.connections) > self.limits.connections:
            metrics.refused.labels("connections").inc()
            self._refuse(busy("there are too many connections"))
            return
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._received()
        self.resume_writing()
        if self._closing is not None:
            self._closing.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes, in time and not too many of a request's head."""
        if self.transport.is_closing():
            return
        if self._timer is None and not self._answering():
            self._expect()  # even if these are but blank lines between two requests
        self._bytes += len(data)
        super().data_received(data)
        if self._in_head and self._bytes > LONGEST_HEAD and not self.transport.is_closing():
            self._refuse(Problem(431, f"a request line and headers have at most {LONGEST_HEAD} bytes"))

    def on_message_begin(self) -> None:
        """Start to wait for the rest of a request that came right behind another."""
        if self._timer is None:
            self._expect()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Start to answer."""
        super().on_headers_complete()
        self._in_head = False

    def on_message_complete(self) -> None:
        """Stop waiting: the request is here."""
        self._received()
        self._in_head, self._bytes = True, 0  # of the next one
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP, in our own form."""
        self._refuse(Problem(400, msg))

    def on_response_complete(self) -> None:
        """Go on with the next request, if the connection stays open."""
        super().on_response_complete()
        self._close_in_time()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection."""
        super().timeout_keep_alive_handler()
        self._close_in_time()

    def pause_writing(self) -> None:
        """Wait for a client that does not take its answer."""
        super().pause_writing()
        left = self.transport.get_write_buffer_size() / RATE
        self._stalled = self.loop.call_later(self.limits.patience + left, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on answering."""
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        super().resume_writing()

    def _expect(self) -> None:
        """Start to wait for a request."""
        self._bytes = 0
        self._mark()
        self._timer = self.loop.call_later(self.limits.patience / 4, self._check)

    def _mark(self) -> None:
        """Remember that the client was fast enough until now."""
        self._marked = self.loop.time(), self._bytes

    def _received(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        """Give up on a request that comes too slowly."""
        moment, count = self._marked
        took = self.loop.time() - moment
        if self._answering() or self._bytes - count >= RATE * took:
            self._mark()
        elif took >= self.limits.patience:
            self._timer = None
            self._give_up()
            return
        self._timer = self.loop.call_later(self.limits.patience / 4, self._check)

    def _give_up(self) -> None:
        metrics.refused.labels("slow").inc()
        self._refuse(Problem(408, "the request did not arrive in time"))

    def _answering(self) -> bool:
        """Say whether an earlier request than the one that is awaited is being answered."""
        if not self._in_head:
            return bool(self.pipeline)
        return self.cycle is not None and not self.cycle.response_complete

    def _refuse(self, problem: Problem) -> None:
        """Answer without the application, if no other answer is on its way, and close."""
        self._received()
        begun = not self._in_head and self.cycle.response_started
        if not (begun or self._answering() or self.transport.is_closing()):
            content = problem.content()
            head: dict[str, Any] = {
                "content-type": MEDIA_TYPE,
                "content-length": len(content),
                "connection": "close",
                **HEADERS,
                **problem.headers,
            }
            lines = [f"HTTP/1.1 {problem.status} ", *(f"{name}: {value}" for name, value in head.items())]
            self.transport.write("\r\n".join([*lines, "", ""]).encode() + content)
            address = self.client[0] if self.client else None
            words = {"time": timestamp(time.time()), "client": address, "status": problem.status}
            _requests.info("%s", json.dumps({**words, "refused": problem.detail}))
        self.transport.close()
        self._close_in_time()

    def _close_in_time(self) -> None:
        """Do not wait for ever until a client has taken the last of its answers."""
        if self._closing is None and self.transport.is_closing():
            self._closing = self.loop.call_later(self.limits.patience, self.transport.abort)
