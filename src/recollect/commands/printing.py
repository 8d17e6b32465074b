"""What the commands print: JSON or text on standard output, and pieces of tables they share."""

import errno
import io
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.text import Text

from recollect.errors import one_line
from recollect.system.disk import clear_write_errors

_WIDTH = 140  # columns where the output is no terminal
NEVER_UNKNOWN = (
    "this model never answers 'unknown': to learn when to, `train` and `refit` need at least 20 held-out "
    "pictures, most of them recognised (training holds out a tenth of each category, at least 2)"
)


def print_result(
    result: dict[str, Any], as_json: bool, show: Callable[[dict[str, Any]], RenderableType]
) -> None:
    """Print a result as JSON, or the text or table that `show` makes of it.

    `show` gets every text of the result with control characters escaped, so that no name or path can
    change what a terminal shows.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # what cannot be encoded is escaped
        sys.stdout.reconfigure(errors="backslashreplace")
    if as_json:
        sys.stdout.write(json_text(result, sys.stdout.encoding or "utf-8"))
        sys.stdout.flush()
        return
    shown = show(_printable(result))
    if isinstance(shown, str):
        print(shown, flush=True)  # noqa: T201
    else:
        Console(width=None if sys.stdout.isatty() else _WIDTH).print(shown)


def json_text(result: dict[str, Any], encoding: str = "utf-8") -> str:
    """Return JSON that `encoding` can hold: a path may be no valid text, a terminal may know only ASCII."""
    text = json.dumps(result, indent=1, ensure_ascii=False)
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = json.dumps(result, indent=1)
    return f"{text}\n"


class PathText:
    """A path in a table: where there is not enough room it loses its beginning, not the file's name."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        width = cell_len(self.path)
        return Measurement(min(width, cell_len(Path(self.path).name) + 1), width).with_maximum(
            options.max_width
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield Text(keep_end(self.path, options.max_width), no_wrap=True)


def keep_end(path: str, room: int) -> str:
    """Return a path cut to `room` columns: its beginning becomes "…".

    >>> keep_end("photos/zoo/okapi.jpg", 12)
    '…o/okapi.jpg'
    """
    if cell_len(path) <= room:
        return path
    return "…" + set_cell_size(path[::-1], max(room - 1, 0)).rstrip()[::-1]


def common_folder(paths: Sequence[str]) -> str:
    """Return the folder that all paths lie in, or "" where it would shorten nothing."""
    try:
        return os.path.commonpath([os.path.dirname(path) for path in paths]).rstrip("/")  # noqa: PTH120
    except ValueError:  # absolute and relative ones
        return ""


def require_writable(path: Path, *, folder: bool = False) -> None:
    """Refuse a file (or folder) that could not be written, before any work is done for it."""
    with clear_write_errors(path):
        if path.is_dir() and not folder:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if path.exists() and not path.is_dir():
            if folder:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            if not path.is_file():  # a device or a pipe
                return
        place = path.absolute()
        there = next(one for one in ([place] if folder else []) + [*place.parents] if one.exists())
        with tempfile.TemporaryFile(dir=there):
            pass


def percent(probability: float) -> str:
    """Return a probability in words that never claim to be certain.

    >>> percent(0.504), percent(0.9999), percent(0.0001)
    ('50 %', '>99 %', '<1 %')
    """
    if probability < 0.005:
        return "<1 %"
    return ">99 %" if probability >= 0.995 else f"{100 * probability:.0f} %"


def _printable(value: Any) -> Any:  # noqa: ANN401
    """Return a result with the control characters of all its texts escaped."""
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, dict):
        return {key: _printable(inner) for key, inner in value.items()}
    return [_printable(inner) for inner in value] if isinstance(value, list) else value
