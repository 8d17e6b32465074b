"""Omniglot: 1623 handwritten characters × 20 drawings, every rotation by 90° a category of its own."""

import json
import os.path
from collections import Counter
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path, PurePosixPath

import numpy as np

from recollect.data.arrays import Pixels, Rows
from recollect.data.files import Files, open_files
from recollect.data.imageset import CACHE_GB, Library, Source, Undecoded, decode, digest
from recollect.data.splits import Held, Reserved, Split, split_pictures
from recollect.errors import DataError

SIZE = 28
FOLDERS = ("images_background", "images_evaluation")
EXPECTED = " and ".join(f"{name}/<alphabet>/<character>/*.png" for name in FOLDERS) + " are expected"
DRAWINGS = 20  # of each character
HELD = Held(val=2, test=3)
QUERIES = 10
TURNS = 4


@dataclass(frozen=True)
class Turned:
    """Every picture four times: row 4·i + k is picture i turned anticlockwise by k · 90°."""

    upright: Source

    @property
    def shape(self) -> tuple[int, ...]:
        """Return (4 · pictures, size, size, 3)."""
        count, *rest = self.upright.shape
        return (TURNS * count, *rest)

    @property
    def on_the_fly(self) -> bool:
        """Return whether drawings are decoded each time that they are taken."""
        return isinstance(self.upright, Undecoded)

    def __getitem__(self, rows: Rows) -> Pixels:
        pixels = self.upright[rows // TURNS]
        turns = rows % TURNS
        for turn in range(1, TURNS):
            pixels[turns == turn] = np.rot90(pixels[turns == turn], turn, axes=(1, 2))
        return pixels


def load(
    path: Path,
    *,
    size: int | None = None,
    split: str | None = None,
    skip_bad: bool = False,
    cache_gb: float = CACHE_GB,
) -> Split:
    """Read Omniglot with its 1028 / 172 / 423 split of characters, four categories of each.

    `path` is a folder with the two official archives or folders, or one archive with both folders. Pixels
    stay as they are stored, black strokes on white. The four rotations hold out the same drawings.
    """
    if split is not None:
        raise DataError("omniglot has a published split of its own: leave --split out")
    sources = _open(path)
    items = [files.item(_character(files, name), name) for files in sources for name in files.names]
    words = published()
    known = {*words["train"], *words["val"], *words["test"]}
    _require_whole(path, Counter(item.category for item in items), known)
    size = size or SIZE
    key = digest("omniglot", [files.stamp(files.names) for files in sources], size)
    library = decode(items, key=key, size=size, skip_bad=skip_bad, cache_gb=cache_gb)
    lost = known - {*library.categories}
    if lost:
        raise DataError(f"{path} has no drawing of '{min(lost)}' that can be read")
    val, test = (tuple(name for one in words[part] for name in _turns(one)) for part in ("val", "test"))
    parts = split_pictures(turned(library), Reserved(val, test), lambda _: HELD, flips=False)
    return replace(parts, queries=QUERIES)


def published() -> dict[str, list[str]]:
    """Return the names of the characters for training, validation and test: `Alphabet/characterNN`."""
    text = resources.files("recollect.data").joinpath("omniglot.json").read_text(encoding="utf-8")
    words: dict[str, list[str]] = json.loads(text)
    return words


def turned(library: Library) -> Library:
    """Return every picture in its four rotations: `Alphabet/characterNN` becomes `…/rot000` to `…/rot270`.

    The pictures keep their names, by which they are held out: alike for the four.
    """
    pictures = len(library.labels)
    return Library(
        pixels=Turned(library.pixels),
        labels=np.repeat(TURNS * library.labels, TURNS) + np.tile(np.arange(TURNS), pictures),
        categories=tuple(name for category in library.categories for name in _turns(category)),
        names=tuple(name for name in library.names for _ in range(TURNS)),
        key=library.key,
    )


def _turns(character: str) -> list[str]:
    return [f"{character}/rot{90 * turn:03}" for turn in range(TURNS)]


def _open(path: Path) -> list[Files]:
    """Open what holds the drawings: each folder or its archive, or one folder or archive with both."""
    there = os.path.exists  # which, unlike that of a path, never raises
    places = [path / name if there(path / name) else path / f"{name}.zip" for name in FOLDERS]
    return [open_files(one, EXPECTED) for one in (places if any(map(there, places)) else [path])]


def _character(files: Files, name: str) -> str:
    parts = PurePosixPath(name).parts
    if len(parts) < 3:
        raise DataError(f"{files.path}/{name}: {EXPECTED}")
    return f"{parts[-3]}/{parts[-2]}"


def _require_whole(path: Path, found: Counter[str], known: set[str]) -> None:
    if known - found.keys():
        lacking = sorted(known - found.keys())
        raise DataError(
            f"{path} is missing {len(lacking)} of Omniglot's {len(known)} characters, such as '{lacking[0]}'"
            f": {' and '.join(FOLDERS)} are expected there"
        )
    if found.keys() - known:
        raise DataError(f"{path} holds '{min(found.keys() - known)}', which is not a character of Omniglot")
    for name, count in sorted(found.items()):
        if count != DRAWINGS:
            raise DataError(f"'{name}' has {count} drawings in {path}; Omniglot has {DRAWINGS} of each")
