"""Pictures of results, drawn without a screen."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from recollect.data.features import FeatureSet
from recollect.model.classifier import Classifier
from recollect.storage import replacing_file

RIGHT, WRONG = "#2e8b57", "#c0392b"


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, whole or not at all."""
    with replacing_file(path) as part:
        figure.savefig(part, format="png", dpi=130, bbox_inches="tight", facecolor="white")


def tsne_figure(features: FeatureSet, classifier: Classifier, *, each: int = 30, seed: int = 0) -> Figure:
    """Draw features of unseen categories as the paper's t-SNE figure does, one colour each.

    Features are L2-normalised for cosine models and raw for dot-product ones; the caption tells how compact
    the categories are before the projection (silhouette, −1 to 1).
    """
    from sklearn.manifold import TSNE
    from sklearn.metrics import silhouette_score

    labels = features.labels.numpy()
    chosen = np.concatenate([np.flatnonzero(labels == label)[:each] for label in np.unique(labels)])
    points: Tensor = classifier.view(features.features[chosen])
    values, labels = points.numpy(), labels[chosen]
    places = TSNE(init="pca", perplexity=min(30.0, len(chosen) / 4), random_state=seed).fit_transform(values)
    silhouette = float(silhouette_score(values, labels))

    figure = Figure(figsize=(8, 6))
    axes = figure.add_subplot()
    colours = mpl.colormaps["tab20"]
    for label, name in enumerate(features.categories):
        mine = places[labels == label]
        axes.scatter(mine[:, 0], mine[:, 1], s=12, color=colours(label % 20), label=name)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.legend(bbox_to_anchor=(1.01, 1), loc="upper left", fontsize=7, frameon=False)
    kind = "L2-normalised" if classifier.kind == "cosine" else "raw"
    axes.set_title(f"{kind} features of unseen categories (t-SNE); silhouette {silhouette:.3f}", fontsize=10)
    return figure


def show_picture(
    axes: Axes, pixels: npt.NDArray[np.uint8], title: str = "", frame: str | None = None
) -> None:
    """Show one picture with a title and, if asked, a coloured frame."""
    axes.imshow(pixels)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title(title, fontsize=7, color=frame or "black", pad=3)
    for spine in axes.spines.values():
        spine.set_visible(frame is not None)
        spine.set_color(frame)
        spine.set_linewidth(2.5)


def grouped_bars(
    axes: Axes, groups: dict[str, Sequence[float]], errors: dict[str, Sequence[float]], names: Sequence[str]
) -> None:
    """Draw bars side by side: one group of bars per name, one colour per entry of `groups`, values on top."""
    width = 0.8 / len(groups)
    for index, (label, values) in enumerate(groups.items()):
        places = np.arange(len(names)) + (index - (len(groups) - 1) / 2) * width
        bars = axes.bar(places, values, width, yerr=errors[label], label=label, capsize=2)
        axes.bar_label(bars, fmt="%.0f", fontsize=7, padding=2)
    axes.set_xticks(np.arange(len(names)), names)
    axes.set_ylim(0, 100)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False, ncols=len(groups), loc="upper center", bbox_to_anchor=(0.5, 1.12))
