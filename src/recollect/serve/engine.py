"""One pass of the extractor for many waiting requests.

Pictures are decoded in a few threads. One thread takes all that is decoded, up to a batch, through the
extractor and answers it; another one changes what is taught. So predictions never wait for a disk, except for
the moment in which a category appears, and nothing but the event loop waits for a client.
"""

import asyncio
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from recollect.errors import RecollectError
from recollect.images import read_pixels, thumbnail
from recollect.recognition.recognizer import Among, Recognizer
from recollect.recognition.results import Category, Floats, Prediction
from recollect.serve import metrics
from recollect.serve.problems import Problem, busy
from recollect.serve.settings import Limits
from recollect.system import machine

Pixels = npt.NDArray[np.uint8]
T = TypeVar("T")
_MOST_DECODERS = 4
_IDLE = 5.0  # seconds without work


class Upload(NamedTuple):
    """A picture that a client sent, and what errors call it."""

    content: bytes
    name: str


class Question(NamedTuple):
    """What is asked about pictures."""

    top: int = 5
    among: Among = "all"
    unknown: bool = True


@dataclass(eq=False)
class _Job:
    """Decoded pictures (n, size, size, 3) of one request; without a question, their features are wanted."""

    pixels: Pixels
    question: Question | None
    future: "asyncio.Future[Any]"


class Engine:
    """A recogniser for many requests at once."""

    def __init__(self, recognizer: Recognizer, limits: Limits, size: int, short_side: int | None) -> None:
        self.recognizer = recognizer
        self.limits = limits
        self._shape = size, short_side
        self._loop = asyncio.get_running_loop()
        self._waiting = 0  # pictures
        self._decoding = 0  # pictures that will soon be ready for a pass
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        decoders = max(1, min(_MOST_DECODERS, os.cpu_count() or 1))
        self._decoders = ThreadPoolExecutor(decoders, "decode")
        self._writer = ThreadPoolExecutor(1, "teach")
        self._thread = threading.Thread(target=self._work, name="extract", daemon=True)
        recognizer.features(np.zeros((size, size, 3), np.uint8))  # the first pass is slow
        self._thread.start()

    async def close(self) -> None:
        """Finish what was accepted, and let the recogniser go."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        await asyncio.to_thread(self._thread.join)
        self._decoders.shutdown()
        self._writer.shutdown()
        self.recognizer.close()

    async def predict(self, uploads: Sequence[Upload], question: Question) -> list[list[Prediction]]:
        """Return the answers for each picture."""
        with self._admitted(len(uploads)):
            answers: list[list[Prediction]] = await self._pass(uploads, question)
            return answers

    async def features(self, uploads: Sequence[Upload]) -> Floats:
        """Return the features (n, d) of pictures."""
        with self._admitted(len(uploads)):
            features: Floats = await self._pass(uploads, None)
            return features

    async def teach(
        self, given: Sequence[tuple[str, Upload]], *, thumbnails: bool, skipped: list[int] | None
    ) -> list[Category]:
        """Teach pictures, each with its category: all of them or none; see `Recognizer.teach_all`."""
        uploads = [upload for _, upload in given]
        with self._admitted(len(uploads)):
            features: Floats = await self._pass(uploads, None)
            small = await self._decode(_thumbnail, uploads) if thumbnails else None
            return await self.call(self._teach, [name for name, _ in given], features, small, skipped)

    async def restore(self, backup: bytes) -> dict[str, int]:
        """Take over what a backup holds."""
        return await self.call(self._restore, backup)

    async def call(self, function: Callable[..., T], *arguments: object) -> T:
        """Call a function of the recogniser; one at a time, in the order of asking."""
        return await self._loop.run_in_executor(self._writer, function, *arguments)

    @contextmanager
    def _admitted(self, pictures: int) -> Iterator[None]:
        """Count pictures as waiting; refuse them if there are too many."""
        if self._waiting + pictures > self.limits.queue:
            metrics.refused.labels("queue").inc()
            raise busy(f"{self._waiting} pictures are waiting, and there is no room for {pictures} more")
        self._waiting += pictures
        metrics.waiting.set(self._waiting)
        try:
            yield
        finally:
            self._waiting -= pictures
            metrics.waiting.set(self._waiting)

    async def _pass(self, uploads: Sequence[Upload], question: Question | None) -> Any:  # noqa: ANN401
        """Decode pictures and take them through the extractor, together with those of other requests."""
        jobs: list[_Job] = []
        with self._changed:
            self._decoding += len(uploads)
        try:
            pixels = np.stack(await self._decode(self._pixels, uploads))
            jobs.append(_Job(pixels, question, self._loop.create_future()))
        finally:
            with self._changed:
                self._decoding -= len(uploads)
                self._jobs.extend(jobs)
                self._changed.notify()
        return await jobs[0].future

    async def _decode(self, function: Callable[[Upload], T], uploads: Sequence[Upload]) -> list[T]:
        futures = [self._loop.run_in_executor(self._decoders, function, upload) for upload in uploads]
        done = await asyncio.gather(*futures, return_exceptions=True)  # so that none goes on behind our back
        for one in done:
            if isinstance(one, BaseException):
                raise one
        return done  # type: ignore[return-value]

    def _pixels(self, upload: Upload) -> Pixels:
        size, short_side = self._shape
        most = self.limits.megapixels * 1_000_000
        return read_pixels(upload.content, size, short_side, upload.name, most)

    def _teach(
        self,
        names: Sequence[str],
        features: Floats,
        small: Sequence[bytes] | None,
        skipped: list[int] | None,
    ) -> list[Category]:
        self._check_room(Counter(names))
        return self.recognizer.teach_features(names, features, small, skipped=skipped)

    def _restore(self, backup: bytes) -> dict[str, int]:
        self._check_room(self.recognizer.in_backup(backup))
        return self.recognizer.restore(backup)

    def _check_room(self, new: Mapping[str, int]) -> None:
        """Refuse categories and examples beyond the limits."""
        known = {one.name: one.examples or 0 for one in self.recognizer.categories() if one.examples}
        if len(known.keys() | new.keys()) > max(self.limits.categories, len(known)):
            raise Problem(
                409, f"at most {self.limits.categories} categories can be taught: forget some first"
            )
        for name, count in new.items():
            if known.get(name, 0) + count > self.limits.examples:
                raise Problem(
                    409, f"'{name}' can have at most {self.limits.examples} examples: forget some first"
                )

    def _work(self) -> None:
        """Take pictures through the extractor until the engine is closed."""
        while jobs := self._take():
            try:
                results = self._answer(jobs)
            except Exception as error:  # noqa: BLE001 -- whoever waits must be told
                results = [error] * len(jobs)
            self._loop.call_soon_threadsafe(_deliver, jobs, results)

    def _take(self) -> list[_Job]:
        """Return the requests of the next pass, or none once the engine is closed.

        While others are being decoded, a pass that is not full waits for them a little.
        """
        with self._changed:
            while not self._jobs and not self._closed:
                if not self._changed.wait(_IDLE) and not self._jobs:
                    machine.give_back_freed_memory()  # what the largest pictures took
                    self._changed.wait()
            latest = time.monotonic() + self.limits.batch_wait_ms / 1000
            while self._decoding and sum(len(job.pixels) for job in self._jobs) < self.limits.batch:
                left = latest - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            taken: list[_Job] = []
            count = 0
            while self._jobs and (not taken or count + len(self._jobs[0].pixels) <= self.limits.batch):
                taken.append(self._jobs.popleft())
                count += len(taken[-1].pixels)
        return taken

    def _answer(self, jobs: Sequence[_Job]) -> list[Any]:
        """Return the answers, the features or the error of each request."""
        try:
            features = self.recognizer.features(np.concatenate([job.pixels for job in jobs]))
        except RecollectError as error:
            if len(jobs) == 1:
                return [error]
            return [result for job in jobs for result in self._answer([job])]  # one may be to blame
        metrics.batch.observe(len(features))
        rows = np.split(features, np.cumsum([len(job.pixels) for job in jobs])[:-1])
        results: list[Any] = list(rows)
        places: dict[Question, list[int]] = {}
        for place, job in enumerate(jobs):
            if job.question is not None:
                places.setdefault(job.question, []).append(place)
        for question, same in places.items():
            together = np.concatenate([rows[place] for place in same])
            try:
                answers = iter(
                    self.recognizer.predict_features(
                        together, question.top, question.among, unknown=question.unknown
                    )
                )
            except RecollectError as error:
                for place in same:
                    results[place] = error
                continue
            for place in same:
                results[place] = [next(answers) for _ in rows[place]]
        return results


def _thumbnail(upload: Upload) -> bytes:
    return thumbnail(upload.content)


def _deliver(jobs: Sequence[_Job], results: Sequence[Any]) -> None:
    for job, result in zip(jobs, results, strict=True):
        if job.future.cancelled():
            continue
        if isinstance(result, Exception):
            job.future.set_exception(result)
        else:
            job.future.set_result(result)
