"""mini-ImageNet: 100 categories of ImageNet, split 64 / 16 / 20 by Ravi and Larochelle, in four layouts."""

import csv
import io
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from recollect.data.arrays import Pixels, Rows
from recollect.data.files import Files, open_files
from recollect.data.imageset import CACHE_GB, Library, cached_library, decode, described, digest, require_room
from recollect.data.pickles import as_text, read_record
from recollect.data.splits import Held, Reserved, Split, own_split, split_pictures
from recollect.errors import DataError
from recollect.images import read_pixels
from recollect.model.spec import Preprocessing
from recollect.system.progress import track

SIZE = 84  # of every picture in a pickle too
MEAN = (120.396, 115.594, 104.540)
STD = (70.682, 68.276, 72.545)
AGAIN = "download or copy the data set again"
Record = dict[str, object]


class Pictures(NamedTuple):
    """What a pickle holds: pixels (n, 84, 84, 3) and the category of each picture."""

    pixels: Pixels
    categories: list[str]


Unpack = Callable[[Record, str], Pictures]


class Layout(NamedTuple):
    """A layout with one file per set."""

    file: str  # its name, with {} for the set
    sets: tuple[str, ...]
    unpack: Unpack | None  # what reads it, if it is a pickle


def load(
    path: Path,
    *,
    size: int | None = None,
    split: str | None = None,
    skip_bad: bool = False,
    cache_gb: float = CACHE_GB,
) -> Split:
    """Read mini-ImageNet from a folder or an archive that holds it in one of the layouts.

    Where there is more than one, the release with validation and test pictures of its own comes first,
    then the other pickles, then CSV files. Which pictures are held out otherwise depends on their numbers
    in their category alone, so it is the same in all layouts. At every size the published mean and
    deviation are used, not those of this copy.
    """
    files = open_files(path)
    layout, found = _recognise(files)
    if layout.unpack is None:
        parts = _from_tables(files, found, size or SIZE, cache_gb, split, skip_bad=skip_bad)
    elif split is not None:
        raise DataError(
            f"{path} holds mini-ImageNet as pickles, which are split as published: leave --split out, or use "
            "the release with pictures and CSV files"
        )
    else:
        parts = _from_pickles(files, found, layout.unpack, size or SIZE, cache_gb)
    if len(parts.categories) < 2:
        raise DataError(f"{path} holds fewer than 2 base categories: training needs at least 2")
    return parts


def held_twelfth(pictures: int) -> Held:
    """Hold out 50 of 600 for validation and as many for testing.

    >>> held_twelfth(600)
    Held(val=50, test=50)
    """
    count = round(pictures / 12)
    return Held(count, count)


def _recognise(files: Files) -> tuple[Layout, dict[str, str]]:
    """Return the layout and the name of the file for each of its sets."""
    places = _by_base_name(files.others)
    lacking = []
    for layout in LAYOUTS:
        wanted = {part: layout.file.format(part) for part in layout.sets}
        missing = [name for name in wanted.values() if name not in places]
        if not missing:
            return layout, {part: _only(files, places[name]) for part, name in wanted.items()}
        if len(missing) < len(wanted):
            lacking.append(f"of {layout.file.format('*')}, {', '.join(missing)} is missing")
    if lacking:
        raise DataError(f"{files.path} is an incomplete mini-ImageNet: {'; '.join(lacking)}: {AGAIN}")
    raise DataError(
        f"{files.path} is not a layout of mini-ImageNet: train.csv, val.csv and test.csv with the pictures "
        "in images/, or with a folder per category, or pickles miniImageNet_category_split_*.pickle, or "
        "pickles mini-imagenet-cache-*.pkl are expected"
    )


def _by_base_name(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the files of every base name, in any folder."""
    places = defaultdict(list)
    for name in names:
        places[PurePosixPath(name).name].append(name)
    return dict(places)


def _only(files: Files, names: Sequence[str]) -> str:
    if len(names) > 1:
        raise DataError(f"{files.path} holds both {names[0]} and {names[1]}: remove or rename one of them")
    return names[0]


def _from_tables(
    files: Files, tables: Mapping[str, str], size: int, cache_gb: float, split: str | None, *, skip_bad: bool
) -> Split:
    """Decode the pictures that CSV files list."""
    listed = _listed(files, tables)
    categories = {part: tuple(sorted(set(own.values()))) for part, own in listed.items()}
    _require_disjoint(files.path, categories)
    category_of = {name: category for own in listed.values() for name, category in own.items()}
    in_order = sorted(category_of, key=lambda name: PurePosixPath(name).name)
    names = dict(zip(in_order, _numbered(category_of[name] for name in in_order), strict=True))
    # Decoded in the order of the files, in which alone some archives can be read quickly.
    chosen = [name for name in files.names if name in category_of]
    items = [replace(files.item(category_of[name], name), relative=names[name]) for name in chosen]
    key = digest("mini-imagenet", files.stamp(chosen), sorted(category_of.items()), size)
    library = decode(items, key=key, size=size, skip_bad=skip_bad, cache_gb=cache_gb)
    lost = {*category_of.values()} - {*library.categories}
    if lost:
        raise DataError(f"{files.path} has no picture of '{min(lost)}' that can be read")
    published = Reserved(categories["val"], categories["test"])
    reserved = own_split("mini-imagenet", published, split, library.categories)
    return split_pictures(_with_published(library), reserved, held_twelfth, flips=True)


def _with_published(library: Library) -> Library:
    """Return the pictures with the preprocessing of the paper's authors."""
    return replace(library, published=Preprocessing(size=library.pixels.shape[1], mean=MEAN, std=STD))


def _listed(files: Files, tables: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the category of every picture of every set."""
    places = _by_base_name(files.names)
    seen, missing = set(), []
    listed: dict[str, dict[str, str]] = {part: {} for part in tables}
    for part, table in tables.items():
        for line, file, category in _rows(files, table):
            base = PurePosixPath(file).name
            if base in seen:
                raise DataError(f"{line}: {file!r} is listed a second time: remove one of the lines")
            seen.add(base)
            if base in places:
                listed[part][_only(files, places[base])] = category
            else:
                missing.append(f"{line}: {file[:80]!r}")
    if missing:
        more = f", nor are {len(missing) - 1} others that are listed" if len(missing) > 1 else ""
        raise DataError(f"{missing[0]} is not among the pictures of {files.path}{more}: {AGAIN}")
    return listed


def _rows(files: Files, table: str) -> Iterator[tuple[str, str, str]]:
    """Yield where a line of a CSV file is, and its file name and label."""
    place = f"{files.path}/{table}"
    try:
        reader = csv.reader(io.StringIO(files.read(table).decode("utf-8-sig"), newline=""), strict=True)
        rows = [(reader.line_num, [field.strip() for field in row]) for row in reader if row]
    except UnicodeDecodeError as error:
        raise DataError(f"{place} is not UTF-8 text: save it as such, or {AGAIN}") from error
    except csv.Error as error:
        raise DataError(f"{place}, line {reader.line_num} is damaged ({error}): {AGAIN}") from error
    if not rows:
        raise DataError(f"{place} is empty: {AGAIN}")
    (_, header), *rows = rows
    if header != ["filename", "label"]:
        raise DataError(f"{place}: the header filename,label is expected, not {','.join(header)[:80]!r}")
    if not rows:
        raise DataError(f"{place} lists no pictures: {AGAIN}")
    for number, row in rows:
        line = f"{place}, line {number}"
        if len(row) != 2 or not all(row):
            raise DataError(f"{line}: a file name and a label are expected, not {','.join(row)[:80]!r}")
        file = PurePosixPath(row[0])
        if file.is_absolute() or ".." in file.parts:
            raise DataError(f"{line}: {row[0][:80]!r} leads out of the data set: refused, correct that line")
        yield line, row[0], row[1]


def _from_pickles(
    files: Files, found: Mapping[str, str], unpack: Unpack, size: int, cache_gb: float
) -> Split:
    """Take the pictures of every set from its pickle."""

    def require_room_for_all() -> None:
        most = sum(files.credible_size(name) for name in found.values()) // (3 * SIZE**2)
        require_room(files.path, (most, size, size, 3), cache_gb)

    *base, val, test = (
        _with_published(_unpickled(files, name, unpack, size, require_room_for_all))
        for name in found.values()
    )
    _require_disjoint(
        files.path, {"train": base[0].categories, "val": val.categories, "test": test.categories}
    )
    if len(base) == 1:
        parts = split_pictures(base[0], Reserved(), held_twelfth, flips=True)
    else:
        _require_same(files, [*found.values()], base)
        train, own_val, own_test = (library.whole() for library in base)
        parts = Split(train, own_val, own_test, val=None, test=None, flips=True)
    return replace(parts, val=val.whole(), test=test.whole())


def _unpickled(files: Files, name: str, unpack: Unpack, size: int, before: Callable[[], None]) -> Library:
    """Return the pictures of a pickle, which is read only if the cache does not hold them.

    `before` is called before it is read.
    """
    place = f"{files.path}/{name}"

    def build(room: Callable[[int], Pixels]) -> dict[str, Any]:
        before()
        with files.open(name) as stream:
            source, categories = unpack(read_record(stream, place), place)
        pixels = room(len(source))
        for row in track(range(len(source)), f"reading {PurePosixPath(name).name}", len(source)):
            pixels[row] = read_pixels(source[row], size, name=f"{place}, picture {row}")
        return described(categories, _numbered(categories))

    key = digest("mini-imagenet", files.stamp([name]), size)
    return cached_library(key, size, build)[0]


def _unpack_phase(record: Record, place: str) -> Pictures:
    """Read `data`, `labels` and, where it is there, `catname2label`."""
    pixels = _pixels(record, "data", place)
    labels = _whole_numbers(record.get("labels"))
    if labels is None or len(labels) != len(pixels):
        raise DataError(f"{place}: 'labels' must be {len(pixels)} whole numbers, one per picture: {AGAIN}")
    numbers = record.get("catname2label")
    names: dict[int, str] = {}
    for name, label in _by_text(numbers if isinstance(numbers, dict) else {}, place).items():
        if isinstance(label, int | np.integer):
            if int(label) in names:
                raise DataError(f"{place}: '{names[int(label)]}' and '{name}' have one label: {AGAIN}")
            names[int(label)] = name
    return Pictures(pixels, [names.get(label, f"category {label:02}") for label in labels.tolist()])


def _unpack_cache(record: Record, place: str) -> Pictures:
    """Read `image_data` and `class_dict`, the rows of every category."""
    pixels = _pixels(record, "image_data", place)
    rows_of = record.get("class_dict")
    if not isinstance(rows_of, dict):
        raise DataError(f"{place}: 'class_dict' must say which pictures belong to which category: {AGAIN}")
    categories: list[str | None] = [None] * len(pixels)
    for category, numbers in _by_text(rows_of, place).items():
        rows = _whole_numbers(numbers)
        if rows is None or not len(rows) or rows.min() < 0 or rows.max() >= len(pixels):
            raise DataError(f"{place}: '{category}' must have numbers from 0 to {len(pixels) - 1}: {AGAIN}")
        for row in rows.tolist():
            if categories[row] is not None:
                raise DataError(
                    f"{place}: picture {row} is both of '{categories[row]}' and of '{category}': {AGAIN}"
                )
            categories[row] = category
    whole = [category for category in categories if category is not None]
    if len(whole) < len(categories):
        raise DataError(f"{place}: picture {categories.index(None)} is of no category: {AGAIN}")
    return Pictures(pixels, whole)


def _by_text(words: Mapping[object, object], place: str) -> Record:
    """Return a dict with text for keys; two that would become one, such as b"x" and "x", are refused."""
    found: Record = {}
    for key, value in words.items():
        if as_text(key) in found:
            raise DataError(f"{place} names the category '{as_text(key)}' twice: {AGAIN}")
        found[as_text(key)] = value
    return found


def _pixels(record: Record, name: str, place: str) -> Pixels:
    pixels = record.get(name)
    if not isinstance(pixels, np.ndarray):
        raise DataError(f"{place} holds no array '{name}': {AGAIN}")
    if pixels.dtype != np.uint8 or pixels.shape[1:] != (SIZE, SIZE, 3) or not pixels.size:
        found = f"{pixels.dtype} {pixels.shape}"
        raise DataError(f"{place}: '{name}' must be uint8 (n, {SIZE}, {SIZE}, 3), not {found}: {AGAIN}")
    return pixels


LAYOUTS = (
    Layout(
        "miniImageNet_category_split_{}.pickle",
        ("train_phase_train", "train_phase_val", "train_phase_test", "val", "test"),
        _unpack_phase,
    ),
    Layout("mini-imagenet-cache-{}.pkl", ("train", "val", "test"), _unpack_cache),
    Layout("{}.csv", ("train", "val", "test"), None),
)


def _whole_numbers(values: object) -> Rows | None:
    """Return a list or an array of whole numbers as an array, or `None` for anything else."""
    if isinstance(values, list) and not all(isinstance(value, int | np.integer) for value in values):
        return None  # the numbers of nested lists may not fit in memory
    array = np.asarray(values) if isinstance(values, list | np.ndarray) else np.empty(0)
    return array.astype(np.int64) if array.ndim == 1 and array.dtype.kind in "iu" else None


def _numbered(categories: Iterable[str]) -> list[str]:
    """Return a name for each picture: its category, and its number there.

    >>> _numbered(["a", "a", "b"])
    ['a/00000', 'a/00001', 'b/00000']
    """
    number: defaultdict[str, Iterator[int]] = defaultdict(count)
    return [f"{category}/{next(number[category]):05}" for category in categories]


def _require_disjoint(path: Path, sets: Mapping[str, Iterable[str]]) -> None:
    found: dict[str, str] = {}
    for part, categories in sets.items():
        for category in categories:
            if category in found:
                raise DataError(f"{path}: '{category}' is both in {found[category]} and in {part}: {AGAIN}")
            found[category] = part


def _require_same(files: Files, names: Sequence[str], libraries: Sequence[Library]) -> None:
    """Refuse base categories that do not have pictures for training, validation and test."""
    for name, library in zip(names[1:], libraries[1:], strict=False):
        odd = {*libraries[0].categories} ^ {*library.categories}
        if odd:
            raise DataError(f"{files.path}: '{min(odd)}' is in one of {names[0]} and {name} only: {AGAIN}")
