"""Pictures decoded ahead of their use, in worker processes."""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Dataset

from recollect.errors import DataError, PictureError

_PR_SET_PDEATHSIG = 1
Pixels = npt.NDArray[np.uint8]
Rows = npt.NDArray[np.int64]
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
        batches = iter(loader)
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


@contextmanager
def _own_handlers() -> Iterator[None]:
    """Undo torch's handler for workers that die: it raises wherever the main process happens to be."""
    if not hasattr(signal, "SIGCHLD") or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGCHLD)
    yield
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
