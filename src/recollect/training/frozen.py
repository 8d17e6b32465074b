"""Stage 1 on a frozen pretrained extractor: learn W_base and τ from features of several views.

The extractor runs once, before the first step. The mean feature of the training pictures, the centre, is
subtracted from every feature: features after a ReLU are all positive and would otherwise hardly differ in
direction.
"""

import threading
import time
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recollect.data.splits import Split
from recollect.errors import ModelError
from recollect.features import category_means, extract
from recollect.model.classifier import unit
from recollect.model.extractors import Extractor
from recollect.model.model import Model
from recollect.training.config import Config
from recollect.training.loop import Stage
from recollect.training.selection import HeldOut, Judgement
from recollect.training.stage1 import BalancedBatches
from recollect.training.stage2 import make_views


class FrozenViews(NamedTuple):
    """A frozen extractor and its features of a run's pictures, for both stages."""

    extractor: Extractor
    views: Tensor  # (views, n, d), float16: centred features of augmented views of every training picture
    centre: Tensor  # (d,), what was subtracted
    held_out: HeldOut  # by which models are judged
    seconds: float = 0.0  # to compute all this


def frozen_views(
    model: Model, split: Split, config: Config, stop: threading.Event | None = None
) -> FrozenViews:
    """Run a new model's extractor over the training pictures; deterministic, so a run can be resumed."""
    began = time.monotonic()
    views = make_views(model, split, config, stop)  # a new model's centre is 0
    centre = balanced_mean(views.mean(dim=0, dtype=torch.float32), _labels(split))
    require_finite(model, centre)
    for view in views:
        view.copy_(view.float() - centre)
    model.centre.copy_(centre)
    held_out = Judgement(split, config.select_shots, config).features(model)
    return FrozenViews(model.extractor, views, centre, held_out, time.monotonic() - began)


def centre_on(model: Model, split: Split) -> None:
    """Centre a model on its pictures' features before its extractor is fine-tuned."""
    model.centre.copy_(balanced_mean(extract(model, split.base_train).features, _labels(split)))
    require_finite(model, model.centre)


def require_finite(model: Model, centre: Tensor) -> None:
    """Refuse features that are not finite."""
    if not centre.isfinite().all():
        raise ModelError(
            f"the extractor '{model.spec.extractor}' gives features that are not finite, or above 65504, "
            "for pictures of this data: scale them down"
        )


def balanced_mean(features: Tensor, labels: Tensor) -> Tensor:
    """Return the mean over categories of their mean features."""
    return category_means(features, labels, int(labels.max()) + 1).mean(0)


def _labels(split: Split) -> Tensor:
    return torch.from_numpy(split.base_train.labels)


def best_scale(cosines: Tensor, labels: Tensor) -> Tensor:
    """Return the τ, up to 60, with which softmax(τ · cosines) fits labels best."""
    scales = torch.linspace(5, 60, 111)
    losses = [F.cross_entropy(scale * cosines, labels) for scale in scales.tolist()]
    return scales[torch.stack(losses).argmin()]


class HeadClassification(Stage):
    """Batches of cached views, every category equally often.

    W_base starts from the categories' means, and τ where it suits them. From a lower τ the vectors move away
    from their pictures, until taught categories score higher than base ones.
    """

    number = 1
    title = "stage 1"

    def __init__(self, model: Model, split: Split, config: Config, frozen: FrozenViews) -> None:
        super().__init__(model, config.stage1, config)
        self.select = "ausuc" if config.select == "both" else config.select
        device = model.mean.device
        self.count, self.pictures = frozen.views.shape[:2]
        self.views = frozen.views.to(device).flatten(0, 1)  # (views · n, d)
        self.targets = torch.from_numpy(split.base_train.labels)
        self.batches = BalancedBatches(split.base_train.labels, config.stage1.batch, config.seed)
        model.extractor = frozen.extractor
        model.centre.copy_(frozen.centre)
        with torch.no_grad():
            means, targets = torch.zeros_like(model.classifier.weight), self.targets.to(device)
            for view in frozen.views.to(device):
                means.index_add_(0, targets, unit(view.float()))
            model.classifier.weight.copy_(unit(means))
            if model.classifier.kind == "cosine":
                cosines = unit(self.views[: self.pictures].float()) @ model.classifier.weight.T
                model.classifier.scale.copy_(best_scale(cosines, targets))
        self.judgement, self.held_out = Judgement(split, (1,), config), frozen.held_out

    def learned(self) -> list[nn.Parameter]:
        """Return W_base and τ."""
        return list(self.model.classifier.parameters())

    def loss(self, step: int) -> tuple[Tensor, Tensor]:
        """Classify one batch, one view of each picture."""
        rows = torch.from_numpy(self.batches[step])
        views = torch.randint(self.count, rows.shape)
        device = self.views.device
        targets = self.targets[rows].to(device)
        scores = self.model.classifier(self.views[(views * self.pictures + rows).to(device)].float())
        return F.cross_entropy(scores, targets), (scores.argmax(1) == targets).float().mean()

    @property
    def images_seen(self) -> int:
        """Return how many pictures the extractor has seen."""
        return self.count * self.pictures

    def judge(self) -> dict[str, float]:
        """Return validation figures at 1 shot with plain means."""
        return self.judgement.figures(self.model, *self.held_out)
