"""Made-up pictures, and splits of them."""

from collections.abc import Sequence

import numpy as np

from recollect.data.imageset import ImageSet
from recollect.data.splits import Split

SIZE = 16  # the smallest picture that the conv nets take: c32f gives d = 32


def images_of(
    sizes: Sequence[int], *, size: int = SIZE, seed: int = 0, names: Sequence[str] | None = None
) -> ImageSet:
    """Return `sizes[c]` pictures of each category c, in mixed order: a colour of its own, with noise."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    colours = rng.integers(0, 256, (len(sizes), 1, 1, 3))
    noise = rng.integers(-40, 41, (len(labels), size, size, 3))
    pixels = np.clip(colours[labels] + noise, 0, 255).astype(np.uint8)
    categories = tuple(names) if names is not None else tuple(f"base-{index}" for index in range(len(sizes)))
    key = f"synthetic-{seed}-{size}-{'-'.join(map(str, sizes))}"
    return ImageSet(pixels, np.arange(len(labels)), labels, categories, key)


def split_of(
    *,
    base: int = 7,
    novel: int = 6,
    train: int = 12,
    held: int = 6,
    pictures: int = 9,
    size: int = SIZE,
    seed: int = 0,
    reserve: bool = True,
) -> Split:
    """Return a split of `base` categories (train, val and test pictures) and `novel` val and test ones.

    With `reserve=False` no categories are kept from training.
    """
    return Split(
        base_train=images_of([train] * base, size=size, seed=10 * seed + 1),
        base_val=images_of([held] * base, size=size, seed=10 * seed + 2),
        base_test=images_of([held] * base, size=size, seed=10 * seed + 3),
        val=images_of(
            [pictures] * novel,
            size=size,
            seed=10 * seed + 4,
            names=[f"val-{index}" for index in range(novel)],
        )
        if reserve
        else None,
        test=images_of(
            [pictures] * novel,
            size=size,
            seed=10 * seed + 5,
            names=[f"test-{index}" for index in range(novel)],
        )
        if reserve
        else None,
        flips=True,
    )
