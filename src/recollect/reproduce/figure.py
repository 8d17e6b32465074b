"""The paper's t-SNE figure: features of unseen categories under cosine and dot product, side by side."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from recollect.data.splits import Part
from recollect.evaluation.evaluate import load_trained
from recollect.evaluation.plots import save_figure
from recollect.evaluation.tsne import Projection, project, sample, side_by_side
from recollect.features import cached_features
from recollect.model.classifier import unit
from recollect.reproduce.results import Floats, interval

MODELS = {"cosine": "cosine-mean", "dot product": "dot-mean"}  # the rows whose features are shown
_TITLES = {"cosine": "(a) cosine classifier", "dot product": "(b) dot-product classifier"}


def compare_features(
    runs: Path,
    data: str,
    picture: Path,
    part: Part,
    *,
    seed: int = 0,
    cache_gb: float | None = None,
    device: str = "auto",
) -> dict[str, Any]:
    """Draw both models' features of the same pictures to `picture`; return how compact they are.

    Silhouettes are those of features as each classifier sees them, and of L2-normalised ones for both; their
    difference comes with its interval over categories.
    """
    from sklearn.metrics import silhouette_samples

    projections: dict[str, Projection] = {}
    own: dict[str, Floats] = {}
    normalised: dict[str, Floats] = {}
    for name, run in MODELS.items():
        model, split, _ = load_trained(runs / run, data, cache_gb, device=device)
        novel, base = split.evaluated(part)
        features = sample(cached_features(model, novel or base), seed=seed)
        projection = projections[_TITLES[name]] = project(features, model.classifier, seed=seed)
        own[name] = _by_category(projection.silhouettes, projection.labels)
        values = silhouette_samples(unit(features.features).numpy(), projection.labels)
        normalised[name] = _by_category(values, projection.labels)
    save_figure(side_by_side(projections), picture, dpi=80)
    one = next(iter(projections.values()))
    return {
        "categories": part,
        "shown": list(one.categories),
        "pictures": len(one.labels),
        "seed": seed,
        "silhouettes": {
            "as each classifier sees features": _summary(own),
            "L2-normalised for both": _summary(normalised),
        },
    }


def _by_category(values: npt.NDArray[np.float32], labels: npt.NDArray[np.int64]) -> Floats:
    """Return each category's mean."""
    return np.bincount(labels, values) / np.bincount(labels)


def _summary(values: dict[str, Floats]) -> dict[str, Any]:
    one, other = values.values()
    difference = interval((one - other)[:, None])  # categories in the place of seeds
    return {
        **{name: round(float(some.mean()), 5) for name, some in values.items()},
        "difference": {"mean": round(difference.mean, 5), "ci95": round(difference.ci95, 5)},
    }
