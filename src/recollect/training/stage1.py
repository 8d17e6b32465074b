"""Stage 1: ordinary classification of the base categories learns θ, W_base and τ (Eq. 9, W* = W_base)."""

from collections.abc import Callable, Generator
from itertools import count
from math import ceil

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from recollect.data.arrays import Pixels
from recollect.data.augment import Augmentation, shrink
from recollect.data.imageset import ImageSet
from recollect.data.splits import Split
from recollect.errors import ConfigError
from recollect.features import learning_precision
from recollect.model.extractors import blocks
from recollect.model.model import Model
from recollect.system import workers
from recollect.training.config import Config, SmallFirst, StageOne
from recollect.training.loop import Stage
from recollect.training.losses import distilled, stage_one_loss
from recollect.training.selection import Judgement
from recollect.training.teacher import Teacher

Ints = npt.NDArray[np.int64]


class BaseClassification(Stage):
    """Batches of augmented training pictures, every category equally often."""

    number = 1
    title = "stage 1"

    def __init__(self, model: Model, split: Split, config: Config, teacher: Teacher | None = None) -> None:
        super().__init__(model, config.stage1, config)
        # With plain means Both says more about the scales of base and novel scores, which stage 2 will mend,
        # than about the features; the area under the curve is Both without that.
        self.select = "ausuc" if config.select == "both" else config.select
        self.images = split.base_train
        self.batches = BalancedBatches(self.images.labels, config.stage1.batch, config.seed)
        self.augmentation = augmentation(split, config.stage1)
        self.small = small_pictures(model, config.stage1)
        self.loss_kind = config.stage1.loss
        self.teacher = teacher
        self.judgement = Judgement(split, (1,), config)
        if workers.count() > 1 and workers.any_of(not blocks.available(), model.mean.device):
            blocks.leave_to_torch()  # all processes must compute alike
        if workers.count() > 1 and self.loss_kind == "batch-sgm":
            raise ConfigError("stage1.loss=batch-sgm looks at whole batches: train it in one process")
        self.part = workers.share_of(self.batches.batch)
        self._pictures = PicturesByStep(self.images, lambda step: self.batches[step][self.part])
        self._scores: nn.Module = _Scores(self)
        if workers.count() > 1:
            self._scores = DistributedDataParallel(self._scores)

    def learned(self) -> list[nn.Parameter]:
        """Return θ, W_base and τ."""
        return [*self.model.extractor.parameters(), *self.model.classifier.parameters()]

    def loss(self, step: int) -> tuple[Tensor, Tensor]:
        """Classify one batch."""
        rows, taken = self._pictures[step]
        device, batch = self.model.mean.device, self.batches.batch
        draw = torch.default_generator
        pixels = self.augmentation(torch.from_numpy(taken), draw, self.part, batch)
        if workers.rank():  # dropout has other masks in every process
            torch.manual_seed(draw.initial_seed() + workers.rank())
        targets = torch.from_numpy(self.images.labels[rows]).to(device)
        self.model.train()
        with workers.common_statistics(self.model.extractor):
            scores, features = self._scores(pixels, step)
        # The means of these over the processes are those over the batch, of which each has about a part.
        weight = len(rows) * workers.count() / batch
        right = (scores.argmax(1) == targets).float().mean()
        loss = stage_one_loss(self.loss_kind, scores, targets, features, step / self.steps)
        if self.teacher is not None and self.small_at(step) is None:
            loss = distilled(loss, scores, self.teacher.scores(pixels))
        return loss * weight, right * weight

    def features(self, pixels: Tensor, step: int) -> Tensor:
        """Return the features of a batch; W_base stays the same when pictures become larger."""
        device, exact, small = self.model.mean.device, self.model.mean.dtype, self.small_at(step)
        extractor = self.model.extractor
        with learning_precision(self.model):
            if small is None:
                return self.model.embed(pixels.to(device)).to(exact)
            return self.model.embed(
                shrink(pixels, small.size).to(device),
                lambda x: extractor.stretch(extractor(x), self.images.size),
            ).to(exact)

    def small_at(self, step: int) -> SmallFirst | None:
        """Return how a step shows smaller pictures, if it does."""
        small = self.small
        return small if small is not None and step < small.until * self.steps else None

    def close(self) -> None:
        """End the threads that decode ahead, where there are any."""
        self._pictures.close()

    @property
    def images_seen(self) -> int:
        """Return how many pictures the whole stage classifies."""
        return self.steps * self.batches.batch

    def judge(self) -> dict[str, float]:
        """Return validation figures at 1 shot with plain means, of pictures in one place."""
        with self.model.unshifted():
            novel, base = self.judgement.features(self.model)
        return self.judgement.figures(self.model, novel, base)


class _Scores(nn.Module):
    """From pixels to scores and features: what the processes of a training share the gradients of."""

    def __init__(self, stage: BaseClassification) -> None:
        super().__init__()
        self.extractor, self.classifier = stage.model.extractor, stage.model.classifier
        self._features = stage.features

    def forward(self, pixels: Tensor, step: int) -> tuple[Tensor, Tensor]:
        features = self._features(pixels, step)
        return self.classifier(features), features


def augmentation(split: Split, recipe: StageOne) -> Augmentation:
    """Return the augmentation of training pictures: a crop, and a flip where that changes nothing."""
    size = split.base_train.size
    pad = max(1, size // 10) if recipe.pad is None else recipe.pad
    if pad >= size:
        raise ConfigError(
            f"stage1.pad={pad} leaves nothing of pictures of {size}×{size}: use less than {size}"
        )
    return Augmentation(pad, split.flips and recipe.flip, recipe.crops, recipe.jitter)


def small_pictures(model: Model, recipe: StageOne) -> SmallFirst | None:
    """Return how stage 1 begins; refuse sizes that are not smaller, or too small for the extractor."""
    small, size = recipe.small, model.spec.preprocessing.size
    if small is None:
        return None
    if small.size >= size:
        raise ConfigError(f"stage1.small.size={small.size} is not smaller than the pictures, {size}×{size}")
    width = model.extractor.feature_size(small.size)
    if width == 0:
        raise ConfigError(
            f"stage1.small.size={small.size} is too small for the extractor '{model.spec.extractor}'"
        )
    if model.extractor.stretch(torch.zeros(1, width), size).shape[1] != model.width:
        raise ConfigError(
            f"stage1.small: the features of '{model.spec.extractor}' depend on the size of pictures: "
            "leave it out"
        )
    return small


class PicturesByStep:
    """The pictures of every step, which `rows` names; those of later steps may be decoded ahead."""

    def __init__(self, images: ImageSet, rows: Callable[[int], Ints]) -> None:
        self.images, self.rows = images, rows
        self._stream: Generator[tuple[Ints, Pixels], None, None] | None = None
        self._next = 0  # the step whose pictures the stream yields next

    def __getitem__(self, step: int) -> tuple[Ints, Pixels]:
        """Return which pictures a step has, and their pixels."""
        if self._stream is None or step != self._next:
            self.close()
            self._stream = self.images.stream(self.rows(later) for later in count(step))
        self._next = step + 1
        return next(self._stream)

    def close(self) -> None:
        """End the threads that decode ahead, where there are any."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None


class BalancedBatches:
    """Batches of picture indices by step: every category equally often, none twice before the others."""

    def __init__(self, labels: Ints, batch: int, seed: int) -> None:
        self.members = [np.flatnonzero(labels == label) for label in range(int(labels.max()) + 1)]
        self.quota = ceil(len(labels) / len(self.members))
        self.batch = min(batch, self.quota * len(self.members))
        self.seed = seed
        self._pass: tuple[int, Ints] = (-1, np.empty(0, np.int64))

    def __getitem__(self, step: int) -> Ints:
        per_pass = self.quota * len(self.members) // self.batch
        number, place = divmod(step, per_pass)
        if self._pass[0] != number:
            self._pass = (number, self._draw(number))
        return self._pass[1][place * self.batch : (place + 1) * self.batch]

    def _draw(self, number: int) -> Ints:
        rng = np.random.default_rng([self.seed, 1, number])
        parts = []
        for rows in self.members:
            whole, rest = divmod(self.quota, len(rows))
            parts += [rows] * whole + [rng.permutation(rows)[:rest]]
        return rng.permutation(np.concatenate(parts))
