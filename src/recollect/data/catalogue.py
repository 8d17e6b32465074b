"""Load the data set that DATA names: `glyphs`, `cifar-fs:PATH`, `folder:PATH`, or a bare path."""

import os.path
from collections.abc import Callable
from pathlib import Path

from recollect.data import cifar, folder, glyphs, imagenet, mini_imagenet, omniglot
from recollect.data.imageset import CACHE_GB
from recollect.data.splits import Split
from recollect.errors import DataError

_LOADERS: dict[str, Callable[..., Split]] = {
    "cifar-fs": cifar.load,
    "mini-imagenet": mini_imagenet.load,
    "omniglot": omniglot.load,
    "imagenet": imagenet.load,
    "folder": folder.load,
}


def load_data(
    data: str,
    *,
    size: int | None = None,
    split: str | None = None,
    skip_bad: bool = False,
    cache_gb: float = CACHE_GB,
) -> Split:
    """Read the data set that `data` names, decoding each picture once unless that takes over `cache_gb`."""
    kind, path = _parts(data)
    if kind == "glyphs":
        if size not in {None, glyphs.SIZE} or (split is not None and split.isdecimal()):
            raise DataError(
                f"glyphs have a fixed size of {glyphs.SIZE} and a fixed split: leave --size and --split out"
            )
        return glyphs.load(split=split)
    if kind not in _LOADERS:
        known = ", ".join(["glyphs", *(f"{name}:PATH" for name in _LOADERS)])
        raise DataError(f"'{data}' is not a known data set: DATA is one of {known}, or a folder")
    return _LOADERS[kind](Path(path), size=size, split=split, skip_bad=skip_bad, cache_gb=cache_gb)


def kind_of(data: str) -> str:
    """Return which data set `data` names, wherever it lies.

    >>> [kind_of(data) for data in ("glyphs", "cifar-fs:images.zip", "photos")]
    ['glyphs', 'cifar-fs', 'folder']
    """
    return _parts(data)[0]


def _parts(data: str) -> tuple[str, str]:
    kind, colon, path = data.partition(":")
    if data == "glyphs":
        return data, ""
    if not colon or (kind not in _LOADERS and os.path.exists(data)):  # noqa: PTH110 -- never raises
        return "folder", data
    return kind, path
