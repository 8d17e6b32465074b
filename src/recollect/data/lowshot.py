"""The low-shot benchmark of Hariharan & Girshick: its base and novel categories, and which half each is in.

One half of either kind is for choosing hyper-parameters (`val`), the other for the result (`test`). All base
categories are trained on; a half has the pictures of its own base and novel categories.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from recollect.data.arrays import Rows
from recollect.data.imageset import ImageSet
from recollect.data.splits import Part, Split, drawn
from recollect.errors import DataError, listed
from recollect.model.spec import Value

Chosen = npt.NDArray[np.bool_]  # of some pictures
GROUPS = ("base_val", "base_test", "novel_val", "novel_test")
# ImageNet's proportions, in which other data are split.
_BASE_SHARE, _BASE_VAL_SHARE, _NOVEL_VAL_SHARE = 389 / 1000, 193 / 389, 300 / 611
_FEWEST = 10  # categories that can be split
_EXPECTED = (
    f"a JSON file with the names of categories in {', '.join(GROUPS)}, or the index file of the benchmark "
    "(label_names, base_classes_1, …), is expected"
)


class Groups(Value):
    """The names of the categories in the four groups."""

    base_val: tuple[str, ...]
    base_test: tuple[str, ...]
    novel_val: tuple[str, ...]
    novel_test: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Return all of them."""
        return (*self.base_val, *self.base_test, *self.novel_val, *self.novel_test)

    @property
    def reserved(self) -> str:
        """Return --split of the training, in which all base categories are learned."""
        return json.dumps({"val": self.novel_val, "test": self.novel_test})


class _Index(Value):
    """The benchmark's published index file: positions in `label_names`, which are not sorted."""

    label_names: tuple[str, ...]
    base_classes: tuple[int, ...] = ()
    novel_classes: tuple[int, ...] = ()
    base_classes_1: tuple[int, ...]
    base_classes_2: tuple[int, ...]
    novel_classes_1: tuple[int, ...]
    novel_classes_2: tuple[int, ...]

    def groups(self) -> Groups:
        def names(places: Sequence[int]) -> tuple[str, ...]:
            wrong = [place for place in places if not 0 <= place < len(self.label_names)]
            if wrong:
                raise ValueError(f"{wrong[0]} is no position in label_names")
            return tuple(self.label_names[place] for place in places)

        halves = (self.base_classes_1, self.base_classes_2, self.novel_classes_1, self.novel_classes_2)
        return Groups(**dict(zip(GROUPS, map(names, halves), strict=True)))


def find_groups(data: str, split: str | None, categories: Sequence[str]) -> Groups:
    """Return the groups of a file for --split, of the benchmark for ImageNet, or of a stand-in.

    Every category of the data is in one group, and every name in a group is a category of the data.
    """
    if split is not None:
        groups, origin = read_groups(split), f"--split {split}"
    elif data.startswith("imagenet:"):
        groups, origin = benchmark_groups(), "the low-shot benchmark"
    else:
        return stand_in_groups(categories)
    missing = sorted({*groups.names} - {*categories})
    if missing:
        hint = "correct it" if split else "complete the copy, or name your own categories with --split"
        raise DataError(f"{origin} names {listed(missing, 3)}, of which {data} has no pictures: {hint}")
    left_over = sorted({*categories} - {*groups.names})
    if left_over:
        raise DataError(f"{origin} puts {listed(left_over, 3)} of {data} in no group: add it to one of them")
    return groups


def benchmark_groups() -> Groups:
    """Return the benchmark's groups of ImageNet's 1000 wnids."""
    text = resources.files("recollect.data").joinpath("imagenet-lowshot.json").read_text(encoding="utf-8")
    return Groups.model_validate_json(text)


def read_groups(path: str) -> Groups:
    """Read a file for --split: ours, by names, or the benchmark's published one, by positions in a list."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        words = json.loads(text)
        published = isinstance(words, dict) and "label_names" in words
        groups = _Index.model_validate(words).groups() if published else Groups.model_validate(words)
    except (OSError, ValueError, RecursionError) as error:
        reason = _wrong_field(error) if isinstance(error, ValidationError) else error
        raise DataError(f"--split {path}: {_EXPECTED} ({reason})") from error
    seen: dict[str, str] = {}
    for group in GROUPS:
        names = getattr(groups, group)
        for name in names:
            if name in seen:
                where = f"in {seen[name]} and in {group}" if seen[name] != group else f"twice in {group}"
                raise DataError(f"--split {path} names '{name}' {where}: a category is in one group, once")
            seen[name] = group
        if len(names) < 2:
            raise DataError(f"--split {path}: {group} needs at least 2 categories")
    return groups


def _wrong_field(error: ValidationError) -> str:
    """Say in a few words what a file for --split has that it should not have, or lacks."""
    first = error.errors()[0]
    field = str(first["loc"][0]) if first["loc"] else "the file"
    if first["type"] == "missing":
        return f"{field} is missing"
    return f"{field} is unknown" if first["type"] == "extra_forbidden" else f"{field} is not a list of names"


def stand_in_groups(categories: Sequence[str]) -> Groups:
    """Split other data in the benchmark's proportions, by their names alone.

    >>> groups = stand_in_groups([f"c{number}" for number in range(100)])
    >>> [len(getattr(groups, name)) for name in GROUPS]
    [19, 20, 30, 31]
    """
    if len(categories) < _FEWEST:
        raise DataError(
            f"the low-shot benchmark needs at least {_FEWEST} categories, and the data have {len(categories)}"
        )
    order = sorted(categories, key=lambda name: drawn(f"low-shot/{name}"))
    base = round(_BASE_SHARE * len(order))
    middle = round(_BASE_VAL_SHARE * base), base + round(_NOVEL_VAL_SHARE * (len(order) - base))
    parts = order[: middle[0]], order[middle[0] : base], order[base : middle[1]], order[middle[1] :]
    return Groups(**{name: tuple(sorted(part)) for name, part in zip(GROUPS, parts, strict=True)})


def are_usual(groups: Groups, data: str) -> bool:
    """Return whether data have these groups without --split."""
    if data.startswith("imagenet:"):
        return groups == benchmark_groups()
    return len(groups.names) >= _FEWEST and groups == stand_in_groups(groups.names)


@dataclass(frozen=True)
class Half:
    """The pictures of one half of the benchmark."""

    columns: Rows  # (b,), its base categories among all of them
    base_queries: ImageSet  # labels among the b
    examples: ImageSet  # of novel categories, from which examples are drawn
    novel_queries: ImageSet


def half_of(split: Split, groups: Groups, part: Part, most: int) -> Half:
    """Return a half; `most` examples are drawn of each of its novel categories.

    Pictures that the data set itself keeps for testing are asked. Where it keeps none of novel categories, as
    many of each are asked, drawn once and for all, as there are test pictures of a base category.
    """
    novel = split.val if part == "val" else split.test
    assert novel is not None  # noqa: S101 -- `Groups.reserved` names some
    names = groups.base_val if part == "val" else groups.base_test
    columns = np.array([split.categories.index(name) for name in names], np.int64)
    place = np.full(len(split.categories), -1)
    place[columns] = np.arange(len(columns))
    own = place[split.base_test.labels]
    base = replace(
        split.base_test, rows=split.base_test.rows[own >= 0], labels=own[own >= 0], categories=names
    )
    asked = np.isin(novel.rows, np.fromiter(split.set_aside, np.int64, len(split.set_aside)))
    if not asked.any():
        asked = _share(novel, int(np.bincount(split.base_test.labels).max()))
    sizes = np.bincount(novel.labels[~asked], minlength=len(novel.categories))
    if sizes.min() < most:
        raise DataError(
            f"category '{novel.categories[int(sizes.argmin())]}' has {sizes.min()} pictures to draw examples "
            f"from, and {most} shots need {most}: add pictures, or use fewer --shots"
        )
    if (np.bincount(novel.labels[asked], minlength=len(novel.categories)) == 0).any():
        empty = np.bincount(novel.labels[asked], minlength=len(novel.categories)).argmin()
        raise DataError(f"category '{novel.categories[int(empty)]}' has no test pictures: add some")
    return Half(columns, base, _where(novel, ~asked), _where(novel, asked))


def _share(images: ImageSet, count: int) -> Chosen:
    """Return which pictures are asked: `count` of each category, at most half of them, always the same."""
    chosen = np.zeros(len(images), bool)
    rng = np.random.default_rng(0)
    for label in range(len(images.categories)):
        rows = np.flatnonzero(images.labels == label)
        chosen[rng.permutation(rows)[: min(count, len(rows) // 2)]] = True
    return chosen


def _where(images: ImageSet, chosen: Chosen) -> ImageSet:
    return replace(images, rows=images.rows[chosen], labels=images.labels[chosen])
