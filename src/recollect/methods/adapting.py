"""Methods whose whole network adapts to every task: they look at pictures, for no feature stays the same."""

from abc import abstractmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from recollect.data.imageset import ImageSet
from recollect.data.splits import Split
from recollect.data.tasks import TaskShape
from recollect.errors import ConfigError, DataError, ModelError
from recollect.features import FeatureSet
from recollect.methods.episodic import EpisodicMethod, learner_of
from recollect.methods.task_network import Patches, PlainNetwork, Statistics, TaskNetwork, patches
from recollect.model.extractors.conv4 import Conv4
from recollect.model.model import Model
from recollect.model.spec import LearnerSpec
from recollect.training.config import Config

Weights = dict[str, Tensor]  # of a network by name, (tasks, …)
_AT_ONCE = 4  # tasks that a trained model adapts to at a time


class AdaptingLearner(nn.Module):
    """Where the head of the network starts; that of the rest is the extractor."""

    def __init__(self, spec: LearnerSpec, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.head = nn.Linear(width, spec.ways)


class AdaptingMethod(EpisodicMethod):
    """A method that starts a `Conv4` and its head somewhere, and descends on a support's loss from there.

    Base categories have no scores: a head is made for the categories of one task.
    """

    joint = False
    last_relu = True

    @abstractmethod
    def usual_steps(self, shots: int) -> tuple[int, int]:
        """Return the steps of adaptation in training and to a new task, where the settings do not say."""

    @abstractmethod
    def adapted_scores(self, model: Model, adaptation: "Adaptation", steps: int) -> Tensor:
        """Adapt to the support of some tasks in `steps` steps, and score their queries: (tasks, q, ways)."""

    def made_for(self, config: Config, ways: int) -> LearnerSpec:
        """Return the size of the head, and how far it adapts to a new task."""
        meta = config.meta
        return LearnerSpec(
            ways=ways,
            shots=config.most_shots,
            steps=meta.test_steps or 1,
            training_steps=meta.inner_steps or 1,
        )

    def settled(self, config: Config) -> Config:
        """Return the configuration with the method's own settings."""
        training, test = self.usual_steps(config.most_shots)
        asked = {
            "inner_steps": config.meta.inner_steps or training,
            "test_steps": config.meta.test_steps or test,
        }
        meta = config.meta.model_copy(update=asked)
        return super().settled(config).model_copy(update={"mirrored": False, "shifted": 0, "meta": meta})

    def check(self, config: Config, split: Split) -> None:
        """Refuse an extractor that is not one of the four-block ConvNets."""
        if config.extractor not in {"c32f", "c64f", "c128f"}:
            raise ConfigError(
                f"{self.title} adapts c32f, c64f or c128f, and not '{config.extractor}': choose one with "
                "--extractor"
            )
        for images in split.evaluated("val"):
            self._require_in_memory(images)
        super().check(config, split)

    def require(self, model: Model, shape: TaskShape) -> None:
        """Refuse tasks of more ways than the head has."""
        require_ways(self, model, shape)

    def see(self, model: Model, images: ImageSet, *, keep: bool = True) -> FeatureSet:  # noqa: ARG002
        """Return the pixels of every picture, for no feature stays the same."""
        self._require_in_memory(images)
        pixels = torch.from_numpy(images.take(np.arange(len(images))))
        return FeatureSet(pixels, torch.from_numpy(images.labels), images.categories)

    def _require_in_memory(self, images: ImageSet | None) -> None:
        if images is not None and images.on_the_fly:
            raise DataError(
                f"{self.title} adapts to pictures that are held in memory, and these are decoded on the fly: "
                "raise --cache-gb"
            )

    def look(self, model: Model, pixels: Tensor) -> Tensor:  # noqa: ARG002
        """Return the pixels themselves."""
        return pixels

    def novel_scores(self, model: Model, support: Tensor, queries: Tensor) -> Tensor:
        """Score the pixels of queries (tasks, q, h, w, 3) by those of the support (tasks, ways, shots, …)."""
        spec = learner_of(model, AdaptingLearner).spec
        if model.training:
            return self._scores(model, support, queries, spec.training_steps)
        parts = zip(torch.split(support, _AT_ONCE), torch.split(queries, _AT_ONCE), strict=True)
        with torch.inference_mode(mode=False), torch.enable_grad():
            found = [self._scores(model, one, asked, spec.steps).detach() for one, asked in parts]
        return torch.cat(found)

    def adaptation(self, model: Model, support: Tensor, queries: Tensor) -> "Adaptation":
        """Return what adapts the network to some tasks."""
        return Adaptation(model, support, queries)

    def _scores(self, model: Model, support: Tensor, queries: Tensor, steps: int) -> Tensor:
        return self.adapted_scores(model, self.adaptation(model, support, queries), steps)


class Adaptation:
    """The network, and the pictures of some tasks: what a method adapts, and by what."""

    def __init__(self, model: Model, support: Tensor, queries: Tensor) -> None:
        _, ways, shots, self.size, _, _ = support.shape
        if not isinstance(model.extractor, Conv4):
            raise ModelError(f"the extractor '{model.spec.extractor}' does not adapt: the file was altered")
        self.network = self.make_network(model.extractor, learner_of(model, AdaptingLearner).head)
        self.support, self.queries = (
            self.prepare(((pixels - model.mean) / model.std).contiguous())
            for pixels in (support.flatten(1, 2).float(), queries.float())
        )
        self.targets = torch.arange(ways, device=support.device).repeat_interleave(shots)
        self.ways, self.tasks = ways, len(support)

    def make_network(self, extractor: Conv4, head: nn.Linear) -> TaskNetwork:
        """Return the network."""
        return TaskNetwork(extractor, head)

    def prepare(self, pictures: Tensor) -> Any:  # noqa: ANN401
        """Return what the network takes of normalised pictures (tasks, n, h, w, 3)."""
        return patches(pictures)

    def start(self) -> Weights:
        """Return the weights that every task starts from."""
        return {
            name: weight.expand(self.tasks, *weight.shape) for name, weight in self.network.named_parameters()
        }

    def scores(
        self,
        weights: Weights,
        pictures: Any,  # noqa: ANN401
        statistics: Statistics | None = None,
    ) -> tuple[Tensor, Statistics]:
        """Score the pictures of every task with its own weights: (tasks, n, ways); also the statistics."""

        def one(own: Weights, seen: Patches, given: Statistics | None) -> tuple[Tensor, Statistics]:
            scores, found = functional_call(self.network, own, (seen, self.size, given))
            return scores[:, : self.ways], found

        return vmap(one, in_dims=(0, 0, None if statistics is None else 0))(weights, pictures, statistics)

    def support_losses(self, weights: Weights) -> tuple[Tensor, Statistics]:
        """Return the loss of every task's support (tasks,), and the batch statistics."""
        scores, statistics = self.scores(weights, self.support)
        targets = self.targets.expand(self.tasks, -1)
        losses = F.cross_entropy(scores.mT, targets, reduction="none").mean(1)
        return losses, statistics


class Loop(Adaptation):
    """The same, one task after the other; for methods that take no second derivative.

    Without one, torch's own layers take less time than passes over all tasks together.
    """

    def make_network(self, extractor: Conv4, head: nn.Linear) -> TaskNetwork:
        """Return the network of one task."""
        return PlainNetwork(extractor, head)

    def prepare(self, pictures: Tensor) -> Tensor:
        """Return the pictures as convolutions take them: (tasks, n, 3, h, w)."""
        return pictures.movedim(-1, -3)

    def scores(
        self,
        weights: Weights,
        pictures: Tensor,
        statistics: Statistics | None = None,  # noqa: ARG002
    ) -> tuple[Tensor, Statistics]:
        """Score the pictures of every task with its own weights; no batch statistics are returned."""
        own = zip(*(weight.unbind() for weight in weights.values()), strict=True)
        found = [
            functional_call(self.network, dict(zip(weights, parts, strict=True)), (seen,))
            for parts, seen in zip(own, pictures, strict=True)
        ]
        return torch.stack(found)[..., : self.ways], []


def require_ways(method: EpisodicMethod, model: Model, shape: TaskShape) -> None:
    """Refuse tasks of more ways than a learner was made for."""
    spec = model.spec.learner
    if spec is not None and shape.ways > spec.ways:
        raise ModelError(
            f"this model of {method.title} tells at most {spec.ways} categories apart, and tasks have "
            f"{shape.ways}: use --ways {spec.ways} or fewer, or train with --set episodic.ways={shape.ways}"
        )
