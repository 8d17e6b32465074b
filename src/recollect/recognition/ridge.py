"""Vectors of taught categories that are solved together: ridge regression over all taught examples.

Examples are kept as multiples of 2⁻¹⁵, so sums of them and of their products are exact in double precision:
whatever was taught, forgotten and in which order, the same set gives the same sums, and these the same bits.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from recollect.recognition.vectors import dots, lengths

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Solve = Callable[[Doubles, Floats], Floats]  # ZᵀZ (d, d) and ZᵀY, transposed (k, d) → vectors (k, d)
_STEPS = 2.0**15
_AT_ONCE = 256  # categories
_FEW = 100  # examples


@dataclass(frozen=True)
class _Category:
    steps: npt.NDArray[np.int16]  # (n, d), the examples in multiples of 2⁻¹⁵
    total: Floats  # (d,), their sum
    digest: bytes  # of it, by which the categories are put in an order of their own

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
        self._vectors: Floats = np.empty((0, width), np.float32)
        self._rows = np.empty(0, np.int64)  # of the vector of each id
        self._solved = True

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Copy the sums, which may come from a file that is mapped read-only."""
        self.__dict__ |= state | {"_moments": np.array(state["_moments"])}

    def __len__(self) -> int:
        return len(self._categories)

    @property
    def ids(self) -> list[int]:
        """Return the ids, rising."""
        return sorted(self._categories)

    def put(self, id_: int, terms: Floats) -> None:
        """Put a category's examples (n, d) in, or in the place of those that it had."""
        steps = np.rint(terms * np.float32(_STEPS)).clip(1 - _STEPS, _STEPS - 1).astype(np.int16)
        total = steps.sum(axis=0, dtype=np.int64)
        digest = hashlib.blake2b(total.tobytes(), digest_size=16).digest()
        old = self._categories.get(id_)
        new = _Category(steps, (total / _STEPS).astype(np.float32), digest)
        if old is not None and np.array_equal(old.steps, steps):
            return  # another name, no more
        if old is not None:
            self._changes.append((-1, old))
        self._changes.append((1, new))
        self._categories[id_], self._solved = new, False

    def extend(self, id_: int, terms: Floats) -> None:
        """Add examples (n, d) to a category, new or not."""
        old = self._categories.get(id_)
        self.put(id_, terms if old is None else np.concatenate([old.examples.astype(np.float32), terms]))

    def drop(self, id_: int) -> None:
        """Take a category out."""
        self._changes.append((-1, self._categories.pop(id_)))
        self._solved = False

    def matrix(self) -> Floats:
        """Return a copy of the vectors, in the order of ids: (count, d)."""
        self.solve()
        found: Floats = self._vectors[self._rows]
        return found

    def products(self, features: Floats) -> Floats:
        """Return the dot products of features (n, d) with every vector, in the order of ids: (n, count)."""
        self.solve()
        return dots(features, self._vectors)[:, self._rows]

    def tightness(self) -> float | None:
        """Return the mean cosine between two examples of the same category; `None` without any two."""
        pairs = [
            (float(np.vecdot(one.total, one.total)) - len(one.steps))
            / (len(one.steps) * (len(one.steps) - 1))
            for one in self._categories.values()
            if len(one.steps) > 1
        ]
        return float(np.mean(sorted(pairs))) if pairs else None

    def solve(self) -> None:
        """Solve the vectors, of unit length, if anything changed since they were last solved."""
        if self._solved:
            return
        self._add_changes()
        # Solved in an order that follows from the examples alone: neither ids nor names change a bit.
        sums = {one.digest: one.total for one in self._categories.values()}
        order = sorted(sums)
        together = np.array([sums[digest] for digest in order], np.float32).reshape(-1, len(self._moments))
        if order:
            together = self._solve(self._moments, together)
            together /= lengths(together)
        place = {digest: row for row, digest in enumerate(order)}
        self._vectors, self._solved = together, True
        self._rows = np.array([place[self._categories[id_].digest] for id_ in self.ids], np.int64)

    def _add_changes(self) -> None:
        """Bring ZᵀZ up to date, many examples at a time: it is large."""
        for sign in (1, -1):
            some = [one for way, one in self._changes if way == sign]
            for start in range(0, len(some), _AT_ONCE):
                examples = np.concatenate([one.examples for one in some[start : start + _AT_ONCE]])
                # numpy computes half of AᵀA and mirrors it, which is slower for few examples.
                signed = examples if sign == 1 and len(examples) > _FEW else sign * examples
                self._moments += signed.T @ examples
        self._changes = []
