"""Progress on standard error: a bar with the time left, or a line now and then where it is no terminal."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from recollect.errors import one_line

T = TypeVar("T")
Advance = Callable[[int, str], None]
SECONDS = 30.0  # between two lines in a log
_quiet = False


def be_quiet(quiet: bool = True) -> None:
    """Show no progress and no remarks from now on."""
    global _quiet  # noqa: PLW0603
    _quiet = quiet


def say(line: str) -> None:
    """Print a remark on standard error, unless asked to be quiet."""
    if not _quiet:
        sys.stderr.write(f"{one_line(line)}\n")
        sys.stderr.flush()


@contextmanager
def bar(description: str, total: int, done: int = 0) -> Iterator[Advance]:
    """Show the progress of a block, which calls advance(steps, note)."""
    if _quiet:
        yield lambda _steps, _note: None
        return
    if not sys.stderr.isatty():
        yield _log(description, total, done)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(description, total=total, completed=done, note="")
        yield lambda steps, note: progress.update(task, advance=steps, note=note)


def track(items: Iterable[T], description: str, total: int) -> Iterator[T]:
    """Pass the items through while showing the progress."""
    with bar(description, total) as advance:
        for item in items:
            yield item
            advance(1, "")


def _log(description: str, total: int, start: int) -> Advance:
    """Return an `advance` that prints a line every half minute, for logs, notebooks and CI."""
    began = last = time.monotonic()
    done = start

    def advance(steps: int, note: str) -> None:
        nonlocal last, done
        done += steps
        now = time.monotonic()
        if now - last >= SECONDS:
            last = now
            left = (now - began) * (total - done) / max(done - start, 1)
            words = f"{description}: {done} of {total}, about {_duration(left)} left"
            say(f"{words}; {note}" if note else words)

    return advance


def _duration(seconds: float) -> str:
    """Return a rough length of time.

    >>> _duration(12.4), _duration(90), _duration(4000)
    ('12 s', '2 min', '1 h 7 min')
    """
    minutes = round(max(seconds, 0) / 60)
    if seconds < 60:
        return f"{max(seconds, 0):.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
