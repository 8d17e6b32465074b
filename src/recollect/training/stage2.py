"""Stage 2: train the generator on episodes in which base categories act as novel ones.

The extractor is frozen, so it runs before the first step and never inside one: an episode is a handful of
indices into cached features of several augmented views of every training picture.
"""

import os
import threading
from dataclasses import replace
from functools import cached_property

from torch import Tensor, nn

from recollect.data.splits import Split
from recollect.data.tasks import TaskSampler, TaskShape
from recollect.errors import ConfigError, DataError, Stopped
from recollect.features import augmented_views
from recollect.model.model import Model
from recollect.modelfile import fingerprint
from recollect.training.config import Config
from recollect.training.episodes import Episodes, drop_out, episode_loss, pictures_of
from recollect.training.loop import Stage
from recollect.training.selection import HeldOut, Judgement
from recollect.training.stage1 import augmentation

_last_views: dict[tuple[object, ...], Tensor] = {}


class EpisodicTraining(Stage):
    """Steps of several episodes over cached views."""

    number = 2
    title = "stage 2"

    def __init__(
        self, model: Model, split: Split, config: Config, views: Tensor, held_out: HeldOut | None = None
    ) -> None:
        super().__init__(model, config.stage2, config)
        self.select, self.dropout = config.select, config.stage2.dropout
        self.learn_base = config.stage2.learn_base
        self.views = views.to(model.mean.device).flatten(0, 1)  # (views · n, d)
        self.pictures = len(split.base_train)
        self.episodes = Episodes(
            *episodes_of(split, config),
            count=config.stage2.episodes,
            views=len(views),
            mixed=config.shots == "mixed",
            seed=config.seed,
        )
        self.judgement = Judgement(split, config.select_shots, config)
        self._given = held_out

    @cached_property
    def held_out(self) -> HeldOut:
        """Return the features by which it is judged, computed once: θ is frozen."""
        return self._given or self.judgement.features(self.model)

    def learned(self) -> list[nn.Parameter]:
        """Return φ, keys, γ and, where they go on learning, W_base and τ; θ is frozen."""
        base = self.model.classifier.parameters() if self.learn_base else ()
        return [*self.model.generator.parameters(), *base]

    def loss(self, step: int) -> tuple[Tensor, Tensor]:
        """Classify the queries of a step's episodes over the remaining base and the fake-novel categories."""
        tasks, views = self.episodes[step]
        rows = (views * self.pictures + pictures_of(tasks)).to(self.views.device)
        features = self.views.index_select(0, rows.flatten()).view(*rows.shape, -1).float()
        return episode_loss(self.model, tasks, drop_out(features, self.dropout))

    def judge(self) -> dict[str, float]:
        """Return validation figures with the current generator."""
        return self.judgement.figures(self.model, *self.held_out)


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
            raise Stopped("stopped while features were computed")

    views, augment = config.stage2.views, augmentation(split, config.stage1)
    return augmented_views(model, split.base_train, augment, views, config.seed, check)


def shared_views(model: Model, split: Split, config: Config, stop: threading.Event | None = None) -> Tensor:
    """Return the same, from memory where the last call was for the same: several generators on one stage 1.

    Nobody may write to them. Training another stage 1 gives their memory back (`forget_views`).
    """
    augment = augmentation(split, config.stage1)
    pictures = split.base_train.content_key()
    with model.unshifted():  # as views are
        key = (fingerprint(model), pictures, augment, config.stage2.views, config.seed)
    model.extractor.freeze()
    if key not in _last_views:
        _last_views.clear()
        _last_views[key] = make_views(model, split, config, stop)
    return _last_views[key]


def forget_views() -> None:
    """Give back the memory of the last views."""
    _last_views.clear()


def require_memory(pictures: int, width: int, config: Config) -> None:
    """Refuse views that would not fit into memory, before stage 1 takes hours."""
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
