"""A search among very many vectors: two bits a number to find candidates, exact products to rank them.

The candidates come from faiss's fast scan of 4-bit codes, one for each two numbers of a vector. After a
random rotation the numbers are nearly normal, whatever the vectors are, so the codes need no training: four
levels a number, the best ones for a normal distribution (Max, 1960), times the numbers' standard deviation.
Vectors can come, change and go, and the index never has to be built again. It looks at all codes, so nothing
is missed because it lies in another cell; a score is blurred by about a third of the scores' standard
deviation, so the best few are among the first thousand candidates.

The codes are computed here, by three comparisons a number, which takes a sixth of faiss's time; and faiss's
own threads, which would make a single vector wait for an idle core, are not used.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from recollect.errors import ExtraError

try:
    import faiss
except ImportError as error:
    raise ExtraError(
        "a quick search among very many categories needs faiss: run `pip install 'recollect[many]'`"
    ) from error

Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]
Codes = npt.NDArray[np.uint8]
CANDIDATES = 1200
_LEVELS = np.array([-1.510, -0.4528, 0.4528, 1.510], np.float32)  # in standard deviations
_SHARDS = 2  # each is searched by a thread of its own
_AT_ONCE = 32768  # vectors that are encoded together
_LOOKED_AT = 16384  # vectors from which the mean and the standard deviation are taken


class Index:
    """Codes of vectors in the rows 0 … n − 1, which answer with the rows of candidates."""

    def __init__(self, sample: Floats) -> None:
        """Prepare for vectors such as those of a sample (n, d); it holds none of them yet."""
        width = sample.shape[1] + sample.shape[1] % 2
        self._pool, self._process = _threads(), os.getpid()
        rotation, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((width, width)))
        self._rotation = rotation[: sample.shape[1]].astype(np.float32)
        self._mean = sample.mean(axis=0)
        self._deviation = np.sqrt(np.square(sample - self._mean).mean())
        pairs = np.stack(np.meshgrid(_LEVELS, _LEVELS, indexing="ij"), axis=-1).reshape(16, 2)
        self._shards = [_empty_shard(width, pairs * self._deviation) for _ in range(_SHARDS)]
        self._packer = self._shards[0].get_CodePacker()

    def __len__(self) -> int:
        return sum(shard.ntotal for shard in self._shards)

    def append(self, vectors: Floats) -> None:
        """Put vectors (n, d) into the next rows."""
        for start in range(0, len(vectors), _AT_ONCE):
            codes = self._codes(vectors[start : start + _AT_ONCE])
            first = len(self)
            for number, shard in enumerate(self._shards):  # rows take turns
                self._extend(shard, codes[(number - first) % _SHARDS :: _SHARDS])

    def put(self, row: int, vector: Floats) -> None:
        """Put a vector (d,) into a row, or into the next one."""
        if row == len(self):
            self.append(vector[None])
            return
        shard, place = self._shards[row % _SHARDS], row // _SHARDS
        self._write(self._blocks(shard), place, self._codes(vector[None])[0])

    def drop_last(self) -> None:
        """Take the last row out; its code becomes 0."""
        shard = self._shards[(len(self) - 1) % _SHARDS]
        self._write(self._blocks(shard), shard.ntotal - 1, np.zeros(shard.code_size, np.uint8))
        shard.ntotal -= 1

    def _extend(self, shard: Any, codes: Codes) -> None:  # noqa: ANN401 -- faiss has no types
        """Put codes (n, bytes) after those of a shard: whole blocks at once, the rest one by one."""
        size, first, last = self._packer.nvec, shard.ntotal, shard.ntotal + len(codes)
        needed, had = -(-last // size) * self._packer.block_size, shard.codes.size()
        if needed > had:
            shard.codes.resize(needed)  # which doubles the memory when it is full
            faiss.rev_swig_ptr(shard.codes.get(), needed)[had:] = 0
        blocks, place = self._blocks(shard), first
        while place < last:
            if place % size == 0 and place + size <= last:
                whole = np.ascontiguousarray(codes[place - first : place - first + size])
                self._packer.pack_all(faiss.swig_ptr(whole), faiss.swig_ptr(blocks[place // size]))
                place += size
            else:
                self._write(blocks, place, codes[place - first])
                place += 1
        shard.ntotal, shard.ntotal2 = last, len(blocks) * size

    def _write(self, blocks: Codes, place: int, code: Codes) -> None:
        block, offset = divmod(place, self._packer.nvec)
        self._packer.pack_1(np.ascontiguousarray(code), offset, blocks[block : block + 1])

    def _blocks(self, shard: Any) -> Codes:  # noqa: ANN401
        """Return the memory of a shard's codes, as blocks in which faiss mixes those of several vectors."""
        codes: Codes = faiss.rev_swig_ptr(shard.codes.get(), shard.codes.size())
        return codes.reshape(-1, self._packer.block_size)

    def search(self, queries: Floats) -> Rows:
        """Return the rows (n, candidates) whose vectors may have the largest products with queries (n, d)."""
        if self._process != os.getpid():  # threads do not cross a fork
            self._pool, self._process = _threads(), os.getpid()
        turned = queries @ self._rotation
        count = min(CANDIDATES // _SHARDS, *(shard.ntotal for shard in self._shards))
        found = self._pool.map(lambda shard: shard.search(turned, count)[1], self._shards)
        return np.concatenate([_SHARDS * rows + number for number, rows in enumerate(found)], axis=1)

    def _codes(self, vectors: Floats) -> Codes:
        """Return the codes (n, bytes) of vectors (n, d): the nearest level of each number, two bits each."""
        turned = (vectors - self._mean) @ self._rotation
        levels = np.zeros(turned.shape, np.uint8)
        for between in (_LEVELS[1:] + _LEVELS[:-1]) / 2 * self._deviation:
            levels += turned > between
        pairs = 4 * levels[:, ::2] + levels[:, 1::2]
        pairs = np.pad(pairs, ((0, 0), (0, pairs.shape[1] % 2)))
        codes: Codes = pairs[:, ::2] | pairs[:, 1::2] << 4
        return codes


def _threads() -> ThreadPoolExecutor:
    """Return threads that search, each on one core."""
    return ThreadPoolExecutor(_SHARDS, "search", initializer=faiss.omp_set_num_threads, initargs=(1,))


def _empty_shard(width: int, pairs: Floats) -> Any:  # noqa: ANN401 -- faiss has no types
    shard = faiss.IndexPQFastScan(width, width // 2, 4, faiss.METRIC_INNER_PRODUCT)
    faiss.copy_array_to_vector(
        np.tile(pairs, (width // 2, 1, 1)).astype(np.float32).ravel(), shard.pq.centroids
    )
    shard.is_trained = True
    return shard


def sample_rows(count: int) -> Rows:
    """Return some of so many rows, evenly spread, for `Index`."""
    return np.unique(np.linspace(0, count - 1, min(count, _LOOKED_AT)).astype(np.int64))
