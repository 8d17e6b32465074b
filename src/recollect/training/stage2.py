"""Stage 2: episodes in which base categories play novel teach the generator; W_base and τ go on learning.

The extractor is frozen, so it runs before the first step and never inside one: an episode is a handful of
indices into cached features of several augmented views of every training picture.
"""

import os
import threading
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recollect.data.features import augmented_views
from recollect.data.splits import Split
from recollect.data.tasks import Tasks, TaskSampler, TaskShape
from recollect.errors import ConfigError, DataError, Stopped
from recollect.model.model import Model
from recollect.training.config import Config
from recollect.training.loop import Stage
from recollect.training.selection import Judgement
from recollect.training.stage1 import augmentation

_BLOCK = 64  # steps whose episodes are drawn together


class EpisodicTraining(Stage):
    """Steps of several episodes over cached views."""

    number = 2
    title = "stage 2"

    def __init__(self, model: Model, split: Split, config: Config, views: Tensor) -> None:
        super().__init__(model, config.stage2, config)
        self.select = config.select
        recipe = config.stage2
        labels = split.base_train.labels
        self.mixed = config.shots == "mixed"
        self.count = recipe.episodes
        self.sampler, self.shape = episodes_of(split, config)
        self.views = views.to(model.mean.device).flatten(0, 1)  # (views · n, d)
        self.pictures = len(labels)
        self.judgement = Judgement(split, config.select_shots, config)
        self._judged = self.judgement.features(model)
        self._block: tuple[int, Tasks, Tensor, Tensor] | None = None

    def learned(self) -> list[nn.Parameter]:
        """Return φ, keys, γ, W_base and τ; θ is frozen."""
        return [*self.model.generator.parameters(), *self.model.classifier.parameters()]

    def loss(self, step: int) -> tuple[Tensor, Tensor]:
        """Classify the queries of a step's episodes over the remaining base and the fake-novel categories."""
        tasks, views, shots = self.episodes(step)
        device = self.views.device
        hidden = tasks.hidden(len(self.model.spec.categories)).to(device)
        ways, most = self.shape.ways, self.shape.shots
        rows = torch.cat([tasks.support.flatten(1), tasks.novel_queries, tasks.base_queries], dim=1)
        features = self.views[(views * self.pictures + rows).to(device)].float()
        support, queries = features[:, : ways * most], features[:, ways * most :]
        base, novel = self.model.joint_scores(
            support.view(len(tasks), ways, most, -1),
            queries,
            present=(torch.arange(most) < shots[:, None]).float().unsqueeze(1).to(device),
            hidden=hidden,
        )
        scores = torch.cat([base, novel], dim=2).flatten(0, 1)
        targets = (
            torch.cat([tasks.novel_targets + base.shape[2], tasks.base_targets], dim=1).flatten().to(device)
        )
        return F.cross_entropy(scores, targets), (scores.argmax(1) == targets).float().mean()

    def episodes(self, step: int) -> tuple[Tasks, Tensor, Tensor]:
        """Return a step's episodes, the view of every picture in them, and their numbers of shots N'."""
        block, place = divmod(step, _BLOCK)
        count = self.count
        if self._block is None or self._block[0] != block:
            rng = np.random.default_rng([self.seed, 2, block])
            tasks = self.sampler.draw(self.shape, _BLOCK * count, int(rng.integers(2**63)))
            drawn = self.shape.ways * (self.shape.shots + self.shape.queries) + self.shape.base_count
            views = rng.integers(0, len(self.views) // self.pictures, (len(tasks), drawn))
            low = 1 if self.mixed else self.shape.shots
            shots = rng.integers(low, self.shape.shots + 1, len(tasks))
            self._block = (block, tasks, torch.from_numpy(views), torch.from_numpy(shots))
        _, tasks, all_views, all_shots = self._block
        some = slice(place * count, (place + 1) * count)
        return tasks[some], all_views[some], all_shots[some]

    def judge(self) -> dict[str, float]:
        """Return validation figures with the generator as it is now."""
        return self.judgement.figures(self.model, *self._judged)


def episodes_of(split: Split, config: Config) -> tuple[TaskSampler, TaskShape]:
    """Return the sampler and shape of episodes; refuse, by name, a category too small for `--shots` N.

    With mixed shots the most that the smallest category allows is drawn.
    """
    recipe = config.stage2
    sampler = TaskSampler(split.base_train.labels, None, base_names=split.categories)
    shape = sampler.fit(TaskShape(recipe.ways, config.most_shots, recipe.queries, recipe.base_queries))
    if config.shots != "mixed":
        shape = replace(shape, shots=config.shots, queries=recipe.queries)
    try:
        sampler.check(shape)
    except DataError as error:
        raise DataError(f"episodes of stage 2: {error} (--set stage2.queries=1)") from error
    return sampler, shape


def make_views(model: Model, split: Split, config: Config, stop: threading.Event | None = None) -> Tensor:
    """Return the features of several augmented views of every training picture, (views, n, d)."""

    def check() -> None:
        if stop is not None and stop.is_set():
            raise Stopped("stopped before stage 2")

    views, augment = config.stage2.views, augmentation(split, config.stage1)
    return augmented_views(model, split.base_train, augment, views, config.seed, check)


def require_memory(pictures: int, width: int, config: Config) -> None:
    """Refuse views that would not fit into memory, before hours are spent on stage 1."""
    if not hasattr(os, "sysconf"):  # no way to ask on Windows
        return
    views = config.stage2.views
    needed = 2 * views * pictures * width
    half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2
    if needed > half:
        raise ConfigError(
            f"{views} views of {pictures} pictures take {needed >> 30} GiB in stage 2, more than half of the "
            f"memory: --set stage2.views={max(1, int(views * half / needed))}"
        )
