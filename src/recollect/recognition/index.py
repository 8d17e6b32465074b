"""A search among very many vectors: two bits a number to find candidates, exact products to rank them.

The candidates come from faiss's fast scan of 4-bit codes, one for each two numbers of a vector. After a
random rotation the numbers are nearly normal, whatever the vectors are, so the codes need no training: four
levels a number, the best ones for a normal distribution (Max, 1960), times the numbers' standard deviation.
Vectors can come, change and go, and the index never has to be built again. It looks at all codes, so nothing
is missed because it lies in another cell; a score is blurred by about a third of the scores' standard
deviation, so the best few are among the first thousand candidates.
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
        self._pool, self._process = ThreadPoolExecutor(_SHARDS, "search"), os.getpid()
        rotation, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((width, width)))
        self._rotation = rotation[: sample.shape[1]].astype(np.float32)
        self._mean = sample.mean(axis=0)
        deviation = np.sqrt(np.square(sample - self._mean).mean())
        pairs = np.stack(np.meshgrid(_LEVELS, _LEVELS, indexing="ij"), axis=-1).reshape(16, 2)
        self._shards = [_empty_shard(width, pairs * deviation) for _ in range(_SHARDS)]
        self._packer = self._shards[0].get_CodePacker()

    def __len__(self) -> int:
        return sum(shard.ntotal for shard in self._shards)

    def append(self, vectors: Floats) -> None:
        """Put vectors (n, d) into the next rows."""
        for start in range(0, len(vectors), _AT_ONCE):
            turned = self._turned(vectors[start : start + _AT_ONCE])
            first = len(self)
            for number, shard in enumerate(self._shards):  # rows take turns
                own = turned[(number - first) % _SHARDS :: _SHARDS]
                if len(own):
                    shard.add(own)

    def put(self, row: int, vector: Floats) -> None:
        """Put a vector (d,) into a row, or into the next one."""
        if row == len(self):
            self.append(vector[None])
            return
        shard, place = self._shards[row % _SHARDS], row // _SHARDS
        self._write(shard, place, shard.pq.compute_codes(self._turned(vector[None]))[0])

    def drop_last(self) -> None:
        """Take the last row out; its code becomes 0, for faiss adds the next one with an OR."""
        shard = self._shards[(len(self) - 1) % _SHARDS]
        self._write(shard, shard.ntotal - 1, np.zeros(shard.code_size, np.uint8))
        shard.ntotal -= 1

    def _write(self, shard: Any, place: int, code: npt.NDArray[np.uint8]) -> None:  # noqa: ANN401
        codes = faiss.rev_swig_ptr(shard.codes.get(), shard.codes.size())
        block, offset = divmod(place, self._packer.nvec)
        self._packer.pack_1(code, offset, codes.reshape(-1, self._packer.block_size)[block : block + 1])

    def search(self, queries: Floats) -> Rows:
        """Return the rows (n, candidates) whose vectors may have the largest products with queries (n, d)."""
        if self._process != os.getpid():  # threads do not cross a fork
            self._pool, self._process = ThreadPoolExecutor(_SHARDS, "search"), os.getpid()
        turned = queries @ self._rotation
        count = min(CANDIDATES // _SHARDS, *(shard.ntotal for shard in self._shards))
        found = self._pool.map(lambda shard: shard.search(turned, count)[1], self._shards)
        return np.concatenate([_SHARDS * rows + number for number, rows in enumerate(found)], axis=1)

    def _turned(self, vectors: Floats) -> Floats:
        turned: Floats = (vectors - self._mean) @ self._rotation
        return turned


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
