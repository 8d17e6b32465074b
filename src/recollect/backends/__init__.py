"""How a recogniser computes: pixels to features, features to the terms of a novel category's vector."""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from recollect.model.spec import ModelSpec

Floats = npt.NDArray[np.float32]


class Backend(Protocol):
    """What a recogniser needs of a model."""

    spec: ModelSpec
    base_vectors: Floats  # W_base (k, d)
    scale: float  # τ

    def embed(self, pixels: npt.NDArray[np.uint8]) -> Floats:
        """Return the features (n, d) of pixels (n, size, size, 3)."""
        ...

    def generate(self, features: Floats) -> Floats:
        """Return each example's term (n, d); a category's vector is the mean of its examples' terms."""
        ...
