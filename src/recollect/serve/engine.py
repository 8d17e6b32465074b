"""One pass of the extractor for many waiting requests.

A few threads each take a batch of the pictures that wait, decode them, take them through the extractor in one
pass, and answer. Each computes on one core: that is as fast as all cores together on one batch, and does not
stall when a core is needed elsewhere. Another thread changes what is taught; predictions wait for it only
while it writes. Nothing but the event loop waits for a client.
"""

import asyncio
import gc
import math
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from recollect.images import read_pixels, thumbnail
from recollect.model.spec import Preprocessing
from recollect.recognition.recognizer import Recognizer
from recollect.recognition.results import Among, Category, Floats, Prediction
from recollect.serve import metrics
from recollect.serve.problems import Problem, busy
from recollect.serve.settings import Limits
from recollect.system import machine

Pixels = npt.NDArray[np.uint8]
T = TypeVar("T")
_MOST_CALLS = 64  # that wait and are not about pictures
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
    """A picture and what is asked about it; without a question, its feature is wanted."""

    upload: Upload
    question: Question | None
    future: "asyncio.Future[Any]"


class Engine:
    """A recogniser for many requests at once."""

    def __init__(self, recognizer: Recognizer, limits: Limits, prepare: Preprocessing, threads: int) -> None:
        self.recognizer = recognizer
        self.limits = limits
        self._prepare = prepare
        self._loop = asyncio.get_running_loop()
        self._waiting = 0  # pictures accepted and not answered
        self._calls = 0  # other calls accepted and not answered
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._writer = ThreadPoolExecutor(1, "teach")
        recognizer.before_adding = self._check_room
        recognizer.features(np.zeros((prepare.size, prepare.size, 3), np.uint8))  # the first pass is slow
        names = [f"extract-{number}" for number in range(threads)]
        self._threads = [threading.Thread(target=self._work, name=name, daemon=True) for name in names]
        for thread in self._threads:
            thread.start()

    async def close(self) -> None:
        """Finish what was accepted, and let the recogniser go."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            await asyncio.to_thread(thread.join)
        self._writer.shutdown()
        self.recognizer.close()

    async def predict(self, uploads: Sequence[Upload], question: Question) -> list[list[Prediction]]:
        """Return the answers for each picture."""
        with self._admitted(len(uploads)):
            return await self._each(uploads, question)

    async def features(self, uploads: Sequence[Upload]) -> Floats:
        """Return the features (n, d) of pictures."""
        with self._admitted(len(uploads)):
            return np.stack(await self._each(uploads))

    async def teach(
        self, given: Sequence[tuple[str, Upload]], *, thumbnails: bool, skipped: list[int] | None
    ) -> list[Category]:
        """Teach pictures, each with its category: all of them or none; see `Recognizer.teach_all`."""
        uploads = [upload for _, upload in given]
        with self._admitted(len(uploads)):
            features = np.stack(await self._each(uploads))
            small = (
                [await asyncio.to_thread(thumbnail, one.content) for one in uploads] if thumbnails else None
            )
            names = [name for name, _ in given]
            return await self.call(
                partial(self.recognizer.teach_features, names, features, small, skipped=skipped)
            )

    async def call(self, function: Callable[..., T], *arguments: object) -> T:
        """Call a function of the recogniser; one at a time, in the order of asking."""
        if self._calls >= _MOST_CALLS:
            metrics.refused.labels("calls").inc()
            raise busy(f"{self._calls} calls are waiting")
        self._calls += 1
        try:
            return await self._loop.run_in_executor(self._writer, function, *arguments)
        finally:
            self._calls -= 1

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

    async def _each(self, uploads: Sequence[Upload], question: Question | None = None) -> list[Any]:
        """Return the answers to a question about each picture, or the features."""
        jobs = [_Job(upload, question, self._loop.create_future()) for upload in uploads]
        with self._changed:
            self._jobs.extend(jobs)
            self._changed.notify(len(jobs))
        # All of them, so that none goes on behind our back.
        results = await asyncio.gather(*(job.future for job in jobs), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                try:
                    raise result
                finally:
                    del jobs, result, results  # or the error would keep itself, and with it the pictures
        return results

    def _check_room(self, taught: int, known: Mapping[str, int], new: Mapping[str, int]) -> None:
        """Refuse categories and examples beyond the limits."""
        if taught + len(new.keys() - known.keys()) > max(self.limits.categories, taught):
            raise Problem(
                409, f"at most {self.limits.categories} categories can be taught: forget some first"
            )
        for name, count in new.items():
            if known.get(name, 0) + count > self.limits.examples:
                raise Problem(
                    409, f"'{name}' can have at most {self.limits.examples} examples: forget some first"
                )

    def _work(self) -> None:
        """Answer pictures until the engine is closed."""
        while self._answer_some():
            pass

    def _answer_some(self) -> bool:
        """Answer the pictures of a pass, and forget them; say whether there were any."""
        jobs = self._take()
        if jobs:
            self._loop.call_soon_threadsafe(_deliver, jobs, self._answer(jobs))
        return bool(jobs)

    def _take(self) -> list[_Job]:
        """Return the pictures of the next pass, this thread's share; none once the engine is closed."""
        with self._changed:
            idle = not self._changed.wait_for(self._has_work, _IDLE)
        if idle:
            gc.collect()
            machine.give_back_freed_memory()  # what the largest pictures took
        with self._changed:
            self._changed.wait_for(self._has_work)
            share = math.ceil(len(self._jobs) / len(self._threads))
            return [self._jobs.popleft() for _ in range(min(share, self.limits.batch))]

    def _has_work(self) -> bool:
        return bool(self._jobs) or self._closed

    def _answer(self, jobs: Sequence[_Job]) -> list[Any]:
        """Return the answers, the feature or the error of each picture."""
        results: list[Any] = [self._pixels(job.upload) for job in jobs]
        good = [place for place, result in enumerate(results) if not isinstance(result, Exception)]
        if good:
            found = self._pass(np.stack([results[place] for place in good]), [jobs[place] for place in good])
            for place, result in zip(good, found, strict=True):
                results[place] = result
        return results

    def _pixels(self, upload: Upload) -> Pixels | Exception:
        most = self.limits.megapixels * 1_000_000
        try:
            return read_pixels(
                upload.content, self._prepare.size, self._prepare.short_side, upload.name, most
            )
        except Exception as error:  # noqa: BLE001 -- for whoever sent it
            return error

    def _pass(self, pixels: Pixels, jobs: Sequence[_Job]) -> list[Any]:
        """Return the answers or the feature of each decoded picture, or the error."""
        try:
            features = self.recognizer.features(pixels)
        except Exception as error:  # noqa: BLE001 -- for whoever waits
            if len(jobs) == 1:
                return [error]
            # One picture may be to blame.
            return [self._pass(one[None], [job])[0] for one, job in zip(pixels, jobs, strict=True)]
        metrics.batch.observe(len(features))
        results: list[Any] = list(features)
        for question in {job.question for job in jobs if job.question is not None}:
            places = [place for place, job in enumerate(jobs) if job.question == question]
            try:
                answers: list[Any] = self.recognizer.predict_features(
                    features[places], question.top, question.among, unknown=question.unknown
                )
            except Exception as error:  # noqa: BLE001
                answers = [error] * len(places)
            for place, answer in zip(places, answers, strict=True):
                results[place] = answer
        return results


def _deliver(jobs: Sequence[_Job], results: Sequence[Any]) -> None:
    for job, result in zip(jobs, results, strict=True):
        if job.future.cancelled():
            continue
        if isinstance(result, Exception):
            job.future.set_exception(result)
        else:
            job.future.set_result(result)
