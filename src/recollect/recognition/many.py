"""Answers among very many taught categories, without a look at each.

An index gives candidates, whose scores are computed exactly. The sum over all categories that turns scores
into probabilities is exact for base categories and candidates; a fixed sample of all others stands for the
rest.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from recollect.errors import ExtraError
from recollect.recognition.vectors import Floats, VectorTable, dots, lengths

Doubles = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Offsets = Callable[[Ints, None, int], Doubles]  # for examples, of so many taught categories
MOST_EXACT = 30_000  # taught categories, up to which a product with each is as quick (benchmarks/scale.py)
MOST_TOP = 200  # answers; more need a look at each category
_SAMPLE = 16384  # at most so many categories stand for all, and mostly at least half as many
_GOLDEN, _BITS = np.uint64(0x9E3779B97F4A7C15), 64
_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Some:
    """Some taught categories with their raw scores, and how many examples each has."""

    ids: Ints  # (n,)
    scores: Floats  # (n,)
    examples: Ints  # (n,)

    def joint(self, offsets: Offsets, count: int) -> Doubles:
        """Return the scores with what is added to those of taught categories, of which there are so many."""
        return self.scores + offsets(self.examples, None, count)

    def but(self, ids: Iterable[int], factor: Floats) -> "Some":
        """Return the same without some, and with the scores times a factor."""
        left = ~np.isin(self.ids, [*ids])
        return Some(self.ids[left], self.scores[left] * factor, self.examples[left])


@dataclass(frozen=True, eq=False)
class Shortlist:
    """What may answer for one picture."""

    places: Ints  # of the base categories that may
    base: Floats  # (k,), the raw scores of all base categories
    corrected: Mapping[int, Some]  # what base categories were taught, by their places
    candidates: Some
    others: Some  # a sample of the taught categories that are no candidates
    novel: int  # how many categories were taught that are no base categories
    count: int  # how many were taught in all

    def joint(self, offsets: Offsets) -> tuple[Doubles, Doubles]:
        """Return the scores of the base categories and candidates side by side, and those of the sample."""
        base = self.base.astype(np.float64)
        for (
            place,
            some,
        ) in self.corrected.items():  # the better of its own score and that of what it was taught
            base[place] = max(base[place], some.joint(offsets, self.count)[0])
        near = self.candidates.joint(offsets, self.count)
        return np.concatenate([base[self.places], near]), self.others.joint(offsets, self.count)

    def shares(self, offsets: Offsets, temperature: float) -> Doubles:
        """Return the probabilities of the base categories and candidates, among all categories."""
        scores, others = self.joint(offsets)
        best = scores.max()
        found = np.exp((scores - best) / temperature)
        stand_for = self.novel - len(self.candidates.ids)
        rest = stand_for * np.exp((others - best) / temperature).mean() if len(others) else 0.0
        shares: Doubles = found / (found.sum() + rest)
        return shares


class ManyVectors:
    """An index of the vectors in a table, kept in step with it, and a sample of them.

    The index also holds what is added to the scores of each, so that it finds the best of the sums: its lift,
    in units of a cosine.
    """

    def __init__(
        self, table: VectorTable, examples: Callable[[Iterable[int]], Ints], lift: Callable[[Ints], Floats]
    ) -> None:
        """Index the vectors in a table, given how many examples those of some ids have, and their lifts."""
        from recollect.recognition.index import Index, sample_rows

        self._table, self._examples, self._lift = table, examples, lift
        self._sampled: VectorTable = VectorTable(table.width)
        self._sample: tuple[Ints, Ints] | None = None  # its ids, and how many examples each has
        self._level = 0  # one of 2^level categories is in the sample
        self._index = Index(self._lifted(sample_rows(len(table))))
        ids = np.array(table.ids, np.int64)
        while np.count_nonzero(self._are_sampled(ids)) > _SAMPLE:
            self._level += 1
        self._follow(np.arange(len(table)))

    def put(self, rows: Ints) -> None:
        """Take over what was put into rows of the table."""
        old = rows[rows < len(self._index)]
        for row, vector in zip(old.tolist(), self._lifted(old), strict=True):
            self._index.put(row, vector)
        self._keep(old)
        self._follow(np.sort(rows[rows >= len(self._index)]))

    def drop(self, id_: int, row: int) -> None:
        """Follow the table, which took out a vector, and moved the last one to its row."""
        if row < len(self._table):
            self._index.put(row, self._lifted(np.array([row]))[0])
        self._index.drop_last()
        if self._are_sampled(np.array([id_])).all():
            self._sampled.drop(id_)
            self._sample = None

    def near(self, features: Floats) -> list[tuple[Some, Some]]:
        """Return candidates for each of some features (n, d), with exact products for scores.

        Also those of the sample that are no candidates.
        """
        found = []
        if self._sample is None:
            self._sample = np.array(self._sampled.ids), self._examples(self._sampled.ids)
        (kept, counts), sampled = self._sample, self._sampled.products(features)
        queries = np.concatenate(
            [features / lengths(features), np.ones((len(features), 1), np.float32)], axis=1
        )
        for place, rows in enumerate(self._index.search(queries)):
            ids = np.array(self._table.ids_of(rows))
            order = np.argsort(ids)  # of equal scores, the first taught is the better
            products = dots(features[place : place + 1], self._table.rows(rows[order]))[0]
            others = np.isin(kept, ids, invert=True)
            found.append(
                (
                    Some(ids[order], products, self._examples(ids[order].tolist())),
                    Some(kept[others], sampled[place, others], counts[others]),
                )
            )
        return found

    def _follow(self, rows: Ints) -> None:
        """Index the next rows."""
        for start in range(0, len(rows), _SAMPLE):
            some = rows[start : start + _SAMPLE]
            self._index.append(self._lifted(some))
            self._keep(some)

    def _keep(self, rows: Ints) -> None:
        """Take those into the sample whose ids are such; thin the sample out when it is full."""
        ids = np.array(self._table.ids_of(rows.tolist()), np.int64)
        chosen = np.flatnonzero(self._are_sampled(ids))
        if not len(chosen):
            return
        chosen = chosen[np.argsort(ids[chosen])]
        self._sampled.put_all(ids[chosen], self._table.rows(rows[chosen]))
        self._sample = None
        while len(self._sampled) > _SAMPLE:
            self._level += 1
            kept = np.array(self._sampled.ids, np.int64)
            for other in kept[~self._are_sampled(kept)].tolist():
                self._sampled.drop(other)

    def _are_sampled(self, ids: Ints) -> npt.NDArray[np.bool_]:
        """Say which ids are in the sample: the same ones wherever the same is taught."""
        return ids.astype(np.uint64) * _GOLDEN <= np.uint64(((1 << _BITS) >> self._level) - 1)

    def _lifted(self, rows: Ints) -> Floats:
        """Return the vectors in rows with their lifts as one number more: (n, d + 1)."""
        lifts = self._lift(self._examples(self._table.ids_of(rows.tolist())))
        return np.concatenate([self._table.rows(rows), lifts[:, None]], axis=1)


def index_of(
    table: VectorTable, examples: Callable[[Iterable[int]], Ints], lift: Callable[[Ints], Floats]
) -> ManyVectors | None:
    """Return an index of the vectors in a table, or `None` where faiss is not installed."""
    try:
        return ManyVectors(table, examples, lift)
    except ExtraError as error:
        _log.warning("each of %d categories is looked at for each picture: %s", len(table), error)
        return None
