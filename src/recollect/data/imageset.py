"""`ImageSet`: decoded pictures with labels and category names, memory-mapped from a cache on disk."""

import hashlib
import json
import logging
import os
import shutil
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import ceil, prod
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from recollect.data.arrays import Pixels, Rows
from recollect.errors import DataError, PictureError, StorageError, one_line
from recollect.images import Picture, read_pixels
from recollect.model.spec import Preprocessing
from recollect.system.disk import cache_folder, replacing_folder, require_regular, write_text
from recollect.system.progress import track

CACHE_VERSION = 1
CACHE_GB = 16.0  # decoded pictures that take more than this are not kept, but decoded when they are needed
_SAMPLED_ABOVE = 16e9  # bytes of pictures from which normalisation looks at some only
_SAMPLE = 10_000
_AT_ONCE = 1 << 22  # values that normalisation adds up at a time
_LARGE = 1 << 24  # bytes of a file that does not wait in memory to be decoded
log = logging.getLogger(__name__)
T = TypeVar("T")
R = TypeVar("R")


class Source(Protocol):
    """Pixels by row: an array, or what makes the rows when they are asked for."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Return (all, size, size, 3)."""

    def __getitem__(self, rows: Rows, /) -> Pixels:
        """Return a new array, (len(rows), size, size, 3)."""


@dataclass(frozen=True)
class ImageSet:
    """Pictures of some categories: picture i is `pixels[rows[i]]`, of category `categories[labels[i]]`."""

    pixels: Source  # (all, size, size, 3), memory-mapped or decoded on the fly
    rows: Rows  # (n,)
    labels: Rows  # (n,)
    categories: tuple[str, ...]
    key: str  # changes with the pictures and how they were decoded
    published: Preprocessing | None = None  # where a data set has one of its own

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def size(self) -> int:
        """Return the height and width of every picture."""
        return int(self.pixels.shape[1])

    def take(self, indices: Rows) -> Pixels:
        """Return the pixels of some pictures, (len(indices), size, size, 3)."""
        return self.pixels[self.rows[indices]]

    @property
    def on_the_fly(self) -> bool:
        """Return whether pictures are decoded each time they are used."""
        return bool(getattr(self.pixels, "on_the_fly", False))

    def stream(self, work: Iterable[Rows]) -> Generator[tuple[Rows, Pixels], None, None]:
        """Yield each batch of indices with the pixels of its pictures; to be closed if not used up.

        What is decoded on the fly is decoded ahead, in threads that end with the generator.
        """
        if self.on_the_fly:
            import torch

            yield from _ahead(self.take, work, torch.get_num_threads())
        else:
            for indices in work:
                yield indices, self.take(indices)

    def first(self, count: int) -> "ImageSet":
        """Return the first `count` pictures of each category."""
        order = np.argsort(self.labels, kind="stable")
        sizes = np.bincount(self.labels, minlength=len(self.categories))
        place = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        chosen = np.sort(order[place < count])
        return replace(self, rows=self.rows[chosen], labels=self.labels[chosen])

    def content_key(self) -> str:
        """Return a digest that names exactly these pictures in this order."""
        return hashlib.sha256(self.key.encode() + self.rows.tobytes()).hexdigest()[:32]

    def normalisation(self) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
        """Return the mean and standard deviation of every channel, of 255.

        Of pictures that take more than 16 GB, an evenly spaced sample of 10 000 is used.
        """
        total, squares, count = np.zeros(3, np.int64), np.zeros(3, np.int64), 0
        each = 3 * self.size**2
        large = each * len(self) > _SAMPLED_ABOVE
        chosen = np.arange(0, len(self), ceil(len(self) / _SAMPLE) if large else 1)
        work = (chosen[part] for part in batches(len(chosen), max(1, _AT_ONCE // each)))
        with closing(self.stream(work)) as stream:
            for _, pixels in stream:
                values = pixels.reshape(-1, 3).astype(np.int64)
                total += values.sum(axis=0)
                squares += (values**2).sum(axis=0)
                count += len(values)
        mean = total / count
        std = np.maximum(np.sqrt(squares / count - mean**2), 1.0)
        return _rounded(mean), _rounded(std)

    @cached_property
    def preprocessing(self) -> Preprocessing:
        """Return the preprocessing that suits these pictures."""
        if self.published is not None:
            return self.published
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
    published: Preprocessing | None = None

    def select(self, rows: Sequence[int] | Rows, categories: Sequence[str]) -> ImageSet:
        """Return the pictures at `rows`, labelled by their category's place in `categories`."""
        place = {name: index for index, name in enumerate(categories)}
        chosen = np.asarray(rows, dtype=np.int64)
        labels = np.array([place[self.categories[label]] for label in self.labels[chosen]], dtype=np.int64)
        return ImageSet(self.pixels, chosen, labels, tuple(categories), self.key, self.published)

    def whole(self) -> ImageSet:
        """Return all pictures."""
        return self.select(range(len(self.labels)), self.categories)


@dataclass(frozen=True)
class Item:
    """A picture to be decoded; it may be handed over wherever a picture is expected."""

    category: str
    relative: str  # its name inside the data set
    name: str  # its path, for errors and reports
    read: Callable[[], bytes]
    forward_only: bool = False  # whether reading out of order is too slow to be of use


@dataclass(frozen=True)
class Undecoded:
    """Pictures that are decoded whenever their rows are asked for."""

    items: Sequence[Picture]
    size: int
    short_side: int | None
    on_the_fly: ClassVar[bool] = True

    @property
    def shape(self) -> tuple[int, ...]:
        """Return (pictures, size, size, 3)."""
        return (len(self.items), self.size, self.size, 3)

    def __getitem__(self, rows: Rows) -> Pixels:
        pixels = np.empty((len(rows), *self.shape[1:]), np.uint8)
        for place, row in enumerate(rows):
            pixels[place] = self.decode(self.items[row])
        return pixels

    def decode(self, picture: Picture) -> Pixels:
        """Return one picture, (size, size, 3)."""
        return read_pixels(picture, self.size, self.short_side)


def digest(*words: object) -> str:
    """Return a short digest of anything JSON can say."""
    return hashlib.sha256(json.dumps(words, default=str).encode()).hexdigest()[:32]


def decode(
    items: Sequence[Item],
    *,
    key: str,
    size: int,
    skip_bad: bool,
    short_side: int | None = None,
    cache_gb: float = CACHE_GB,
) -> Library:
    """Decode pictures to `size` × `size`, once: a later call with the same key finds them in the cache.

    Pictures that would take more than `cache_gb` are decoded whenever they are needed, and here once, so
    that a bad one is known before the work begins. A picture that does not decode is an error that names
    it; with `skip_bad` it is left out and reported.
    """
    source = Undecoded(items, size, short_side)

    def build(room: Callable[[int], Pixels]) -> dict[str, Any]:
        pixels = room(len(items))
        kept: list[int] = []
        bad: list[str] = []
        for index, result in enumerate(decoded(source, "decoding", skip_bad=skip_bad)):
            if isinstance(result, PictureError):
                bad.append(str(result))
            else:
                pixels[len(kept)] = result
                kept.append(index)
        return _described([items[index] for index in kept], bad)

    if prod(source.shape) <= cache_gb * 1e9:
        library, bad = cached_library(key, size, build)
    else:
        opened = _open_library(_place(key), key, size)  # where there was room once
        if opened is None and any(item.forward_only for item in items):
            raise DataError(
                f"{items[0].name} is in a compressed tar, which cannot be read out of order: unpack it, "
                f"make a zip of it, or {_room_for(source.shape)}"
            )
        library, bad = opened or _undecoded_library(items, source, key, skip_bad=skip_bad)
    if bad and not skip_bad:
        raise PictureError(f"{bad[0]} (--skip-bad leaves such pictures out)")
    for message in bad:
        log.warning("left out: %s", one_line(message))
    return library


def require_room(place: object, shape: tuple[int, ...], cache_gb: float) -> None:
    """Refuse pictures that come in one piece, and can only be kept whole, if they would take too much."""
    if prod(shape) > cache_gb * 1e9:
        raise DataError(
            f"{place} would take up to {prod(shape) / 1e9:.2g} GB decoded, more than {cache_gb:g}, and is "
            f"not a folder of pictures that could be decoded on the fly: {_room_for(shape)}"
        )


def _room_for(shape: tuple[int, ...]) -> str:
    return f"allow for it with --cache-gb {ceil(prod(shape) / 1e9)}"


def decoded(source: Undecoded, title: str, *, skip_bad: bool) -> Iterator[Pixels | PictureError]:
    """Decode every picture, in order; without `skip_bad` the first bad one ends it."""

    def decode(picture: Picture) -> Pixels | PictureError:
        try:
            return source.decode(picture)
        except PictureError as error:
            return PictureError(str(error))  # without its traceback, which holds the picture

    def in_turn(picture: Picture) -> Callable[[], Pixels | PictureError]:
        """Return the work that a thread can do; what is slow to read out of order is read here."""
        if not (isinstance(picture, Item) and picture.forward_only):
            return partial(decode, picture)
        try:
            content = picture.read()
        except PictureError as error:
            bad = PictureError(str(error))
            return lambda: bad
        picture = replace(picture, read=lambda: content)
        if len(content) > _LARGE:
            result = decode(picture)
            return lambda: result
        return partial(decode, picture)

    results = _ahead(lambda work: work(), map(in_turn, source.items), 8 * (os.cpu_count() or 1))
    with closing(results):
        for _, result in track(results, title, len(source.items)):
            if isinstance(result, PictureError) and not skip_bad:
                hint = " (--skip-bad leaves such pictures out)" if len(source.items) > 1 else ""
                raise PictureError(f"{result}{hint}")
            yield result


def _ahead(function: Callable[[T], R], work: Iterable[T], pieces: int) -> Generator[tuple[T, R], None, None]:
    """Yield each piece of work and what the function gives for it, in order.

    Threads work ahead by some `pieces`, no more, to bound memory. Pillow decodes outside the lock of Python.
    """
    pool = ThreadPoolExecutor(os.cpu_count())
    waiting: deque[tuple[T, Future[R]]] = deque()
    try:
        for piece in work:
            waiting.append((piece, pool.submit(function, piece)))
            if len(waiting) > pieces:
                done, result = waiting.popleft()
                yield done, result.result()
        for done, result in waiting:
            yield done, result.result()
    finally:
        pool.shutdown(cancel_futures=True)


def described(categories: Sequence[str], names: Sequence[str], bad: Sequence[str] = ()) -> dict[str, Any]:
    """Describe the pictures of a `Library` by the category and the name of each."""
    known = sorted(set(categories))
    place = {name: index for index, name in enumerate(known)}
    return {"categories": known, "labels": [place[name] for name in categories], "names": names, "bad": bad}


def _described(items: Sequence[Item], bad: Sequence[str] = ()) -> dict[str, Any]:
    return described([item.category for item in items], [item.relative for item in items], bad)


def _library(pixels: Source, about: dict[str, Any], key: str) -> Library:
    labels = np.array(about["labels"], dtype=np.int64)
    return Library(pixels, labels, tuple(about["categories"]), tuple(about["names"]), key)


def _undecoded_library(
    items: Sequence[Item], source: Undecoded, key: str, *, skip_bad: bool
) -> tuple[Library, list[str]]:
    """Return the pictures that decode, to be decoded again; which do not is kept under `key`."""
    path = cache_folder() / "checked" / f"{key}.json"
    try:
        require_regular(path)
        kept = json.loads(path.read_text(encoding="utf-8")).items()
        bad = {int(index): str(message) for index, message in kept}
    except (OSError, ValueError, AttributeError):  # not there, or damaged: they can be checked again
        results = enumerate(decoded(source, "checking pictures", skip_bad=skip_bad))
        bad = {index: str(result) for index, result in results if isinstance(result, PictureError)}
        try:
            write_text(path, json.dumps(bad))
        except StorageError as error:
            log.warning("the list of bad pictures is not cached: %s", error)
    good = [item for index, item in enumerate(items) if index not in bad]
    return _library(replace(source, items=good), _described(good), key), list(bad.values())


def _place(key: str) -> Path:
    return cache_folder() / "images" / key


def cached_library(
    key: str, size: int, build: Callable[[Callable[[int], Pixels]], dict[str, Any]]
) -> tuple[Library, list[str]]:
    """Open the pictures of `size` × `size` kept under `key`, or have them made.

    `build` gets a function that returns an array for so many pictures; it fills that and describes them.
    """
    folder = _place(key)
    opened = _open_library(folder, key, size)
    if opened is None:
        with replacing_folder(folder) as part:
            made: list[np.memmap[Any, np.dtype[np.uint8]]] = []

            def room(count: int) -> Pixels:
                path, shape = part / "pixels.npy", (count, size, size, 3)
                made.append(np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=shape))
                _reserve(path)
                return made[-1]

            about = build(room)
            for pixels in made:  # to disk, before the folder has its name
                pixels.flush()
            (part / "about.json").write_text(json.dumps({"version": CACHE_VERSION, **about}))
        opened = _open_library(folder, key, size)
    if opened is None:
        raise DataError(f"the cache at {folder} cannot be read back: check the disk, or set RECOLLECT_CACHE")
    return opened


def _open_library(folder: Path, key: str, size: int) -> tuple[Library, list[str]] | None:
    if not folder.is_dir():
        return None
    try:
        for name in ("about.json", "pixels.npy"):
            require_regular(folder / name)
        about = json.loads((folder / "about.json").read_text())
        pixels = np.load(folder / "pixels.npy", mmap_mode="r", allow_pickle=False)
        library = _library(pixels, about, key)
        fits = (
            pixels.dtype == np.uint8
            and pixels.shape[1:] == (size, size, 3)
            and all(isinstance(name, str) for name in (*library.categories, *library.names))
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
