"""Progress bars with the time left, on standard error; silent when asked or where nobody watches."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
Advance = Callable[[int, str], None]
_quiet = False


def be_quiet() -> None:
    """Show no bars from now on."""
    global _quiet  # noqa: PLW0603
    _quiet = True


@contextmanager
def bar(description: str, total: int, done: int = 0) -> Iterator[Advance]:
    """Show a bar; the block calls advance(steps, note)."""
    if _quiet or not sys.stderr.isatty():
        yield lambda _steps, _note: None
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
    """Pass the items through while showing a bar for them."""
    with bar(description, total) as advance:
        for item in items:
            yield item
            advance(1, "")
