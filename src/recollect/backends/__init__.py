"""How a recogniser computes: pixels to features, features to the terms of a novel category's vector."""

from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from recollect.errors import ModelError
from recollect.modelfile import Header

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
BackendName = Literal["auto", "torch", "onnx"]
DAMAGED_MOMENTS = "the second moments in the model are damaged: train it again"
_STEEPEST = 10.0  # of what attention can fade with in a file that is not damaged


class Backend(Protocol):
    """What a recogniser needs from a model."""

    header: Header
    fingerprint: str  # of every weight: taught categories belong to one model
    base_vectors: Floats  # W_base (k, d)
    scale: float  # τ

    def embed(self, pixels: npt.NDArray[np.uint8]) -> Floats:
        """Return the features (n, d) of pixels (n, size, size, 3)."""
        ...

    def generate(self, features: Floats) -> Floats:
        """Return each example's term (n, d), of which `solve` or `compose` makes a category's vector.

        Where the generator is shot-aware it has two parts, (n, 2d).
        """
        ...

    def compose(self, mean: Floats, examples: int) -> Floats:
        """Return the vectors (…, d) of categories with so many examples, from the means of their terms."""
        ...

    def solve(self, moments: Doubles, sums: Floats) -> Floats:
        """Return the vectors (k, d) of taught categories, for the generator `ridge`.

        They depend on the moments ZᵀZ (d, d) of all taught terms, and on the sum of each category's (k, d).
        """
        ...

    def attend(self, features: Floats) -> Floats | None:
        """Return how much each example leans on each base category (n, k), or `None` without attention."""
        ...

    def weights(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return every weight by its name in a model file."""
        ...


def checked_fading(fading: float) -> float:
    """Return ρ of a shot-aware generator, if it can be one."""
    if not abs(fading) <= _STEEPEST:
        raise ModelError(f"the weight generator.fading is {fading:g}: the model is damaged")
    return fading


def composed(mean: Floats, examples: int, fading: float | None) -> Floats:
    """Return categories' vectors (…, d): means of terms, or with ρ average + examples^−ρ · attended."""
    if fading is None:
        return mean
    average, attended = np.split(mean, 2, axis=-1)
    vector: Floats = average + np.float32(examples**-fading) * attended
    return vector
