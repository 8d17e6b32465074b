"""The task sampler: hundreds of few-shot tasks at once, as index tensors, from one seeded generator.

The random numbers come from NumPy's PCG64, so the same seed gives the same tasks on every machine.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recollect.errors import DataError

_BLOCK = 256  # tasks drawn at a time, to bound memory
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Tasks:
    """Few-shot tasks: indices into a set of novel pictures and a set of base pictures."""

    ways: Tensor  # (tasks, ways) the novel categories
    support: Tensor  # (tasks, ways, shots) novel pictures, or the sampler's separate support pictures
    novel_queries: Tensor  # (tasks, ways · queries) novel pictures
    novel_targets: Tensor  # (tasks, ways · queries) in 0 … ways−1
    base_queries: Tensor  # (tasks, base queries) base pictures
    base_targets: Tensor  # (tasks, base queries) base categories

    def __len__(self) -> int:
        return len(self.ways)

    def __getitem__(self, which: slice) -> "Tasks":
        return Tasks(*(getattr(self, field.name)[which] for field in fields(self)))

    def hidden(self, base_categories: int) -> Tensor:
        """Return (tasks, base categories): true where a base category acts as a novel one."""
        mask = torch.zeros(len(self), base_categories, dtype=torch.bool)
        return mask.scatter_(1, self.ways, value=True)


@dataclass(frozen=True)
class TaskShape:
    """What a task asks for: W ways, N' shots, queries of each novel category, queries of base categories."""

    ways: int = 5
    shots: int = 1
    queries: int = 15
    base_queries: int | None = None  # by default as many as of novel categories

    @property
    def base_count(self) -> int:
        """Return the number of base queries of a task."""
        return self.ways * self.queries if self.base_queries is None else self.base_queries


class Labelled(Protocol):
    """Anything whose items have categories: an `ImageSet` or a `FeatureSet`."""

    @property
    def labels(self) -> Ints | Tensor:
        """Return each item's category, (n,)."""

    @property
    def categories(self) -> tuple[str, ...]:
        """Return the names of the categories."""


class TaskSampler:
    """Draws tasks from labelled pictures.

    Novel categories come from `novel_labels`. Where that is `None`, some base categories act as novel ones,
    and the base queries come from the others. Their support comes from the same pictures as their queries, or
    from separate ones where `support_labels` is given.
    """

    def __init__(
        self,
        base_labels: Ints,
        novel_labels: Ints | None,
        *,
        base_names: Sequence[str],
        novel_names: Sequence[str] = (),
        support_labels: Ints | None = None,
    ) -> None:
        self.fake = novel_labels is None
        self.base = _Pictures(base_labels, base_names)
        self.novel = self.base if novel_labels is None else _Pictures(novel_labels, novel_names)
        if support_labels is not None and not self.fake:
            raise ValueError("separate support pictures are for base categories that act as novel ones")
        self.support = None if support_labels is None else _Pictures(support_labels, self.novel.names)

    def fit(self, wanted: TaskShape) -> TaskShape:
        """Return the shape nearest to the wanted one that these pictures allow."""
        smallest = int(self.novel.sizes.min())
        ways = min(wanted.ways, len(self.novel.names) // 2 if self.fake else len(self.novel.names))
        if self.support is None:
            queries = min(wanted.queries, max(1, smallest - wanted.shots))
            shots = max(1, min(wanted.shots, smallest - queries))
        else:
            queries = max(1, min(wanted.queries, smallest))
            shots = max(1, min(wanted.shots, int(self.support.sizes.min())))
        base_count = wanted.base_count if wanted.base_queries is not None else ways * queries
        return TaskShape(ways, shots, queries, max(1, min(base_count, self._room(ways))))

    def most_queries(self, ways: int, shots: int) -> int:
        """Return the most queries of each novel category; below 1 there are too few pictures for a task."""
        return min(int(self.novel.sizes.min()) - shots, self._room(ways) // ways)

    def _room(self, ways: int) -> int:
        """Return how many base pictures a task may always draw from."""
        sizes = np.sort(self.base.sizes)
        return int(sizes[: len(sizes) - ways].sum() if self.fake else sizes.sum())

    def _advice(self, wanted: TaskShape) -> str:
        """Suggest options close to the wanted ones that these pictures allow."""
        shape = self.fit(wanted)
        for ways in range(shape.ways, 0, -1):
            queries = min(shape.queries, self._room(ways) // ways)
            if queries >= 1:
                return f" (--ways {ways} --shots {shape.shots} --queries {queries} would do)"
        return ""

    def check(self, shape: TaskShape) -> None:
        """Refuse tasks of this shape if there are too few pictures, and name what is missing."""
        most = len(self.novel.names) - (1 if self.fake else 0)
        if shape.ways > most:
            raise DataError(
                f"tasks of {shape.ways} ways need as many categories and there are {most}: use fewer --ways"
                f"{self._advice(shape)}"
            )
        if self.support is None:
            needs = [(self.novel, shape.shots + shape.queries)]
        else:
            needs = [(self.novel, shape.queries), (self.support, shape.shots)]
        for pictures, need in needs:
            for name, size in zip(pictures.names, pictures.sizes, strict=True):
                if size < need:
                    raise DataError(
                        f"category '{name}' has {size} pictures and needs {need} (shots: {shape.shots}, "
                        f"queries: {shape.queries}): add pictures, or use fewer --shots or --queries"
                        f"{self._advice(shape)}"
                    )
        room = self._room(shape.ways)
        if shape.base_count > room:
            raise DataError(
                f"tasks ask for {shape.base_count} pictures of base categories and {room} are held out: "
                f"use fewer --queries or --ways{self._advice(shape)}"
            )

    def draw(self, shape: TaskShape, tasks: int, seed: int | Sequence[int]) -> Tasks:
        """Draw `tasks` tasks; the first n are the same however many are drawn."""
        self.check(shape)
        rng = np.random.default_rng(seed)
        blocks = [self._block(shape, _BLOCK, rng) for _ in range(0, tasks, _BLOCK)]
        return Tasks(*(torch.from_numpy(np.concatenate(part)[:tasks]) for part in zip(*blocks, strict=True)))

    def one(self, shape: TaskShape, seed: int | Sequence[int]) -> Tasks:
        """Draw one task: for tasks so large that every one has a seed of its own."""
        rng = np.random.default_rng(seed)
        return Tasks(*(torch.from_numpy(np.array(part)) for part in self._block(shape, 1, rng)))

    def _block(self, shape: TaskShape, tasks: int, rng: np.random.Generator) -> tuple[Ints, ...]:
        order = rng.random((tasks, len(self.novel.names))).argsort(axis=1)
        ways = order[:, : shape.ways]
        if self.support is None:
            pictures = self.novel.draw_distinct(ways, shape.shots + shape.queries, rng)
            support, queries = pictures[:, :, : shape.shots], pictures[:, :, shape.shots :]
        else:
            support = self.support.draw_distinct(ways, shape.shots, rng)
            queries = self.novel.draw_distinct(ways, shape.queries, rng)
        targets = np.broadcast_to(np.arange(shape.ways)[:, None], (tasks, shape.ways, shape.queries)).reshape(
            tasks, -1
        )
        if self.fake:
            rest = order[:, shape.ways :]
        else:
            rest = np.broadcast_to(np.arange(len(self.base.names)), (tasks, len(self.base.names)))
        base_targets = self.base.draw_categories(rest, shape.base_count, rng)
        return (
            ways,
            support,
            queries.reshape(tasks, -1),
            targets,
            self.base.draw_pictures(base_targets, rng),
            base_targets,
        )


class _Pictures:
    """Pictures grouped by category: picture j of category c is `rows[starts[c] + j]`."""

    def __init__(self, labels: Ints, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.rows: Ints = np.argsort(labels, kind="stable")
        self.sizes = np.bincount(labels, minlength=len(self.names))
        self.starts = np.cumsum(self.sizes) - self.sizes

    def draw_distinct(self, categories: Ints, count: int, rng: np.random.Generator) -> Ints:
        """Draw `count` different pictures of each category: (tasks, ways) → (tasks, ways, count)."""
        keys = rng.random((*categories.shape, int(self.sizes.max())))
        keys[np.arange(keys.shape[-1]) >= self.sizes[categories][..., None]] = np.inf
        chosen = np.argpartition(keys, count - 1, axis=-1)[..., :count]
        # argpartition's order inside the chosen ones is an accident of the algorithm: put it by key.
        chosen = np.take_along_axis(chosen, np.take_along_axis(keys, chosen, -1).argsort(-1), -1)
        rows: Ints = self.rows[self.starts[categories][..., None] + chosen]
        return rows

    def draw_categories(self, allowed: Ints, count: int, rng: np.random.Generator) -> Ints:
        """Draw categories uniformly with replacement, (tasks, allowed) → (tasks, count).

        A category drawn more often than it has pictures is drawn again for the surplus.
        """
        tasks, choices = allowed.shape
        drawn = np.take_along_axis(allowed, rng.integers(0, choices, (tasks, count)), 1)
        while True:
            surplus = _occurrence(drawn) >= self.sizes[drawn]
            if not surplus.any():
                return drawn
            task = np.nonzero(surplus)[0]
            drawn[surplus] = allowed[task, rng.integers(0, choices, len(task))]

    def draw_pictures(self, categories: Ints, rng: np.random.Generator) -> Ints:
        """Draw one picture for each category, (tasks, count) → the same; no picture twice in a task."""
        sizes = self.sizes[categories]
        drawn = self.starts[categories] + (rng.random(categories.shape) * sizes).astype(np.int64)
        while True:
            again = _occurrence(drawn) > 0
            if not again.any():
                rows: Ints = self.rows[drawn]
                return rows
            drawn[again] = self.starts[categories[again]] + (
                rng.random(int(again.sum())) * sizes[again]
            ).astype(np.int64)


def _occurrence(values: Ints) -> Ints:
    """Count, for each entry of a row, how often its value came before it in the row: (n, m) → (n, m)."""
    order = values.argsort(axis=1, kind="stable")
    ordered = np.take_along_axis(values, order, 1)
    position = np.broadcast_to(np.arange(values.shape[1]), values.shape)
    new = np.ones(values.shape, dtype=bool)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    first = np.maximum.accumulate(np.where(new, position, 0), axis=1)
    result: Ints = np.empty_like(values)
    np.put_along_axis(result, order, position - first, 1)
    return result


def task_sampler(base: Labelled, novel: Labelled | None, support: Labelled | None = None) -> TaskSampler:
    """Return a sampler of tasks over these pictures; without novel ones, base categories act as novel."""
    return TaskSampler(
        np.asarray(base.labels),
        None if novel is None else np.asarray(novel.labels),
        base_names=base.categories,
        novel_names=() if novel is None else novel.categories,
        support_labels=None if support is None else np.asarray(support.labels),
    )
