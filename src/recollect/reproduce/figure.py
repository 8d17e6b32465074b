"""The paper's t-SNE figure: features of unseen categories under cosine and dot product, side by side."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from recollect.data.features import FeatureSet, cached_features
from recollect.errors import DataError
from recollect.evaluation.evaluate import load_trained
from recollect.evaluation.plots import save_figure
from recollect.evaluation.tsne import Projection, draw_projection, project, sample
from recollect.reproduce.results import Floats, interval

MODELS = {"cosine": "cosine-mean", "dot product": "dot-mean"}  # the rows whose features are shown
_TITLES = {"cosine": "(a) cosine classifier", "dot product": "(b) dot-product classifier"}


def compare_features(runs: Path, data: str, picture: Path, part: str, seed: int = 0) -> dict[str, Any]:
    """Draw both models' features of the same pictures to `picture`; return how compact they are.

    Silhouettes are measured as each classifier sees its features, and by cosine for both; their difference
    comes with its interval over pictures.
    """
    projections: dict[str, Projection] = {}
    own: dict[str, Floats] = {}
    by_cosine: dict[str, Floats] = {}
    for name, run in MODELS.items():
        model, split, _ = load_trained(runs / run, data)
        novel, _ = split.evaluated(part)
        if novel is None:
            raise DataError(f"no {part} categories are reserved in {data}")
        features = sample(cached_features(model, novel), seed=seed)
        projections[name] = project(features, model.classifier, seed=seed)
        with torch.inference_mode():
            seen = FeatureSet(model.classifier.view(features.features), features.labels, features.categories)
        own[name] = _silhouettes(seen, "cosine" if model.classifier.kind == "cosine" else "euclidean")
        by_cosine[name] = _silhouettes(features, "cosine")
    save_figure(side_by_side(projections), picture, dpi=80)
    one = next(iter(projections.values()))
    return {
        "categories": part,
        "shown": list(one.categories),
        "pictures": len(one.labels),
        "seed": seed,
        "silhouettes": {
            "as its own classifier measures": _summary(own),
            "by cosine for both": _summary(by_cosine),
        },
    }


def side_by_side(projections: dict[str, Projection]) -> Figure:
    """Draw projections beside each other, with one legend."""
    figure = Figure(figsize=(5.4 * len(projections) + 2, 5.6))
    grid = figure.subplots(1, len(projections), squeeze=False)
    for axes, (name, projection) in zip(grid[0], projections.items(), strict=True):
        draw_projection(axes, projection)
        axes.set_title(_TITLES[name], fontsize=11)
    grid[0][-1].legend(
        bbox_to_anchor=(1.01, 0.5), loc="center left", fontsize=10, frameon=False, markerscale=1.8
    )
    figure.subplots_adjust(wspace=0.05)
    return figure


def _silhouettes(features: FeatureSet, metric: str) -> Floats:
    from sklearn.metrics import silhouette_samples

    values: Floats = silhouette_samples(features.features.numpy(), features.labels.numpy(), metric=metric)
    return values


def _summary(values: dict[str, Floats]) -> dict[str, Any]:
    one, other = values.values()
    difference = interval((one - other).astype(np.float64))
    return {
        **{name: round(float(some.mean()), 4) for name, some in values.items()},
        "difference": {"mean": round(difference.mean, 4), "ci95": round(difference.ci95, 4)},
    }
