"""Your own pictures: a folder or an archive with one sub-folder per category, or a folder of pictures."""

import logging
import unicodedata
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from recollect.data import limits
from recollect.data.files import ignored, open_files
from recollect.data.imageset import CACHE_GB, Item, Library, decode, digest
from recollect.data.splits import Split, held_tenth, parse_split, require_pictures, split_pictures
from recollect.errors import DataError, PictureError, listed, one_line

log = logging.getLogger(__name__)
SIZE = 84
EXPECTED = "one sub-folder per category with jpg/png/webp files is expected"


def load(
    path: Path,
    *,
    size: int | None = None,
    split: str | None = None,
    skip_bad: bool = False,
    cache_gb: float = CACHE_GB,
) -> Split:
    """Read the folder; every category is a base category unless `split` reserves some."""
    library = read_library(path, size or SIZE, skip_bad=skip_bad, cache_gb=cache_gb)
    for name in library.categories:
        if name.strip().casefold() == "unknown":
            raise DataError(
                f"{path}/{name}: 'unknown' is the answer for pictures of no known category. Rename the "
                "folder if it is a category; otherwise move it away, and use it with `recollect check`"
            )
    reserved = parse_split(split, library.categories)
    require_pictures(library, reserved)
    if len(library.categories) - len(reserved.val) - len(reserved.test) < 2:
        raise DataError(f"{path} leaves fewer than 2 base categories: training needs at least 2")
    return split_pictures(library, reserved, held_tenth, flips=True)


def read_library(path: Path, size: int, *, skip_bad: bool, cache_gb: float = CACHE_GB) -> Library:
    """Decode every picture of a folder per category."""
    items, key = find_items(path, size, skip_bad=skip_bad)
    return decode(items, key=key, size=size, skip_bad=skip_bad, cache_gb=cache_gb)


def find_items(path: Path, size: int, *, skip_bad: bool = False) -> tuple[list[Item], str]:
    """Return every picture of a folder per category, and the key of them all decoded to `size`.

    Files in formats that are not read, and categories without pictures, are named in one warning. A picture
    that is not right in a category's folder is an error; with `skip_bad` it is left out and named too.
    """
    files = open_files(path, EXPECTED)
    parts = {name: PurePosixPath(name).parts for name in files.names}
    # A zip of a folder often starts with that folder's own name.
    inner = sum(len(part) >= 3 for part in parts.values())
    depth = 1 if 2 * inner > len(parts) and len({part[0] for part in parts.values()}) == 1 else 0
    placed = {name: part[depth] for name, part in parts.items() if len(part) == depth + 2}
    stray = [name for name in parts if name not in placed]
    if stray and not (skip_bad and placed):
        hint = "move it, leave it out with --skip-bad," if placed else "move it"
        raise DataError(
            f"{files.path}/{stray[0]}: a sub-folder per category with the pictures right in it is expected; "
            f"{hint} or name the layout (such as cifar-fs:PATH)"
        )
    for category in placed.values():
        if category.encode(errors="replace").decode() != category:
            raise DataError(
                f"the name of the folder {category!r} in {files.path} is not valid text: rename it"
            )
    _require_distinct(path, {*placed.values()})
    candidates = (parts for parts in map(PurePosixPath, files.folders) if len(parts.parts) == depth + 1)
    empty = {folder.name for folder in candidates} - {*placed.values()}
    left_out = ignored(files)
    if stray:
        left_out.append(f"left out {listed(stray)}: not right in a category's folder")
    _warn(path, left_out, sorted(name for name in empty if not name.startswith((".", "_"))))
    items = [files.item(category, name) for name, category in placed.items()]
    return items, digest("folder", files.stamp(placed), size)


def _require_distinct(path: Path, names: Iterable[str]) -> None:
    """Refuse folders whose names are one name to `Recognizer.teach`."""
    known: dict[str, str] = {}
    for name in sorted(names):
        other = known.setdefault(unicodedata.normalize("NFKC", name).casefold().strip(), name)
        if other != name:
            raise DataError(
                f"the folders {other!r} and {name!r} in {path} are one name, spelled in two ways: put their "
                "pictures into one of them, or rename one"
            )


def find_pictures(folder: Path, *, recursive: bool = False) -> list[Path]:
    """Return the pictures right in a folder, or also those in its sub-folders, in the order of their names.

    Files in formats that are not read are named in a warning.
    """
    files = open_files(folder, depth=limits.MAX_DEPTH if recursive else 0)
    left_out = ignored(files)
    if not recursive and any(one.is_dir() and not one.name.startswith(".") for one in folder.iterdir()):
        left_out.append("its sub-folders were not read (predict and features take --recursive)")
    if not files.names:
        where = "in this folder" if recursive else "directly in this folder"
        told = "; ".join([f"there are no pictures {where}", *left_out])
        raise PictureError(f"{folder}: {told}: name one that holds some")
    _warn(folder, left_out, [])
    return [folder / name for name in files.names]


def _warn(path: Path, ignored: list[str], empty: list[str]) -> None:
    if empty:
        names = listed([f"'{name}'" for name in empty])
        ignored = [*ignored, f"left out {names}: no pictures that can be read"]
    if ignored:
        log.warning("%s: %s", one_line(path), one_line("; ".join(ignored)))
