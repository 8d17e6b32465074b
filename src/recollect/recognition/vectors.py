"""Classification vectors of taught categories, kept so that a score never depends on what else is taught."""

import heapq
from array import array
from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
_SMALLEST, _LARGEST = 128, 8192  # rows of a block
_ARRAY_BYTES = 1 << 24


class VectorTable:
    """Vectors by id, in blocks of fixed shapes.

    A vector stays at its place in its block, and a block is always multiplied whole: the arithmetic behind
    a score, hence every bit of it, is the same whatever else is put in or dropped. Blocks grow, so that few
    vectors cost little and many need no copying; when many are dropped, empty blocks at the end go.

    Blocks are cut from large arrays, of which the system only fills what is written to: memory in large
    pages is a fifth quicker to read than the same in many small arrays.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        fitting = _ARRAY_BYTES // (4 * width) // _SMALLEST * _SMALLEST
        self._rows = max(_SMALLEST, min(_LARGEST, fitting))  # of an array
        self._arrays: list[Floats] = []
        self._starts: list[int] = []  # the first slot of each block
        self._capacity = 0  # slots of all blocks
        self._used: list[int] = []  # vectors in each block
        self._ids, self._slots = array("q"), array("q")  # rising ids, and the slot of each
        self._free: list[int] = []  # a heap: the lowest first
        self._order: npt.NDArray[np.int64] | slice | None = slice(0)  # of products to return

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what no block has reached yet."""
        last = self._capacity - self._rows * (len(self._arrays) - 1)
        return self.__dict__ | {"_arrays": [*self._arrays[:-1], *(some[:last] for some in self._arrays[-1:])]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the vectors over into arrays of one's own."""
        self.__dict__ |= state | {"_arrays": []}
        for some in state["_arrays"]:
            self._arrays.append(np.zeros((self._rows, self.width), np.float32))
            self._arrays[-1][: len(some)] = some

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
            if not self._free:
                self._add_block()
            slot = heapq.heappop(self._free)
            self._ids.insert(place, id_)
            self._slots.insert(place, slot)
            self._used[self._number(slot)] += 1
            self._order = None
        self._row(self._slots[place])[:] = vector

    def drop(self, id_: int) -> None:
        """Take a vector out."""
        place = bisect_left(self._ids, id_)
        if place == len(self) or self._ids[place] != id_:
            raise KeyError(id_)
        del self._ids[place]
        slot = self._slots.pop(place)
        self._row(slot)[:] = 0
        heapq.heappush(self._free, slot)
        self._used[self._number(slot)] -= 1
        self._order = None
        if not any(self._used[-2:]):
            self._drop_empty_blocks()

    def products(self, features: Floats) -> Floats:
        """Return the dot products of features (n, d) with every vector, in the order of ids: (n, count).

        The array is new, for the caller to change.
        """
        found = np.empty((len(features), self._capacity), np.float32)
        for start, stop in pairwise([*self._starts, self._capacity]):
            whole, first = divmod(start, self._rows)
            block = self._arrays[whole][first : first + stop - start]
            np.matmul(features, block.T, out=found[:, start:stop])
        return found[:, self._in_order()]

    def _add_block(self) -> None:
        start = self._capacity
        room = len(self._arrays) * self._rows - start
        if not room:
            self._arrays.append(np.zeros((self._rows, self.width), np.float32))
            room = self._rows
        rows = _SMALLEST
        while 2 * rows <= min(start // 4, _LARGEST):  # at most a fifth is multiplied in vain
            rows *= 2
        self._starts.append(start)
        self._used.append(0)
        self._capacity += min(rows, room)
        self._free.extend(range(start, self._capacity))  # the heap was empty

    def _drop_empty_blocks(self) -> None:
        """Let empty blocks at the end go, but for one, so that teaching and forgetting in turn is cheap."""
        while len(self._starts) > 1 and not any(self._used[-2:]):
            self._capacity = self._starts.pop()
            del self._used[-1]
        del self._arrays[-(-self._capacity // self._rows) :]
        self._free = [slot for slot in self._free if slot < self._capacity]
        heapq.heapify(self._free)

    def _number(self, slot: int) -> int:
        return bisect_right(self._starts, slot) - 1

    def _row(self, slot: int) -> Floats:
        row: Floats = self._arrays[slot // self._rows][slot % self._rows]
        return row

    def _in_order(self) -> npt.NDArray[np.int64] | slice:
        """Return where the products are, in the order of ids."""
        if self._order is None:
            slots = np.array(self._slots)
            in_place = bool((slots == np.arange(len(slots))).all())
            self._order = slice(len(slots)) if in_place else slots
        return self._order


def lengths(vectors: Floats) -> Floats:
    """Return the L2 norms of vectors (…, d), as (…, 1); none is 0."""
    found: Floats = np.sqrt(np.vecdot(vectors, vectors))[..., None]
    return np.maximum(found, np.float32(1e-12))


def unit(vectors: Floats) -> Floats:
    """Return vectors (…, d) of unit length; those of no length stay."""
    return vectors / lengths(vectors)
