"""`ImageSet`: decoded pictures with labels and category names, memory-mapped from a cache on disk."""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from recollect.errors import DataError, PictureError
from recollect.images import read_pixels
from recollect.model.spec import Preprocessing
from recollect.progress import track
from recollect.storage import cache_folder, replacing_folder

CACHE_VERSION = 1
Pixels = npt.NDArray[np.uint8]
Rows = npt.NDArray[np.int64]
log = logging.getLogger(__name__)


class Source(Protocol):
    """Pixels by row: an array, or what makes the rows when they are asked for."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Return (all, size, size, 3)."""
        ...

    def __getitem__(self, rows: Rows, /) -> Pixels:
        """Return a new array, (len(rows), size, size, 3)."""
        ...


@dataclass(frozen=True)
class ImageSet:
    """Pictures of some categories: picture i is `pixels[rows[i]]`, of category `categories[labels[i]]`."""

    pixels: Source  # (all, size, size, 3), memory-mapped
    rows: Rows  # (n,)
    labels: Rows  # (n,)
    categories: tuple[str, ...]
    key: str  # changes with the pictures and how they were decoded

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def size(self) -> int:
        """Return the height and width of every picture."""
        return int(self.pixels.shape[1])

    def take(self, indices: Rows) -> Pixels:
        """Return the pixels of some pictures, (len(indices), size, size, 3)."""
        return self.pixels[self.rows[indices]]

    def content_key(self) -> str:
        """Return a digest that names exactly these pictures in this order."""
        return hashlib.sha256(self.key.encode() + self.rows.tobytes()).hexdigest()[:32]

    def normalisation(self) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
        """Return the mean and standard deviation of every channel, of 255."""
        total, squares, count = np.zeros(3, np.int64), np.zeros(3, np.int64), 0
        for start in range(0, len(self), 1024):
            values = self.pixels[self.rows[start : start + 1024]].reshape(-1, 3).astype(np.int64)
            total += values.sum(axis=0)
            squares += (values**2).sum(axis=0)
            count += len(values)
        mean = total / count
        std = np.maximum(np.sqrt(squares / count - mean**2), 1.0)
        return _rounded(mean), _rounded(std)

    @cached_property
    def preprocessing(self) -> Preprocessing:
        """Return the preprocessing that suits these pictures."""
        mean, std = self.normalisation()
        return Preprocessing(size=self.size, mean=mean, std=std)


@dataclass(frozen=True)
class Library:
    """Every picture of a data set before it is split: a name and a label for each row of `pixels`."""

    pixels: Source
    labels: Rows
    categories: tuple[str, ...]
    names: tuple[str, ...]
    key: str

    def select(self, rows: Sequence[int] | Rows, categories: Sequence[str]) -> ImageSet:
        """Return the pictures at `rows`, labelled by their category's place in `categories`."""
        place = {name: index for index, name in enumerate(categories)}
        chosen = np.asarray(rows, dtype=np.int64)
        labels = np.array([place[self.categories[label]] for label in self.labels[chosen]], dtype=np.int64)
        return ImageSet(self.pixels, chosen, labels, tuple(categories), self.key)


@dataclass(frozen=True)
class Item:
    """A picture to be decoded: its category, its name inside the data set, where it lies, its bytes."""

    category: str
    name: str
    place: str
    read: Callable[[], bytes]


def digest(*words: object) -> str:
    """Return a short digest of anything JSON can say."""
    return hashlib.sha256(json.dumps(words, default=str).encode()).hexdigest()[:32]


def decode(items: Sequence[Item], *, key: str, size: int, skip_bad: bool) -> Library:
    """Decode pictures to `size` × `size`, once: a later call with the same key finds them in the cache.

    A picture that does not decode is an error that names it; with `skip_bad` it is left out and reported.
    """

    def one(item: Item) -> Pixels | PictureError:
        try:
            return read_pixels(item.read(), size, name=item.place)
        except PictureError as error:
            return error

    def build(pixels: Pixels) -> dict[str, Any]:
        kept: list[int] = []
        bad: list[str] = []
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # Pillow decodes outside the interpreter lock
            for index, result in enumerate(track(_in_order(pool, one, items), "decoding", len(items))):
                if isinstance(result, PictureError):
                    if not skip_bad:
                        raise PictureError(f"{result} (--skip-bad leaves such pictures out)")
                    bad.append(str(result))
                    continue
                pixels[len(kept)] = result
                kept.append(index)
        categories = sorted({items[index].category for index in kept})
        place = {name: index for index, name in enumerate(categories)}
        return {
            "categories": categories,
            "labels": [place[items[index].category] for index in kept],
            "names": [items[index].name for index in kept],
            "bad": bad,
        }

    library, bad = cached_library(key, (len(items), size, size, 3), build)
    if bad and not skip_bad:
        raise PictureError(f"{bad[0]} (--skip-bad leaves such pictures out)")
    for message in bad:
        log.warning("left out: %s", message)
    return library


def _in_order(
    pool: ThreadPoolExecutor, one: Callable[[Item], Pixels | PictureError], items: Sequence[Item]
) -> Iterator[Pixels | PictureError]:
    """Decode in parallel, a thousand pictures ahead at most, so that memory stays small."""
    for rows in batches(len(items), 1024):
        yield from pool.map(one, items[rows[0] : rows[-1] + 1])


def cached_library(
    key: str, shape: tuple[int, ...], build: Callable[[Pixels], dict[str, Any]]
) -> tuple[Library, list[str]]:
    """Open the pictures kept under `key`, or have `build` fill the pixel array and describe it."""
    folder = cache_folder() / "images" / key
    opened = _open_library(folder, key)
    if opened is None:
        with replacing_folder(folder) as part:
            pixels = np.lib.format.open_memmap(part / "pixels.npy", mode="w+", dtype=np.uint8, shape=shape)
            _reserve(part / "pixels.npy")
            about = build(pixels)
            pixels.flush()
            del pixels
            (part / "about.json").write_text(json.dumps({"version": CACHE_VERSION, **about}))
        opened = _open_library(folder, key)
    if opened is None:
        raise DataError(f"the cache at {folder} cannot be read back: check the disk, or set RECOLLECT_CACHE")
    return opened


def _open_library(folder: Path, key: str) -> tuple[Library, list[str]] | None:
    if not folder.is_dir():
        return None
    try:
        about = json.loads((folder / "about.json").read_text())
        pixels = np.load(folder / "pixels.npy", mmap_mode="r", allow_pickle=False)
        library = Library(
            pixels,
            np.array(about["labels"], dtype=np.int64),
            tuple(about["categories"]),
            tuple(about["names"]),
            key,
        )
        fits = (
            pixels.dtype == np.uint8
            and pixels.ndim == 4
            and len(library.labels) == len(library.names) <= len(pixels)
            and bool(np.isin(library.labels, np.arange(len(library.categories))).all())
        )
        if about["version"] == CACHE_VERSION and fits:
            return library, list(about["bad"])
        reason = "is damaged" if about["version"] == CACHE_VERSION else "was written by another version"
    except (OSError, EOFError, ValueError, KeyError, TypeError, OverflowError):
        reason = "is damaged"
    log.warning("the picture cache %s %s: decoding again", folder, reason)
    shutil.rmtree(folder, ignore_errors=True)
    return None


def _reserve(path: Path) -> None:
    """Claim the file's room now: writing to a sparse memory map on a full disk would kill the process."""
    if hasattr(os, "posix_fallocate"):
        with path.open("rb+") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


def _rounded(values: npt.NDArray[np.float64]) -> tuple[float, float, float]:
    red, green, blue = (round(float(value), 3) for value in values)
    return red, green, blue


def batches(count: int, size: int) -> Iterator[Rows]:
    """Yield 0 … count−1 in runs of `size`."""
    for start in range(0, count, size):
        yield np.arange(start, min(start + size, count))
