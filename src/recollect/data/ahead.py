"""Pictures decoded ahead of their use, in worker processes."""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from traceback import walk_tb
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from recollect.data.arrays import Pixels, Rows
from recollect.errors import DataError, PictureError

_PR_SET_PDEATHSIG = 1
Batch = tuple[Rows, Pixels | PictureError]


def read_ahead(
    take: Callable[[Rows], Pixels], work: Iterable[Rows]
) -> Generator[tuple[Rows, Pixels], None, None]:
    """Yield each batch of `work` with `take(batch)`, in order, computed by as many processes as threads.

    What comes out depends neither on how many there are nor on torch's random state, which stays as it is.
    The processes end when the generator does.
    """
    loader = DataLoader(
        _Batches(take),
        batch_size=None,
        sampler=work,
        num_workers=_workers(),
        collate_fn=_same,  # arrays go through a pipe: shared memory is scarce in containers
        worker_init_fn=_begin,
        generator=torch.Generator(),  # else every start would advance the global one
    )
    with _own_handlers():
        batches = _start(loader)
    try:
        for rows, pixels in batches:
            if isinstance(pixels, PictureError):
                raise pixels
            yield rows, pixels
    except RuntimeError as error:
        if not str(error).startswith("DataLoader worker (pid"):
            raise
        raise DataError(
            "a process that decodes pictures was killed, perhaps for want of memory: use fewer --threads"
        ) from error
    finally:
        del batches  # ends the processes


def _start(loader: DataLoader[Batch]) -> Iterator[Batch]:
    """Start the processes: all of them, or none and a clear error."""
    try:
        return iter(loader)
    except OSError as error:
        for frame, _ in walk_tb(error.__traceback__):
            made: Any = frame.f_locals.get("self")
            # What torch has made by halves cannot end the processes that it did start.
            if hasattr(made, "_workers") and not hasattr(made, "_workers_status"):
                made._workers_status = [True] * len(made._workers)  # noqa: SLF001
                made._shutdown_workers()  # noqa: SLF001
        raise DataError(
            f"no process that decodes pictures can be started: {error.strerror or error}. Use fewer "
            "--threads, or let decoded pictures be kept with a larger --cache-gb"
        ) from error


@contextmanager
def _own_handlers() -> Iterator[None]:
    """Undo torch's handler for workers that die: it raises wherever the main process happens to be."""
    if not hasattr(signal, "SIGCHLD") or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGCHLD)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, before)


class _Batches(Dataset[Batch]):
    """What a worker computes; an error comes as a value, without a worker's traceback in its words."""

    def __init__(self, take: Callable[[Rows], Pixels]) -> None:
        self.take = take

    def __getitem__(self, rows: Rows) -> Batch:
        try:
            return rows, self.take(rows)
        except PictureError as error:
            return rows, error


def _same(batch: Any) -> Any:  # noqa: ANN401
    return batch


def _begin(_worker: int) -> None:
    """Keep out of the way of Ctrl-C, which is for the main process; but never outlive that."""
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _workers() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, torch.get_num_threads())
