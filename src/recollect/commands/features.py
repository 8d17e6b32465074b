"""`recollect features`: the features of pictures, for whatever else you want to do with them."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from recollect.commands import pictures
from recollect.commands.opening import Target
from recollect.errors import counted
from recollect.system.disk import replacing_file


def features(
    target: Target, paths: Sequence[Path], out: Path, *, recursive: bool = False, skip_bad: bool = False
) -> dict[str, Any]:
    """Write the features of pictures to an .npz or .csv file: the result of `recollect features`.

    The .npz file has `features` (n, d), float32, and `pictures` (n,), their paths; the .csv file has a row
    for each picture, its path first. `left_out`, where there are any, has each bad `picture` with a `reason`.
    """
    found = pictures.find(paths, recursive=recursive)
    prepare = target.described()
    names: list[str] = []
    rows = []
    bad: list[dict[str, str]] = []
    with target.open() as recognizer:
        for some, pixels in pictures.read(found, prepare, "computing features", skip_bad=skip_bad, bad=bad):
            names += map(pictures.name_of, some)
            rows.append(recognizer.features(pixels))
    computed = np.concatenate(rows)
    with replacing_file(out) as part:
        if out.suffix.lower() == ".npz":
            with part.open("wb") as file:
                np.savez_compressed(file, features=computed, pictures=np.array(names))
        else:
            with part.open("w", encoding="utf-8", errors="backslashreplace", newline="") as text:
                writer = csv.writer(text)
                writer.writerow(["picture", *(f"feature_{number}" for number in range(computed.shape[1]))])
                # As single-precision numbers: no more digits than it takes to read the same ones back.
                writer.writerows([name, *map(str, row)] for name, row in zip(names, computed, strict=True))
    report = {"model": target.name, "out": str(out), "pictures": len(names), "width": computed.shape[1]}
    return {**report, **({"left_out": bad} if bad else {})}


def features_text(result: dict[str, Any]) -> str:
    """Return what `features` prints."""
    return f"{result['out']}: {counted(result['pictures'], 'picture')}, {result['width']} features each"
