"""Logistic regression on frozen features: what a user would do instead, in batches of tasks.

The objective is scikit-learn's, ½‖W‖² + Σ loss with an unpenalised bias; features are as the classifier of
stage 1 sees them. All tasks descend together until their gradients vanish; a test compares the result with
scikit-learn's own.
"""

import logging
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from recollect.data.splits import Split
from recollect.errors import DataError
from recollect.features import FeatureSet, cached_features
from recollect.methods.frozen_features import FrozenFeatures
from recollect.methods.method import FeatureScores
from recollect.model.model import Model
from recollect.training.config import Config

log = logging.getLogger(__name__)
EACH = 20  # training pictures of every base category that a joint fit sees beside the support
_TOLERANCE = 1e-3  # of the largest gradient; scikit-learn stops at 1e-4 · examples
_MOST_STEPS = 500
_AT_ONCE = 32  # tasks


class Examples(NamedTuple):
    """Features with their categories, each category weighing the same."""

    features: Tensor  # (…, n, d)
    labels: Tensor  # (n,)
    weights: Tensor  # (n,)


class NovelLogistic(FrozenFeatures):
    """Logistic regression among a task's novel categories alone."""

    name = "logistic-novel"
    title = "Logistic regression, novel categories alone"
    joint = False

    def score(self, model: Model, novel: FeatureSet | None, split: Split) -> FeatureScores:  # noqa: ARG002
        """Return how the features of tasks are scored: by a fit of each task's support."""

        def score(support: Tensor, queries: Tensor) -> tuple[Tensor | None, Tensor]:
            own = support_examples(model.classifier.view(support))
            return None, _answered(fit(own), model.classifier.view(queries))

        return score


class JointLogistic(NovelLogistic):
    """Logistic regression on training pictures of base categories and the support together.

    Categories weigh the same, however many examples they have. The base part is fitted once, and every
    task's fit starts from it.
    """

    name = "logistic"
    title = "Logistic regression"
    joint = True

    def check(self, config: Config, split: Split) -> None:  # noqa: ARG002
        """Refuse data without reserved categories, of which no task could be answered."""
        _require_reserved(split.val)

    def score(self, model: Model, novel: FeatureSet | None, split: Split) -> FeatureScores:
        """Return how the features of tasks are scored: by a fit of each support and the base pictures."""
        _require_reserved(novel)
        view = model.classifier.view
        shared = base_examples(cached_features(model, split.base_train))
        with torch.inference_mode():
            shared = shared._replace(features=view(shared.features.to(model.mean.device)))
            known = fit(shared._replace(features=shared.features[None]))[0]

        def score(support: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
            parts = []
            for some, asked in zip(
                torch.split(support, _AT_ONCE), torch.split(queries, _AT_ONCE), strict=True
            ):
                own = support_examples(view(some))
                parts.append(_answered(fit(own, shared, known), view(asked)))
            scores = torch.cat(parts)
            return scores[..., : len(known)], scores[..., len(known) :]

        return score


def _require_reserved(novel: object | None) -> None:
    if novel is None:
        raise DataError(
            "logistic regression on base and novel categories needs categories that are kept from training: "
            "train with --split"
        )


def base_examples(features: FeatureSet) -> Examples:
    """Draw `EACH` pictures of every category, always the same."""
    rng, labels = np.random.default_rng(0), features.labels.numpy()
    rows = np.concatenate(
        [rng.permutation(np.flatnonzero(labels == label))[:EACH] for label in range(len(features.categories))]
    )
    chosen = torch.from_numpy(rows)
    drawn = features.labels[chosen]
    return Examples(features.features[chosen], drawn, 1 / torch.bincount(drawn)[drawn])


def support_examples(support: Tensor) -> Examples:
    """Return a support (tasks, ways, shots, d) as examples (tasks, ways · shots, d)."""
    _, ways, shots, _ = support.shape
    labels = torch.arange(ways, device=support.device).repeat_interleave(shots)
    return Examples(support.flatten(1, 2), labels, torch.full((ways * shots,), 1 / shots))


def fit(own: Examples, shared: Examples | None = None, known: Tensor | None = None) -> Tensor:
    """Fit every task's own examples, and the shared ones in each: weights, bias (tasks, categories, d + 1).

    `known` (base categories, d + 1), fitted to the shared examples, is where a joint fit starts; the
    categories of own examples come after these. Weights are balanced as scikit-learn's `class_weight` is:
    they add up to the number of examples.
    """
    first = 0 if known is None else len(known)
    own = _with_bias(own)._replace(labels=own.labels + first)
    shared = None if shared is None else _with_bias(shared)
    categories = int(own.labels.max()) + 1
    tasks, count, width = own.features.shape
    total = count + (0 if shared is None else len(shared.labels))
    weights = own.features.new_zeros(tasks, categories, width)
    if known is not None:
        weights[:, :first] = known
    penalty = torch.ones(width, device=weights.device)
    penalty[-1] = 0
    per_category = total / categories

    def gradient(weights: Tensor) -> Tensor:
        residual = _residual(own.features @ weights.mT, own.labels, per_category * own.weights[:, None])
        result = residual.mT @ own.features
        if shared is not None:
            # One product for all tasks: (n, d) · (d, tasks · categories).
            scores = (shared.features @ weights.flatten(0, 1).mT).view(-1, tasks, categories)
            weight = per_category * shared.weights[:, None, None]
            residual = _residual(scores, shared.labels[:, None].expand(-1, tasks), weight)
            result = result + (residual.flatten(1).mT @ shared.features).view_as(weights)
        return result + penalty * weights

    return _descend(gradient, weights, 1 / per_category)


def _with_bias(examples: Examples) -> Examples:
    """Append a feature that is always 1."""
    device = examples.features.device
    features = F.pad(examples.features, (0, 1), value=1.0)
    return Examples(features, examples.labels.to(device), examples.weights.to(device))


def _residual(scores: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Return weights · (softmax − onehot), the gradient of the loss with respect to scores."""
    found = scores.softmax(-1)
    index = labels.expand(found.shape[:-1]).unsqueeze(-1)
    found.scatter_add_(-1, index, torch.full_like(index, -1, dtype=found.dtype))
    return found.mul_(weights)


def _descend(gradient: Callable[[Tensor], Tensor], weights: Tensor, first: float) -> Tensor:
    """Descend with the step lengths of Barzilai and Borwein, of each task its own, until gradients vanish."""
    slope = gradient(weights)
    step = weights.new_full((len(weights), 1, 1), first)
    for _ in range(_MOST_STEPS):
        moving = slope.abs().amax((1, 2), keepdim=True) >= _TOLERANCE
        if not moving.any():
            return weights
        change = -(step * moving) * slope
        weights = weights + change
        before, slope = slope, gradient(weights)
        bend = (change * (slope - before)).sum((1, 2), keepdim=True)
        length = change.square().sum((1, 2), keepdim=True)
        step = torch.where(bend > 0, length / bend.clamp(min=1e-12), step)
    log.warning("logistic regression did not converge in %d steps", _MOST_STEPS)
    return weights


def _answered(weights: Tensor, queries: Tensor) -> Tensor:
    """Score queries (tasks, q, d) by weights and bias (tasks, categories, d + 1): (tasks, q, categories)."""
    return queries @ weights[..., :-1].mT + weights[:, None, :, -1]
