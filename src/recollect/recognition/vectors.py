"""Classification vectors of taught categories, and products in which no score depends on any other."""

from array import array
from bisect import bisect_left
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
_CACHED_BYTES = 1 << 18  # vectors that stay in the processor's cache while all features meet them
_FIRST_ROWS = 16


def dots(features: Floats, vectors: Floats) -> Floats:
    """Return the dot products (n, k) of features (n, d) with vectors (k, d).

    Each is computed on its own, so its bits depend on nothing but its two vectors: a matrix product would be
    up to three times as fast for many pictures, but its bits depend on its shape, and the threads of numpy's
    BLAS fight with torch's for the cores, which takes longer than the product.
    """
    found = np.empty((len(features), len(vectors)), np.float32)
    rows = max(1, _CACHED_BYTES // (4 * features.shape[1] or 1))
    for start in range(0, len(vectors), rows):
        some = slice(start, start + rows)
        np.vecdot(features[:, None, :], vectors[None, some], out=found[:, some])
    return found


class VectorTable:
    """Vectors by id, in the rows of one matrix."""

    def __init__(self, width: int) -> None:
        self._matrix = np.empty((_FIRST_ROWS, width), np.float32)
        self._ids, self._rows = array("q"), array("q")  # rising ids, and the row of each

    def __getstate__(self) -> dict[str, Any]:
        """Leave out rows that are not in use."""
        return self.__dict__ | {"_matrix": self._matrix[: len(self)]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Copy the vectors, which may come from a file that is mapped read-only."""
        self.__dict__ |= state | {"_matrix": np.array(state["_matrix"])}

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def ids(self) -> list[int]:
        """Return the ids, rising."""
        return self._ids.tolist()

    def put(self, id_: int, vector: Floats) -> None:
        """Put a vector (d,) in, or in the place of the one that has this id."""
        place = bisect_left(self._ids, id_)
        if place == len(self) or self._ids[place] != id_:
            if len(self) == len(self._matrix):
                grown = np.empty((len(self) + len(self) // 2 + _FIRST_ROWS, len(vector)), np.float32)
                grown[: len(self)] = self._matrix
                self._matrix = grown
            self._rows.insert(place, len(self))
            self._ids.insert(place, id_)
        self._matrix[self._rows[place]] = vector

    def drop(self, id_: int) -> None:
        """Take a vector out; the one in the last row moves to its row."""
        place = bisect_left(self._ids, id_)
        if place == len(self) or self._ids[place] != id_:
            raise KeyError(id_)
        del self._ids[place]
        row, last = self._rows.pop(place), len(self)
        if row != last:
            self._matrix[row] = self._matrix[last]
            self._rows[self._rows.index(last)] = row
        if len(self) < len(self._matrix) // 4:
            self._matrix = np.array(self._matrix[: 2 * len(self) + _FIRST_ROWS])

    def matrix(self) -> Floats:
        """Return a copy of the vectors, in the order of ids: (count, d)."""
        found: Floats = self._matrix[np.array(self._rows)] if len(self) else self._matrix[:0]
        return found

    def products(self, features: Floats) -> Floats:
        """Return the dot products of features (n, d) with every vector, in the order of ids: (n, count).

        The array is new, for the caller to change.
        """
        found = dots(features, self._matrix[: len(self)])
        rows = np.array(self._rows)
        in_place = bool((rows[1:] > rows[:-1]).all())
        return found if in_place else found[:, rows]


def lengths(vectors: Floats) -> Floats:
    """Return the L2 norms of vectors (…, d), as (…, 1); none is 0."""
    found: Floats = np.sqrt(np.vecdot(vectors, vectors))[..., None]
    return np.maximum(found, np.float32(1e-12))


def unit(vectors: Floats) -> Floats:
    """Return vectors (…, d) of unit length; those of no length stay."""
    return vectors / lengths(vectors)


def mean(terms: Floats) -> Floats:
    """Return the mean (d,) of terms (n, d); sorted first, so that their order changes no bit."""
    found: Floats = np.sort(terms, axis=0).mean(axis=0, dtype=np.float64).astype(np.float32)
    return found
