"""Pictures that a person names: files, folders of them, archives; decoded a few at a time."""

import logging
import os.path
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar

import numpy as np

from recollect.data.arrays import Pixels
from recollect.data.folder import find_pictures
from recollect.data.imageset import Item, Undecoded, decoded
from recollect.errors import PictureError, counted

log = logging.getLogger(__name__)
BATCH = 256  # pictures decoded at a time
Named: TypeAlias = Path | Item


class Shaped(Protocol):
    """What says how large a model's pictures are."""

    @property
    def size(self) -> int:
        """Return the height and width."""

    @property
    def short_side(self) -> int | None:
        """Return the short side before the centre is cut out."""


N = TypeVar("N", bound=Named)


def find(paths: Sequence[Path], *, recursive: bool = False) -> list[Named]:
    """Return the pictures that paths name: a folder stands for those right in it, or also for deeper ones."""
    found: list[Named] = []
    for path in paths:
        # Not `Path.is_dir`, which raises on a name that is too long; opening it says more.
        found += find_pictures(path, recursive=recursive) if os.path.isdir(path) else [path]  # noqa: PTH112
    return found


def name_of(picture: Named) -> str:
    """Return where a picture is, for reports."""
    return picture.name if isinstance(picture, Item) else str(picture)


def read(
    pictures: Sequence[N], prepare: Shaped, title: str, *, skip_bad: bool, bad: list[dict[str, str]]
) -> Iterator[tuple[list[N], Pixels]]:
    """Yield a few pictures at a time with their pixels (n, size, size, 3).

    With `skip_bad`, those that cannot be read go to `bad` (`picture`, `reason`) and are reported; else the
    first one is an error, as it is when no picture can be read.
    """
    source = Undecoded(pictures, prepare.size, prepare.short_side)
    results = zip(pictures, decoded(source, title, skip_bad=skip_bad), strict=True)
    while some := list(islice(results, BATCH)):
        good: list[N] = []
        pixels: list[Pixels] = []
        for picture, result in some:
            if isinstance(result, PictureError):
                log.warning("left out: %s", result)
                bad.append({"picture": name_of(picture), "reason": str(result)})
            else:
                good.append(picture)
                pixels.append(result)
        if good:
            yield good, np.stack(pixels)
    if len(bad) == len(pictures):
        raise PictureError(f"none of {counted(len(pictures), 'picture')} can be read")
