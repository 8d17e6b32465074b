"""Damaged copies of a file, for tests of everything that reads files from outside."""

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

from recollect.errors import RecollectError

COUNT = int(os.environ.get("SOAK_MUTATIONS", "100"))  # `make soak` tries more


def mutations(data: bytes, count: int = COUNT, seed: int = 2) -> Iterator[bytes]:
    """Yield `count` copies with bytes changed, cut out, cut off or put in at random, the same each time."""
    rng = random.Random(seed)
    for _ in range(count):
        damaged = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 8))):
            place, length = rng.randrange(len(damaged) + 1), rng.choice((1, 2, 8, 64))
            how = rng.choice(("flip", "flip", "flip", "truncate", "insert", "remove"))
            if how == "flip" and place < len(damaged):
                damaged[place] ^= rng.choice((1, 2, 4, 8, 16, 32, 64, 128, 255))
            elif how == "truncate":
                del damaged[place:]
            elif how == "insert":
                damaged[place:place] = rng.randbytes(length)
            elif how == "remove":
                del damaged[place : place + length]
        yield bytes(damaged)


def refusals(load: Callable[[Path], object], path: Path, whole: bytes, count: int = COUNT) -> list[str]:
    """Load each of `count` damaged copies from `path`; return the errors, which must be of ours."""
    refused = []
    for damaged in mutations(whole, count):
        path.write_bytes(damaged)
        try:
            load(path)
        except RecollectError as error:
            refused.append(str(error))
    return refused
