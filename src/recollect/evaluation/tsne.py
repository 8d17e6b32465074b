"""The paper's t-SNE figure: features of unseen categories, projected onto the plane."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from recollect.data.splits import Part
from recollect.errors import DataError
from recollect.evaluation.evaluate import load_trained
from recollect.evaluation.plots import plain, save_figure
from recollect.features import FeatureSet, cached_features
from recollect.model.classifier import Classifier
from recollect.model.spec import ClassifierKind

log = logging.getLogger(__name__)
EACH = 100  # pictures of a category
MOST = 20  # categories, so that their colours can be told apart
_MARKERS = "o^sD"


@dataclass(frozen=True)
class Projection:
    """Features on the plane, and how compact their categories are before the projection.

    The silhouettes (−1 to 1) are of features as the classifier sees them: L2-normalised for cosine, raw for
    dot product.
    """

    places: npt.NDArray[np.float32]  # (n, 2)
    labels: npt.NDArray[np.int64]  # (n,)
    categories: tuple[str, ...]
    kind: ClassifierKind
    silhouettes: npt.NDArray[np.float32]  # (n,)

    @property
    def silhouette(self) -> float:
        """Return the mean over all pictures."""
        return float(self.silhouettes.mean())


def sample(features: FeatureSet, *, each: int = EACH, most: int = MOST, seed: int = 0) -> FeatureSet:
    """Draw at most `each` pictures of at most `most` categories."""
    rng = np.random.default_rng(seed)
    labels = features.labels.numpy()
    count = len(features.categories)
    chosen = np.sort(rng.choice(count, most, replace=False)) if count > most else np.arange(count)
    rows = [np.sort(rng.permutation(np.flatnonzero(labels == label))[:each]) for label in chosen]
    return FeatureSet(
        features.features[torch.from_numpy(np.concatenate(rows))],
        torch.arange(len(chosen)).repeat_interleave(torch.tensor([len(some) for some in rows])),
        tuple(features.categories[label] for label in chosen),
    )


def project(features: FeatureSet, classifier: Classifier, *, seed: int = 0) -> Projection:
    """Project features as the classifier sees them: L2-normalised for cosine, raw for dot product."""
    from sklearn.manifold import TSNE
    from sklearn.metrics import silhouette_samples

    labels = features.labels.numpy()
    if not 2 <= len(np.unique(labels)) < len(labels):
        raise DataError(
            f"a t-SNE needs at least two categories with two pictures each, and there are {len(labels)} "
            f"pictures of {len(np.unique(labels))} categories: add pictures, or reserve more categories"
        )
    with torch.inference_mode():
        values = classifier.view(features.features).numpy()
    perplexity = min(30.0, (len(labels) - 1) / 3)
    places = TSNE(init="pca", perplexity=perplexity, random_state=seed).fit_transform(values)
    return Projection(
        places, labels, features.categories, classifier.kind, silhouette_samples(values, labels)
    )


def draw_projection(axes: Axes, projection: Projection) -> None:
    """Draw the points, a colour and shape for each category, with the silhouette below."""
    colours = mpl.colormaps["tab20"]
    for label, name in enumerate(projection.categories):
        mine = projection.places[projection.labels == label]
        axes.scatter(
            mine[:, 0],
            mine[:, 1],
            s=14,
            color=colours((2 * label + label // 10) % 20),  # ten strong colours, then their ten light ones
            marker=_MARKERS[label % len(_MARKERS)],
            linewidths=0,
            alpha=0.85,
            label=plain(name),
        )
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_color("#bbbbbb")
    kind = "L2-normalised features" if projection.kind == "cosine" else "raw features"
    axes.set_xlabel(f"{kind}, silhouette {projection.silhouette:.3f}", fontsize=11)


def tsne_figure(projection: Projection, title: str = "t-SNE of categories unseen in training") -> Figure:
    """Draw one projection with its legend."""
    return side_by_side({title: projection})


def side_by_side(projections: Mapping[str, Projection]) -> Figure:
    """Draw projections beside each other under their titles, with one legend."""
    figure = Figure(figsize=(5.4 * len(projections) + 2, 5.6))
    grid = figure.subplots(1, len(projections), squeeze=False)
    for axes, (title, projection) in zip(grid[0], projections.items(), strict=True):
        draw_projection(axes, projection)
        axes.set_title(title, fontsize=11)
    grid[0][-1].legend(
        bbox_to_anchor=(1.01, 0.5), loc="center left", fontsize=10, frameon=False, markerscale=1.8
    )
    figure.subplots_adjust(wspace=0.05)
    return figure


def tsne_report(
    model: str | Path,
    data: str,
    out: Path,
    *,
    part: Part = "test",
    seed: int = 0,
    cache_gb: float | None = None,
    extractor: str | None = None,
    device: str = "auto",
) -> dict[str, Any]:
    """Draw the features of a model's unseen categories to `out`: the result of `recollect plot tsne`.

    `categories` are `val`, `test`, or `base` where none are reserved; `shown` names those in the picture.
    """
    loaded, split, warnings = load_trained(model, data, cache_gb, extractor, device)
    novel, base = split.evaluated(part)
    images = novel or base
    features = sample(cached_features(loaded, images), seed=seed)
    if novel is None:
        warnings.append(
            "the model was trained on all categories: these are held-out pictures of trained ones (to "
            "reserve categories, train with --split)"
        )
    if len(images.categories) > MOST:
        warnings.append(f"{MOST} of {len(images.categories)} categories are shown, drawn by --seed {seed}")
    for warning in warnings:
        log.warning("%s", warning)
    projection = project(features, loaded.cpu().classifier, seed=seed)
    held_out = f"base categories, pictures held out for {part}"
    of = held_out if novel is None else f"{part} categories unseen in training"
    title = f"t-SNE of {len(projection.labels)} pictures of {len(projection.categories)} {of}"
    save_figure(tsne_figure(projection, title), out)
    return {
        "model": str(model),
        "data": data,
        "categories": "base" if novel is None else part,
        "shown": list(projection.categories),
        "pictures": len(projection.labels),
        "seed": seed,
        "silhouette": round(projection.silhouette, 4),
        **({"warnings": warnings} if warnings else {}),
        "picture": str(out),
    }


def tsne_text(report: dict[str, Any]) -> str:
    """Return what `recollect plot tsne` prints."""
    shown = f"{report['pictures']} pictures of {len(report['shown'])} {report['categories']} categories"
    return f"{report['picture']}\n{shown}, silhouette {report['silhouette']:.3f}"
