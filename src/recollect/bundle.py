"""Taught categories as a part of a model file: words in its header, features among its tensors."""

from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from recollect.errors import ModelError
from recollect.modelfile import TAUGHT, KeptCategory, KeptExample
from recollect.store import Example, Taught, tidy

Tensors = Mapping[str, npt.NDArray[np.generic]]
Categories = Sequence[tuple[Taught, Sequence[Example]]]


def pack(
    categories: Categories, width: int
) -> tuple[tuple[KeptCategory, ...], dict[str, npt.NDArray[np.generic]]]:
    """Return the words and the tensors of taught categories with features of `width`."""
    words = tuple(
        KeptCategory(
            id=taught.id,
            name=taught.name,
            examples=tuple(
                KeptExample(id=one.id, added=one.added, thumbnail=len(one.thumbnail or b""))
                for one in examples
            ),
        )
        for taught, examples in categories
    )
    kept = [one for _, examples in categories for one in examples]
    if not kept:
        return words, {}
    return words, {
        f"{TAUGHT}features": np.stack([one.feature for one in kept]).reshape(-1, width),
        f"{TAUGHT}terms": np.stack([one.term for one in kept]).reshape(-1, width),
        f"{TAUGHT}thumbnails": np.frombuffer(b"".join(one.thumbnail or b"" for one in kept), np.uint8),
    }


def unpack(words: Sequence[KeptCategory], tensors: Tensors, width: int) -> Categories:
    """Return the taught categories that `pack` made words and tensors of; refuse what does not fit."""
    kept = [one for category in words for one in category.examples]
    if not kept:
        return []
    sizes = [one.thumbnail for one in kept]
    expected = {"features": (len(kept), width), "terms": (len(kept), width), "thumbnails": (sum(sizes),)}
    kinds = {"features": np.float32, "terms": np.float32, "thumbnails": np.uint8}
    for name, shape in expected.items():
        found = tensors.get(name)
        if found is None or found.shape != shape or found.dtype != kinds[name]:
            raise ModelError(f"the taught categories of the model file are damaged: '{name}' does not fit")
    distinct = {one.id for one in kept}, {category.id for category in words}, {tidy(c.name) for c in words}
    if [len(values) for values in distinct] != [len(kept), len(words), len(words)]:
        raise ModelError("the taught categories of the model file are damaged: two of them are the same")
    ends = list(accumulate(sizes))
    small = tensors["thumbnails"].tobytes()
    examples = iter(
        Example(feature, term, small[end - size : end] or None, one.id, one.added)
        for feature, term, size, end, one in zip(
            tensors["features"], tensors["terms"], sizes, ends, kept, strict=True
        )
    )
    return [
        (
            Taught(category.id, category.name, len(category.examples), 1),
            [next(examples) for _ in category.examples],
        )
        for category in words
    ]
