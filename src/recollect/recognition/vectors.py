"""Classification vectors of taught categories, and products in which no score depends on any other."""

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
_CACHED_BYTES = 1 << 18  # vectors that stay in the processor's cache while all features meet them
_FIRST_ROWS, _BLOCK_ROWS = 16, 8192


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
    """Vectors by id, in the rows of blocks, so that no vector is copied when there are ever more of them."""

    def __init__(self, width: int) -> None:
        self._blocks = [np.empty((_FIRST_ROWS, width), np.float32)]
        self._ids, self._rows = array("q"), array("q")  # rising ids, and the row of each
        self._owners = array("q")  # the id of each row

    def __getstate__(self) -> dict[str, Any]:
        """Leave out rows that are not in use."""
        return self.__dict__ | {"_blocks": [block.copy() for block in self._used()]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Copy the vectors, which may come from a file that is mapped read-only."""
        blocks = [np.array(block) for block in state["_blocks"]]
        for place, block in enumerate(blocks[1:], 1):
            blocks[place] = _grown(block, _BLOCK_ROWS)
        self.__dict__ |= state | {"_blocks": blocks}

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def ids(self) -> list[int]:
        """Return the ids, rising."""
        return self._ids.tolist()

    def row(self, id_: int) -> int:
        """Return the row of the vector that has this id."""
        return self._rows[bisect_left(self._ids, id_)]

    def ids_of(self, rows: Iterable[int]) -> list[int]:
        """Return whose vectors are in some rows."""
        return [self._owners[row] for row in rows]

    @property
    def width(self) -> int:
        """Return how many numbers a vector has."""
        return self._blocks[0].shape[1]

    def put(self, id_: int, vector: Floats) -> int:
        """Put a vector (d,) in, or in the place of the one that has this id; return its row."""
        ids, count = self._ids, len(self._ids)
        place = count if not count or id_ > ids[-1] else bisect_left(ids, id_)
        if place == count or ids[place] != id_:
            self._make_room()
            self._rows.insert(place, count)
            self._owners.append(id_)
            ids.insert(place, id_)
        row = self._rows[place]
        self._blocks[row // _BLOCK_ROWS][row % _BLOCK_ROWS] = vector
        return row

    def put_all(self, ids: npt.NDArray[np.int64], vectors: Floats) -> npt.NDArray[np.int64]:
        """Put vectors (n, d) of rising ids in, or in the places of those that have them; return the rows."""
        first = len(self)
        if first and len(ids) and ids[0] <= self._ids[-1]:
            return np.array([self.put(*pair) for pair in zip(ids.tolist(), vectors, strict=True)], np.int64)
        done = 0
        while done < len(ids):
            self._make_room()
            block, start = divmod(len(self), _BLOCK_ROWS)
            some = slice(done, done + len(self._blocks[block]) - start)
            own = array("q", ids[some].tolist())
            self._blocks[block][start : start + len(own)] = vectors[some]
            self._rows.extend(range(len(self), len(self) + len(own)))
            self._ids += own
            self._owners += own
            done += len(own)
        return np.arange(first, len(self))

    def drop(self, id_: int) -> int:
        """Take a vector out; the one in the last row moves to its row, which is returned."""
        place = bisect_left(self._ids, id_)
        if place == len(self) or self._ids[place] != id_:
            raise KeyError(id_)
        del self._ids[place]
        row, last, mover = self._rows.pop(place), len(self), self._owners.pop()
        if row != last:
            self._blocks[row // _BLOCK_ROWS][row % _BLOCK_ROWS] = self.rows(np.array([last]))[0]
            self._owners[row] = mover
            self._rows[bisect_left(self._ids, mover)] = row
        if len(self._blocks) > 1 and len(self) <= (len(self._blocks) - 2) * _BLOCK_ROWS:
            self._blocks.pop()
        if len(self._blocks) == 1 and len(self) < len(self._blocks[0]) // 4:
            self._blocks[0] = _grown(self._blocks[0][: len(self)], 2 * len(self) + _FIRST_ROWS)
        return row

    def rows(self, rows: npt.NDArray[np.int64]) -> Floats:
        """Return the vectors (n, d) in some rows."""
        found = np.empty((len(rows), self.width), np.float32)
        blocks, places = np.divmod(rows, _BLOCK_ROWS)
        for block in np.unique(blocks).tolist():
            here = blocks == block
            found[here] = self._blocks[block][places[here]]
        return found

    def matrix(self) -> Floats:
        """Return a copy of the vectors, in the order of ids: (count, d)."""
        return self.rows(np.array(self._rows, np.int64))

    def products(self, features: Floats) -> Floats:
        """Return the dot products of features (n, d) with every vector, in the order of ids: (n, count).

        The array is new, for the caller to change.
        """
        found = np.concatenate([dots(features, block) for block in self._used()], axis=1)
        rows = np.array(self._rows)
        in_place = bool((rows[1:] > rows[:-1]).all())
        return found if in_place else found[:, rows]

    def _used(self) -> list[Floats]:
        """Return the rows in use of each block."""
        return [
            block[: len(self) - number * _BLOCK_ROWS]
            for number, block in enumerate(self._blocks)
            if not number or len(self) > number * _BLOCK_ROWS
        ]

    def _make_room(self) -> None:
        """Make room for a row: the first block grows until it is as large as all others are."""
        first = self._blocks[0]
        if len(self) == len(self._blocks) * _BLOCK_ROWS:
            self._blocks.append(np.empty((_BLOCK_ROWS, first.shape[1]), np.float32))
        elif len(self._blocks) == 1 and len(self) == len(first):
            self._blocks[0] = _grown(first, min(len(self) + len(self) // 2 + _FIRST_ROWS, _BLOCK_ROWS))


def _grown(block: Floats, rows: int) -> Floats:
    found = np.empty((rows, block.shape[1]), np.float32)
    found[: len(block)] = block
    return found


def lengths(vectors: Floats) -> Floats:
    """Return the L2 norms of vectors (…, d), as (…, 1); none is 0."""
    found: Floats = np.sqrt(np.vecdot(vectors, vectors))[..., None]
    return np.maximum(found, np.float32(1e-12))


def unit(vectors: Floats) -> Floats:
    """Return vectors (…, d) of unit length; those of no length stay."""
    return vectors / lengths(vectors)


def mean(terms: Floats) -> Floats:
    """Return the mean (…, d) of terms (…, n, d); sorted first, so that their order changes no bit."""
    if terms.shape[-2] == 1:
        return terms[..., 0, :]
    found: Floats = np.sort(terms, axis=-2).mean(axis=-2, dtype=np.float64).astype(np.float32)
    return found
