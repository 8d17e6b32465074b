"""Vectors of taught categories that are solved together: ridge regression over all taught examples.

Examples are kept as multiples of 2⁻¹⁵, so sums of them and of their products are exact in double precision:
whatever was taught, forgotten and in which order, the same set gives the same sums, and these the same bits.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from recollect.recognition.vectors import dots, unit

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Solve = Callable[[Doubles, Doubles], Floats]  # ZᵀZ (d, d) and ZᵀY, transposed (k, d) → vectors (k, d)
_STEPS = 2.0**15
_AT_ONCE = 256  # categories


@dataclass(frozen=True)
class _Category:
    steps: npt.NDArray[np.int16]  # (n, d), the examples in multiples of 2⁻¹⁵
    total: npt.NDArray[np.int64]  # (d,), their sum
    digest: bytes  # of their sum, by which the categories are put in an order of their own

    @property
    def examples(self) -> Doubles:
        return self.steps.astype(np.float64) / _STEPS


class SolvedVectors:
    """Vectors by id, each depending on the examples of all; solved when they are next asked for."""

    def __init__(self, width: int, solve: Solve) -> None:
        self._solve = solve
        self._moments = np.zeros((width, width))
        self._categories: dict[int, _Category] = {}
        self._changes: list[tuple[int, _Category]] = []  # added (1), taken away (−1)
        self._matrix: Floats | None = None

    def __len__(self) -> int:
        return len(self._categories)

    @property
    def ids(self) -> list[int]:
        """Return the ids, rising."""
        return sorted(self._categories)

    def put(self, id_: int, terms: Floats) -> None:
        """Put a category's examples (n, d) in, or in the place of those that it had."""
        steps = np.rint(terms * np.float32(_STEPS)).astype(np.int16)
        total = steps.sum(axis=0, dtype=np.int64)
        digest = hashlib.blake2b(total.tobytes(), digest_size=16).digest()
        old, new = self._categories.get(id_), _Category(steps, total, digest)
        if old is not None and np.array_equal(old.steps, steps):
            return  # another name, no more
        if old is not None:
            self._changes.append((-1, old))
        self._changes.append((1, new))
        self._categories[id_] = new

    def drop(self, id_: int) -> None:
        """Take a category out."""
        self._changes.append((-1, self._categories.pop(id_)))

    def products(self, features: Floats) -> Floats:
        """Return the dot products of features (n, d) with every vector, in the order of ids: (n, count)."""
        return dots(features, self.matrix())

    def matrix(self) -> Floats:
        """Return the vectors, of unit length, in the order of ids: (count, d)."""
        if self._changes or self._matrix is None:
            self._add_changes()
            # Solved in an order that follows from the examples alone: neither ids nor names change a bit.
            sums = {one.digest: one.total for one in self._categories.values()}
            order = sorted(sums)
            width = len(self._moments)
            together = np.array([sums[digest] for digest in order]).reshape(-1, width) / _STEPS
            solved = unit(self._solve(self._moments, together)) if order else np.empty((0, width), np.float32)
            place = {digest: row for row, digest in enumerate(order)}
            self._matrix = solved[[place[self._categories[id_].digest] for id_ in self.ids]]
        return self._matrix

    def _add_changes(self) -> None:
        """Bring ZᵀZ up to date, many examples at a time: it is large."""
        for start in range(0, len(self._changes), _AT_ONCE):
            some = self._changes[start : start + _AT_ONCE]
            examples = np.concatenate([one.examples for _, one in some])
            signs = np.repeat([float(sign) for sign, _ in some], [len(one.steps) for _, one in some])
            self._moments += (signs[:, None] * examples).T @ examples
        self._changes = []

    def means(self) -> Floats:
        """Return the mean example of each category, of unit length, in the order of ids: (count, d)."""
        return unit(np.array([self._categories[id_].total for id_ in self.ids], np.float32))
