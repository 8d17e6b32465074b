"""CIFAR-FS: CIFAR-100 with the 64 / 16 / 20 split of its categories by Bertinetto et al."""

import json
from importlib import resources
from pathlib import Path, PurePosixPath

from recollect.data.files import open_files
from recollect.data.imageset import decode, digest
from recollect.data.splits import Held, Reserved, Split, split_pictures
from recollect.errors import DataError

SIZE = 32
VAL_PICTURES = 50  # of CIFAR-100's 500 training pictures; its own 100 test pictures are the test set


def load(path: Path, *, size: int | None = None, split: str | None = None, skip_bad: bool = False) -> Split:
    """Read CIFAR-FS from a folder or zip with train/<category>/*.png and test/<category>/*.png."""
    if split is not None:
        raise DataError("cifar-fs has a published split of its own: leave --split out")
    files = open_files(path)
    items = []
    for name in files.names:
        parts = PurePosixPath(name).parts
        if len(parts) < 3 or parts[-3] not in {"train", "test"}:
            raise DataError(f"{path}/{name}: train/<category>/*.png and test/<category>/*.png are expected")
        items.append(files.item(parts[-2], name))
    words = json.loads(
        resources.files("recollect.data").joinpath("cifar-fs.json").read_text(encoding="utf-8")
    )
    known, found = {*words["train"], *words["val"], *words["test"]}, {item.category for item in items}
    if known - found:
        raise DataError(
            f"{path} lacks {len(known - found)} categories of CIFAR-100, '{min(known - found)}' for one"
        )
    if found - known:
        raise DataError(f"{path} holds '{min(found - known)}', which is not a category of CIFAR-100")
    size = size or SIZE
    key = digest("cifar-fs", files.key, size)
    library = decode(items, key=key, size=size, skip_bad=skip_bad)
    lost = known - {*library.categories}
    if lost:
        raise DataError(f"no picture of '{min(lost)}' in {path} decodes")
    test_rows = [row for row, name in enumerate(library.names) if PurePosixPath(name).parts[-3] == "test"]
    reserved = Reserved(tuple(words["val"]), tuple(words["test"]))
    return split_pictures(
        library,
        reserved,
        lambda _: Held(VAL_PICTURES, 0),
        flips=True,
        test_rows=test_rows,
    )
