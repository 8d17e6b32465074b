"""How far probabilities can be trusted, and how well known pictures are separated from unknown ones."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating[Any]]
BINS = 15


class Reliability(NamedTuple):
    """Answers grouped by confidence into bins of equal width over (0, 1]; empty bins hold zeros."""

    counts: npt.NDArray[np.int64]
    confidence: npt.NDArray[np.float64]  # mean of each bin
    accuracy: npt.NDArray[np.float64]  # of each bin


def reliability(confidence: Floats, right: npt.NDArray[np.bool_], bins: int = BINS) -> Reliability:
    """Group answers by confidence, the probability of the one that was given."""
    place = np.clip(np.ceil(confidence.astype(np.float64) * bins).astype(np.int64) - 1, 0, bins - 1)
    counts = np.bincount(place, minlength=bins)
    sums = (np.bincount(place, values, minlength=bins) for values in (confidence, right))
    means = [total / np.maximum(counts, 1) for total in sums]
    return Reliability(counts, *means)


def calibration_error(confidence: Floats, right: npt.NDArray[np.bool_], bins: int = BINS) -> float:
    """Return the expected calibration error: the mean over answers of their bin's |accuracy − confidence|.

    >>> calibration_error(np.array([0.9, 0.9]), np.array([True, False]))
    0.4
    """
    groups = reliability(confidence, right, bins)
    gaps = np.abs(groups.accuracy - groups.confidence)
    return round(float((groups.counts * gaps).sum() / groups.counts.sum()), 12)


def auroc(known: Floats, unknown: Floats) -> float:
    """Return how often a known picture's value is above an unknown one's; equal ones count half.

    >>> auroc(np.array([3.0, 1.0]), np.array([0.0, 1.0]))
    0.875
    """
    from sklearn.metrics import roc_auc_score

    is_known = np.repeat([1, 0], [len(known), len(unknown)])
    return float(roc_auc_score(is_known, np.concatenate([known, unknown])))
