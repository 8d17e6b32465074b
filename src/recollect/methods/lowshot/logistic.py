"""Logistic regression on saved features of base and novel pictures, for all draws at once.

With features of stage 1 as it is, of SGM or of Batch SGM (Hariharan & Girshick, 2017). A batch has base and
novel pictures in the proportion of their categories. The base part is fitted once and every draw starts from
it, which leaves the objective as it was.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from recollect.evaluation.lowshot import LinearTaught, Teach
from recollect.methods.lowshot.system import Base, StageOneKind, System
from recollect.system.progress import track
from recollect.training.config import LowShot
from recollect.training.schedules import OneCycle


class Logistic(System):
    """A linear layer with bias over a half's base and novel categories."""

    mixed = True  # nothing is learned that depends on the number of shots

    def __init__(self, key: str, title: str, stage1: StageOneKind) -> None:
        self.key, self.title, self.stage1 = key, title, stage1

    def learn(self, base: Base, shots: tuple[int, ...], recipe: LowShot, seed: int) -> Teach:  # noqa: ARG002
        """Fit the base categories."""
        return logistic_teach(base, recipe, seed)


def logistic_teach(base: Base, recipe: LowShot, seed: int) -> Callable[[Tensor, Tensor], LinearTaught]:
    """Return what fits base and novel categories together, from a fit of the base categories."""
    width = base.features.shape[1]
    everything = torch.arange(base.categories)
    known = fit(
        base, everything, base.features.new_zeros(1, 0, 1, width, dtype=torch.float), recipe, seed, None
    )[0]

    def teach(support: Tensor, columns: Tensor) -> LinearTaught:
        start = torch.cat([known[columns], known.new_zeros(support.shape[1], width + 1)])
        weights = fit(base, columns, support, recipe, seed, start)
        count = len(columns)
        return LinearTaught(
            weights[:, :count, :-1], weights[:, count:, :-1], weights[:, :count, -1], weights[:, count:, -1]
        )

    return teach


def together(parts: Sequence[LinearTaught]) -> LinearTaught:
    """Return the draws of several parts as one."""
    return LinearTaught(
        torch.cat([part.base for part in parts]),
        torch.cat([part.novel for part in parts]),
        torch.cat([part.base_bias for part in parts if part.base_bias is not None]),
        torch.cat([part.novel_bias for part in parts if part.novel_bias is not None]),
    )


@torch.no_grad()
def fit(
    base: Base, columns: Tensor, support: Tensor, recipe: LowShot, seed: int, start: Tensor | None
) -> Tensor:
    """Fit base categories `columns` and novel ones with a support (draws, n, shots, d) by SGD with momentum.

    Returns weights and bias, (draws, b + n, d + 1). All draws see the same base pictures and the same places
    of their supports.
    """
    draws, novel, shots, width = support.shape
    categories = len(columns) + novel
    weights = support.new_zeros(draws, categories, width + 1)
    if start is not None:
        weights += start
    speed = torch.zeros_like(weights)
    batches = Batches(base, columns, novel, shots, recipe, seed)
    examples = support.flatten(1, 2)
    schedule = OneCycle(kind="one-cycle", peak=recipe.logistic_rate)
    for step in track(range(recipe.logistic_steps), "logistic regression", recipe.logistic_steps):
        base.check()
        rows, targets, places = batches[step]
        # One product for all draws: (m, d) · (d, draws · categories).
        shown = base.take(rows)
        scores = (shown @ weights[..., :-1].flatten(0, 1).mT).view(-1, draws, categories) + weights[..., -1]
        error = _error(scores, targets.to(scores.device).view(-1, 1).expand(-1, draws)).flatten(1)
        slope = torch.empty_like(weights)
        slope[..., :-1] = (error.mT @ shown).view(draws, categories, width)
        slope[..., -1] = error.sum(0).view(draws, categories)
        if len(places):
            own = examples[:, places.to(examples.device)]
            labels = (len(columns) + places // shots).to(scores.device)
            error = _error(own @ weights[..., :-1].mT + weights[:, None, :, -1], labels.expand(draws, -1))
            slope[..., :-1] += error.mT @ own
            slope[..., -1] += error.sum(1)
        slope /= len(rows) + len(places)
        slope += recipe.logistic_decay * weights
        speed.mul_(recipe.momentum).add_(slope)
        weights.sub_(speed, alpha=schedule.rate((step + 0.5) / recipe.logistic_steps))
    return weights


class Batches:
    """Base rows, their targets and places in a support, by step."""

    def __init__(
        self, base: Base, columns: Tensor, novel: int, shots: int, recipe: LowShot, seed: int
    ) -> None:
        target = torch.full((base.categories,), -1)
        target[columns] = torch.arange(len(columns))
        self.targets = target[base.labels]
        self.rows = torch.nonzero(self.targets >= 0).squeeze(1)
        self.base = round(recipe.logistic_batch * len(columns) / (len(columns) + novel))
        self.novel, self.places = recipe.logistic_batch - self.base, novel * shots
        self.seed = seed

    def __getitem__(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        rng = np.random.default_rng([self.seed, 4, step])
        rows = self.rows[torch.from_numpy(rng.integers(len(self.rows), size=self.base))]
        places = rng.integers(max(1, self.places), size=self.novel if self.places else 0)
        return rows, self.targets[rows], torch.from_numpy(places)


def _error(scores: Tensor, labels: Tensor) -> Tensor:
    """Return softmax − onehot."""
    found = scores.softmax(-1)
    index = labels.unsqueeze(-1)
    return found.scatter_add_(-1, index, torch.full_like(index, -1, dtype=found.dtype))
