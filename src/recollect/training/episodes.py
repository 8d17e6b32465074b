"""Episodes: small tasks over features in which some base categories act as novel ones, and their loss."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from recollect.data.tasks import Tasks, TaskSampler, TaskShape
from recollect.model.model import Head

_BLOCK = 64  # steps whose episodes are drawn together
_EVEN = 5  # up to so many shots, all numbers are equally likely


class Episodes:
    """The episodes of each step, independent of those of other steps.

    With mixed shots, the episodes of a step share an N' of 1 … `shape.shots`: up to 5 all are equally likely,
    beyond that the larger, the rarer. Each picture shows one of several views.
    """

    def __init__(
        self, sampler: TaskSampler, shape: TaskShape, *, count: int, views: int, mixed: bool, seed: int
    ) -> None:
        self.sampler, self.shape = sampler, shape
        self.count, self.views, self.mixed, self.seed = count, views, mixed, seed
        self._block: tuple[int, Tasks, Tensor, list[int]] | None = None

    def __getitem__(self, step: int) -> tuple[Tasks, Tensor]:
        """Return a step's episodes, and the view of every picture in them, in the order of `pictures_of`."""
        block, place = divmod(step, _BLOCK)
        if self._block is None or self._block[0] != block:
            self._block = (block, *self._draw(block))
        _, tasks, views, shots = self._block
        some = slice(place * self.count, (place + 1) * self.count)
        mine = replace(tasks[some], support=tasks.support[some, :, : shots[place]])
        return mine, views[some, : pictures_of(mine).shape[1]]

    def _draw(self, block: int) -> tuple[Tasks, Tensor, list[int]]:
        rng = np.random.default_rng([self.seed, 2, block])
        shape = self.shape
        tasks = self.sampler.draw(shape, _BLOCK * self.count, int(rng.integers(2**63)))
        drawn = shape.ways * (shape.shots + shape.queries) + shape.base_count
        views = rng.integers(0, self.views, (len(tasks), drawn))
        shots = np.full(_BLOCK, shape.shots)
        if self.mixed:
            numbers = np.arange(1, shape.shots + 1)
            weights = 1 / np.maximum(numbers, _EVEN)
            shots = rng.choice(numbers, _BLOCK, p=weights / weights.sum())
        return tasks, torch.from_numpy(views), shots.tolist()


def pictures_of(tasks: Tasks) -> Tensor:
    """Return every picture of episodes, (tasks, ways · shots + queries): support first, then queries."""
    return torch.cat([tasks.support.flatten(1), tasks.novel_queries, tasks.base_queries], dim=1)


def drop_out(features: Tensor, share: float) -> Tensor:
    """Set a share of the values, in steps of 1/256, to 0 and stretch the others to keep their mean.

    A random number is drawn for eight values at a time: torch's own dropout takes as long as half a step.
    """
    if not share:
        return features
    least = min(255, round(256 * share))
    numbers = torch.randint(-(2**63), 2**63 - 1, (-(-features.numel() // 8),)).view(torch.uint8)
    kept = (numbers[: features.numel()].view(features.shape) >= least).to(features.device)
    return features * (kept * (256 / (256 - least)))


def episode_loss(head: Head, tasks: Tasks, features: Tensor) -> tuple[Tensor, Tensor]:
    """Classify the queries of episodes over the remaining base and the fake-novel categories.

    Features (tasks, ways · shots + queries, d) are those of `pictures_of`. Returns the loss and the share of
    right answers.
    """
    device = features.device
    count, ways, shots = tasks.support.shape
    support, queries = features[:, : ways * shots], features[:, ways * shots :]
    hidden = tasks.hidden(len(head.classifier.weight)).to(device)
    base, novel = head.joint_scores(support.view(count, ways, shots, -1), queries, hidden=hidden)
    scores = torch.cat([base, novel], dim=2).flatten(0, 1)
    targets = torch.cat([tasks.novel_targets + base.shape[2], tasks.base_targets], dim=1).flatten().to(device)
    return F.cross_entropy(scores, targets), (scores.argmax(1) == targets).float().mean()
