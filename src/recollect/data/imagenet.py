"""ImageNet: `train/<wnid>/*.JPEG` to learn from, and the pictures of `val/<wnid>/*.JPEG` to test on."""

import re
from dataclasses import replace
from pathlib import Path, PurePosixPath

from recollect.data.files import open_files
from recollect.data.imageset import CACHE_GB, Item, decode, digest
from recollect.data.splits import Held, Split, held_tenth, parse_split, split_pictures
from recollect.errors import DataError, listed
from recollect.model.spec import Preprocessing

SIZE = 224
SHORT_SIDE = 256  # of a picture of which the centre of SIZE × SIZE is kept
MEAN = (123.675, 116.28, 103.53)  # 0.485, 0.456, 0.406 of 1
STD = (58.395, 57.12, 57.375)  # 0.229, 0.224, 0.225
VAL_PICTURES = 50  # of a category's training pictures
EXPECTED = "train/<wnid>/*.JPEG and val/<wnid>/*.JPEG are expected"


def load(
    path: Path,
    *,
    size: int | None = None,
    split: str | None = None,
    skip_bad: bool = False,
    cache_gb: float = CACHE_GB,
) -> Split:
    """Read ImageNet, or some of its categories, from a folder or an archive.

    Every category is a base category unless `split` reserves some; those keep all their pictures.
    """
    items, stamp = _find_items(path)
    prepare = preprocessing_of(size or SIZE)
    size, short_side = prepare.size, prepare.short_side
    key = digest("imagenet", stamp, size, short_side)
    library = decode(items, key=key, size=size, short_side=short_side, skip_bad=skip_bad, cache_gb=cache_gb)
    lost = {item.category for item in items} - {*library.categories}
    if lost:
        raise DataError(f"{path} has no picture of '{min(lost)}' that can be read")
    reserved = parse_split(split, library.categories)
    if len(library.categories) - len(reserved.val) - len(reserved.test) < 2:
        raise DataError(f"{path} leaves fewer than 2 base categories: training needs at least 2")
    test_rows = [row for row, name in enumerate(library.names) if PurePosixPath(name).parts[-3] == "val"]
    library = replace(library, published=prepare)
    return split_pictures(library, reserved, held, flips=True, test_rows=test_rows)


def preprocessing_of(size: int) -> Preprocessing:
    """Return the usual preprocessing: 256 pixels on the short side for a centre crop of 224, in proportion.

    >>> preprocessing_of(112).short_side
    128
    """
    return Preprocessing(size=size, short_side=round(size * SHORT_SIDE / SIZE), mean=MEAN, std=STD)


def held(pictures: int) -> Held:
    """Hold out 50 training pictures of a category for validation, a tenth where there are few.

    >>> held(1300), held(40)
    (Held(val=50, test=0), Held(val=4, test=0))
    """
    return Held(min(VAL_PICTURES, held_tenth(pictures).val), 0)


def _find_items(path: Path) -> tuple[list[Item], str]:
    """Return the pictures of train/ and val/, and the stamp of them all; refuse any other layout by name."""
    files = open_files(path, EXPECTED)
    items = []
    wnids: dict[str, set[str]] = {"train": set(), "val": set()}
    for name in files.names:
        parts = PurePosixPath(name).parts
        if parts[-2:-1] == ("test",):  # ImageNet's own test pictures have no labels
            continue
        if parts[-2:-1] == ("val",):
            raise DataError(
                f"{path}/{name}: the pictures of val/ are not in sub-folders: {EXPECTED}; move each into the "
                "folder of its category"
            )
        if len(parts) < 3 or parts[-3] not in wnids:
            raise DataError(f"{path}/{name}: {EXPECTED}")
        if not re.fullmatch(r"n[0-9]{8}", parts[-2]):
            raise DataError(f"{path}/{name}: '{parts[-2]}' is not a wnid such as n01440764; {EXPECTED}")
        wnids[parts[-3]].add(parts[-2])
        items.append(files.item(parts[-2], name))
    _require_both(path, wnids["train"], wnids["val"])
    return items, files.stamp(files.names)


def _require_both(path: Path, train: set[str], val: set[str]) -> None:
    for part, own, other in (("train", train, val), ("val", val, train)):
        if not own:
            raise DataError(f"{path} holds no pictures in {part}/: {EXPECTED}")
        if other - own:
            raise DataError(
                f"{path}/{part} has no pictures of {listed(sorted(other - own), 3)}, which the other folder "
                "has: complete the copy"
            )
