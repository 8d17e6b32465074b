"""A fork waits until no other thread computes or holds a lock: the child would wait for that thread."""

import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

_changed = threading.Condition(threading.Lock())
_depths: Counter[int] = Counter()  # how often each thread is inside `undisturbed`
_forking: set[int] = set()  # threads


@contextmanager
def undisturbed() -> Iterator[None]:
    """Keep other threads from forking meanwhile."""
    _enter()
    try:
        yield
    finally:
        _leave()


class Lock:
    """A re-entrant lock that no other thread holds at a fork."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        _enter()
        try:
            self._lock.acquire()
        except BaseException:
            _leave()
            raise

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        _leave()


def _enter() -> None:
    me = threading.get_ident()
    with _changed:
        while _forking and me not in _depths:  # a thread that is inside already must be able to finish
            _changed.wait()
        _depths[me] += 1


def _leave() -> None:
    me = threading.get_ident()
    with _changed:
        _depths[me] -= 1
        if not _depths[me]:
            del _depths[me]
            _changed.notify_all()


def _before() -> None:
    _changed.acquire()
    _forking.add(threading.get_ident())
    while _depths.keys() - _forking:
        _changed.wait()


def _after_in_parent() -> None:
    _forking.remove(threading.get_ident())
    _changed.notify_all()
    _changed.release()


def _after_in_child() -> None:
    global _changed  # noqa: PLW0603
    _changed = threading.Condition(threading.Lock())
    _forking.clear()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
