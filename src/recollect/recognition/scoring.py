"""From scores to answers: the arithmetic of a calibration, for arrays of scores."""

from typing import Any

import numpy as np
import numpy.typing as npt

from recollect.model.spec import Unknown

Array = npt.NDArray[Any]  # of floats, single or double


def joint_scores(base: Array, novel: Array, bias: float | Array = 0.0) -> Array:
    """Return scores (n, k) and (n, taught) side by side, with the bias added to the taught ones."""
    joint = np.concatenate([base, novel], axis=1)
    joint[:, base.shape[1] :] += np.asarray(bias, joint.dtype)
    return joint


def softmax(scores: Array, temperature: float = 1.0) -> Array:
    """Return the softmax of scores / temperature over the last axis."""
    exponents: Array = (scores - scores.max(axis=-1, keepdims=True)) / scores.dtype.type(temperature)
    np.exp(exponents, out=exponents)
    exponents /= exponents.sum(axis=-1, keepdims=True)
    return exponents


def sigmoid(values: Array) -> Array:
    """Return 1 / (1 + exp(−x)); scipy's `expit` would be the only thing that `predict` loads scipy for."""
    with np.errstate(over="ignore"):  # 1 / (1 + ∞) = 0 is right
        found: Array = 1 / (1 + np.exp(-values))
    return found


def clearance(best: Array, taught: int, unknown: Unknown) -> Array:
    """Return how far best scores (n,) lie above the threshold for known pictures; below 0 is unknown."""
    cleared: Array = best.astype(np.float64) - unknown.rise * np.log1p(taught) - unknown.threshold
    return cleared


def unknown_probability(cleared: Array, unknown: Unknown) -> Array:
    """Return the probability of "unknown", if known and unknown pictures are equally frequent."""
    return sigmoid(unknown.offset - unknown.steepness * cleared)
