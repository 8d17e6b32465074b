"""Which categories and which pictures serve for what."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
from pydantic import ValidationError

from recollect.data.imageset import ImageSet, Library
from recollect.errors import DataError, counted, listed
from recollect.model.spec import Value

MIN_PICTURES = 8
Part = Literal["val", "test"]


class Held(NamedTuple):
    """How many pictures of a base category are held out."""

    val: int
    test: int


@dataclass(frozen=True)
class Split:
    """A data set as training and evaluation see it.

    Base categories come with three disjoint sets of pictures; validation and test categories with all
    of theirs, or `None` where no categories are reserved (then base ones act as novel on held-out pictures).
    """

    base_train: ImageSet
    base_val: ImageSet
    base_test: ImageSet
    val: ImageSet | None
    test: ImageSet | None
    flips: bool  # whether a mirrored picture still is of its category
    queries: int = 15  # of each novel category in a task, where a call does not say
    set_aside: frozenset[int] = frozenset()  # rows of pictures that the data set itself keeps for testing

    @property
    def categories(self) -> tuple[str, ...]:
        """Return the names of the base categories."""
        return self.base_train.categories

    def evaluated(self, part: Part) -> tuple[ImageSet | None, ImageSet]:
        """Return (novel pictures or `None`, base pictures) for tasks on `val` or `test` categories."""
        if part not in get_args(Part):
            raise ValueError(f"part {part!r}: 'val' or 'test' is expected")
        return (self.val, self.base_val) if part == "val" else (self.test, self.base_test)


class Reserved(NamedTuple):
    """Names of the categories that are kept from training."""

    val: tuple[str, ...] = ()
    test: tuple[str, ...] = ()


class _SplitFile(Value):
    """What a file for --split holds."""

    val: tuple[str, ...] = ()
    test: tuple[str, ...] = ()


def split_pictures(
    library: Library,
    reserved: Reserved,
    held: Callable[[int], Held],
    *,
    flips: bool,
    test_rows: Sequence[int] = (),
) -> Split:
    """Split a library: reserved categories go out whole, the others' pictures into three disjoint sets.

    `held(n)` says how many of a category's n pictures are held out; `test_rows` are pictures that a data
    set itself sets aside for testing, in place of `held(n).test`. Which pictures are held out depends on
    their names alone, as does the order of reserved ones: both are the same on every machine.
    """
    apart_from_training = {*reserved.val, *reserved.test}
    base = [category for category in library.categories if category not in apart_from_training]
    official = set(test_rows)
    rows_of: dict[str, list[int]] = {category: [] for category in library.categories}
    for row in sorted(range(len(library.names)), key=library.names.__getitem__):
        rows_of[library.categories[library.labels[row]]].append(row)
    train: list[int] = []
    val: list[int] = []
    test: list[int] = []
    for category in base:
        own = [row for row in rows_of[category] if row not in official]
        own.sort(key=lambda row: drawn("/".join(library.names[row].split("/")[-2:])))
        count = held(len(own))
        apart = [row for row in rows_of[category] if row in official] or own[
            count.val : count.val + count.test
        ]
        val += own[: count.val]
        test += apart
        learned = own[count.val :] if official else own[count.val + count.test :]
        if not (learned and apart and count.val):
            raise DataError(
                f"category '{category}' has {len(rows_of[category])} pictures, too few for training, "
                f"validation and test ones ({len(own)} to learn from, of which {count.val} are for "
                f"validation; {len(apart)} for testing): add pictures"
            )
        train += learned
    return Split(
        base_train=library.select(train, base),
        base_val=library.select(val, base),
        base_test=library.select(test, base),
        val=_whole(library, rows_of, reserved.val),
        test=_whole(library, rows_of, reserved.test),
        flips=flips,
        set_aside=frozenset(official),
    )


def parse_split(split: str | None, categories: Sequence[str]) -> Reserved:
    """Read --split: a number reserves 16 % and 20 % of the categories at random, a JSON file names them.

    >>> [len(part) for part in parse_split("1", [f"c{i}" for i in range(100)])]
    [16, 20]
    """
    if split is None:
        return Reserved()
    if split.isdecimal():
        order = sorted(categories, key=lambda name: drawn(f"{split}/{name}"))
        val, test = max(1, round(0.16 * len(order))), max(1, round(0.2 * len(order)))
        return Reserved(tuple(sorted(order[:val])), tuple(sorted(order[val : val + test])))
    words = _read_split(split)
    names = (*words.val, *words.test)
    for name in names:
        if name not in categories:
            raise DataError(f"--split {split} names '{name}', which is not a category of the data")
        if names.count(name) > 1:
            raise DataError(f"--split {split} names '{name}' twice: a category is in val or in test, once")
    return Reserved(words.val, words.test)


def own_split(data: str, published: Reserved, split: str | None, categories: Sequence[str]) -> Reserved:
    """Return what a data set's published split reserves, or what a JSON file for --split names instead."""
    if split is None:
        return published
    if split.isdecimal():
        raise DataError(
            f"{data} has a published split of its own: leave --split out, or name categories in a JSON file"
        )
    return parse_split(split, categories)


def inline_split(split: str | None) -> str | None:
    """Return --split with a file's content in place of its name, so that it can travel with a model."""
    if split is None or split.isdecimal():
        return split
    return _read_split(split).model_dump_json()


def _read_split(split: str) -> _SplitFile:
    """Return what --split says in JSON, itself or in the file that it names."""
    try:
        text = split if split.lstrip().startswith("{") else Path(split).read_text(encoding="utf-8")
        return _SplitFile.model_validate_json(text)
    except (OSError, ValueError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise DataError(
            f'--split {split}: a number, or a JSON file such as {{"val": ["okapi"], "test": ["tapir"]}}, '
            f"is expected ({reason})"
        ) from error


def held_tenth(pictures: int) -> Held:
    """Hold out a tenth for validation and a tenth for testing, at least two each: for your own folder."""
    count = max(2, pictures // 10)
    return Held(count, count)


def require_pictures(library: Library, reserved: Reserved) -> None:
    """Refuse base categories that are too small to be split in three."""
    sizes = np.bincount(library.labels, minlength=len(library.categories))
    small = [
        f"'{name}' has {counted(size, 'picture')}"
        for name, size in zip(library.categories, sizes.tolist(), strict=True)
        if size < MIN_PICTURES and name not in {*reserved.val, *reserved.test}
    ]
    if small:
        raise DataError(
            f"training needs at least {MIN_PICTURES} pictures of each category, and {listed(small)}: add "
            "pictures, or leave such categories out and teach them afterwards"
        )


def _whole(library: Library, rows_of: dict[str, list[int]], categories: Sequence[str]) -> ImageSet | None:
    if not categories:
        return None
    return library.select([row for category in categories for row in rows_of[category]], categories)


def drawn(name: str) -> bytes:
    """Return a number drawn by the name alone: sorting by it shuffles the same way everywhere."""
    return hashlib.sha256(name.encode(errors="surrogateescape")).digest()
