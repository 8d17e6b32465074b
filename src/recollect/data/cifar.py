"""CIFAR-FS: CIFAR-100 with the 64 / 16 / 20 split of its categories by Bertinetto et al.

CIFAR-100 comes as pictures, or as one of its official releases, for Python or as binary files.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from recollect.data.arrays import Pixels
from recollect.data.files import Files, open_files
from recollect.data.imageset import CACHE_GB, Library, cached_library, decode, described, digest, require_room
from recollect.data.pickles import as_text, read_record
from recollect.data.splits import Held, Reserved, Split, own_split, split_pictures
from recollect.errors import DataError
from recollect.images import read_pixels
from recollect.system.progress import track

SIZE = 32
VAL_PICTURES = 50  # of CIFAR-100's 500 training pictures; its own 100 test pictures are the test set
PICTURE_BYTES = 3 * SIZE * SIZE  # a colour after the other
RECORD_BYTES = 2 + PICTURE_BYTES  # in the binary release: coarse label, fine label, picture


class Picture(NamedTuple):
    """A picture of an official release, (3, 32, 32), with its label and name."""

    pixels: Pixels
    label: int
    name: str


class Release(NamedTuple):
    """The files of an official release in a folder, and how they are read."""

    train: str
    test: str
    words: str
    categories: Callable[[Files, str], list[str]]
    pictures: Callable[[Files, str], Iterator[Picture]]


def load(
    path: Path,
    *,
    size: int | None = None,
    split: str | None = None,
    skip_bad: bool = False,
    cache_gb: float = CACHE_GB,
) -> Split:
    """Read CIFAR-FS from a folder or archive with train/<category>/*.png and test/<category>/*.png.

    The official releases, cifar-100-python and cifar-100-binary, are read as well, packed or not.
    """
    files = open_files(path)
    words = _published()
    known = {*words["train"], *words["val"], *words["test"]}
    published = Reserved(tuple(words["val"]), tuple(words["test"]))
    reserved = own_split("cifar-fs", published, split, sorted(known))
    release = _release_in(files)
    if release is None:
        library = _from_pictures(files, known, size or SIZE, cache_gb, skip_bad=skip_bad)
    else:
        library = _from_release(files, release, known, size or SIZE, cache_gb)
    lost = known - {*library.categories}
    if lost:
        raise DataError(f"{path} has no picture of '{min(lost)}' that can be read")
    test_rows = [row for row, name in enumerate(library.names) if PurePosixPath(name).parts[-3] == "test"]
    return split_pictures(library, reserved, lambda _: Held(VAL_PICTURES, 0), flips=True, test_rows=test_rows)


def _published() -> dict[str, list[str]]:
    """Return the names of the train, val and test categories."""
    text = resources.files("recollect.data").joinpath("cifar-fs.json").read_text(encoding="utf-8")
    words: dict[str, list[str]] = json.loads(text)
    return words


def _from_pictures(files: Files, known: set[str], size: int, cache_gb: float, *, skip_bad: bool) -> Library:
    items = []
    for name in files.names:
        parts = PurePosixPath(name).parts
        if len(parts) < 3 or parts[-3] not in {"train", "test"}:
            raise DataError(
                f"{files.path}/{name}: train/<category>/*.png and test/<category>/*.png are expected"
            )
        items.append(files.item(parts[-2], name))
    _check_categories({item.category for item in items}, known, str(files.path))
    key = digest("cifar-fs", files.stamp(files.names), size)
    return decode(items, key=key, size=size, skip_bad=skip_bad, cache_gb=cache_gb)


def _from_release(files: Files, release: Release, known: set[str], size: int, cache_gb: float) -> Library:
    def build(room: Callable[[int], Pixels]) -> dict[str, Any]:
        count = most(release.train) + most(release.test)
        require_room(files.path, (count, size, size, 3), cache_gb)
        pixels = room(count)
        words = release.categories(files, release.words)
        _check_categories(words, known, f"{files.path}/{release.words}")
        found: list[str] = []
        names: list[str] = []
        for part, file in (("train", release.train), ("test", release.test)):
            for picture in track(release.pictures(files, file), f"reading {part}", most(file)):
                if picture.label >= len(words):
                    raise DataError(
                        f"{files.path}/{file}: the label {picture.label} of {picture.name} is none of 0 … "
                        f"{len(words) - 1}"
                    )
                pixels[len(names)] = read_pixels(picture.pixels.transpose(1, 2, 0), size)
                found.append(words[picture.label])
                names.append(f"{part}/{found[-1]}/{picture.name}")
        return described(found, names)

    def most(file: str) -> int:
        """Return a number that no file of this size has more pictures than."""
        return files.credible_size(file) // PICTURE_BYTES

    key = digest("cifar-fs", files.stamp([release.train, release.test, release.words]), size)
    return cached_library(key, size, build)[0]


def _check_categories(found: Sequence[str] | set[str], known: set[str], place: str) -> None:
    lacking, strange = known - {*found}, {*found} - known
    if lacking:
        raise DataError(
            f"{place} is missing {len(lacking)} categories of CIFAR-100, such as '{min(lacking)}'"
        )
    if strange:
        raise DataError(f"{place} holds '{min(strange)}', which is not a category of CIFAR-100")
    if len(found) > len(known):
        raise DataError(f"{place} names a category of CIFAR-100 twice")


def _release_in(files: Files) -> Release | None:
    """Return the official release that is there, `None` for pictures."""
    lacking = ""
    there = set(files.others)
    for release in (PYTHON, BINARY):
        wanted = release[:3]
        for folder in sorted(
            {PurePosixPath(name).parent for name in there if PurePosixPath(name).name in wanted}
        ):
            own = [(folder / name).as_posix() for name in wanted]
            if there.issuperset(own):
                train, test, words = own
                return release._replace(train=train, test=test, words=words)
            lacking = lacking or next(name for name in own if name not in there)
    if files.names:
        return None
    if lacking:
        raise DataError(f"{files.path}/{lacking} is missing: take the whole release of CIFAR-100")
    raise DataError(
        f"{files.path} is not CIFAR-100: its release for Python (train, test, meta), its binary one "
        "(train.bin, test.bin, fine_label_names.txt), or train/<category>/*.png and test/<category>/*.png "
        "are expected"
    )


def _pickled_categories(files: Files, name: str) -> list[str]:
    place = f"{files.path}/{name}"
    with files.open(name) as stream:
        words = read_record(stream, place).get("fine_label_names")
    if not (isinstance(words, list) and all(isinstance(word, str | bytes) for word in words)):
        raise DataError(f"{place} has no list 'fine_label_names' of words")
    return [as_text(word) for word in words]


def _pickled_pictures(files: Files, name: str) -> Iterator[Picture]:
    place = f"{files.path}/{name}"
    with files.open(name) as stream:
        record = read_record(stream, place)
    data, labels, names = (record.get(word) for word in ("data", "fine_labels", "filenames"))
    if not (isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.shape[1:] == (PICTURE_BYTES,)):
        raise DataError(f"{place}: an array 'data' of {PICTURE_BYTES} bytes a picture is expected")
    if not (isinstance(labels, list) and all(isinstance(label, int) and label >= 0 for label in labels)):
        raise DataError(f"{place}: a list 'fine_labels' of numbers is expected")
    if not (isinstance(names, list) and all(isinstance(word, str | bytes) for word in names)):
        raise DataError(f"{place}: a list 'filenames' of words is expected")
    if not len(data) == len(labels) == len(names):
        raise DataError(f"{place} has {len(data)} pictures, {len(labels)} labels and {len(names)} names")
    seen: set[tuple[int, str]] = set()
    for row, (pixels, label, word) in enumerate(zip(data, labels, names, strict=True)):
        called = as_text(word).replace("/", "_")
        if called in {"", ".", ".."}:
            raise DataError(f"{place}: picture {row} has no name in 'filenames'")
        unique = f"{called}#{row}" if (label, called) in seen else called
        seen.add((label, called))
        yield Picture(pixels.reshape(3, SIZE, SIZE), label, unique)


def _listed_categories(files: Files, name: str) -> list[str]:
    with files.open(name) as stream:
        text = stream.read(1 << 16).decode("utf-8", "replace")
    return text.split()


def _recorded_pictures(files: Files, name: str) -> Iterator[Picture]:
    count, rest = divmod(files.size(name), RECORD_BYTES)
    if rest:
        raise DataError(
            f"{files.path}/{name} is cut short or damaged: {files.size(name)} bytes are not a whole number "
            f"of records of {RECORD_BYTES} bytes"
        )
    with files.open(name) as stream:
        for row in range(count):
            record = np.frombuffer(stream.read(RECORD_BYTES), np.uint8)
            if len(record) < RECORD_BYTES:
                raise DataError(f"{files.path}/{name} is cut short, or has just changed")
            yield Picture(record[2:].reshape(3, SIZE, SIZE), int(record[1]), f"{row:05}.png")


PYTHON = Release("train", "test", "meta", _pickled_categories, _pickled_pictures)
BINARY = Release("train.bin", "test.bin", "fine_label_names.txt", _listed_categories, _recorded_pictures)
