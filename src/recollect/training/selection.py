"""Model selection: validation during training, so that the best model is kept."""

from dataclasses import replace
from functools import partial

from recollect.data.splits import Split
from recollect.data.tasks import TaskShape, task_sampler
from recollect.evaluation.evaluate import Scorer, ScoringFunction, model_figures
from recollect.features import FeatureSet
from recollect.model.model import Model
from recollect.training.config import Config

HeldOut = tuple[FeatureSet | None, FeatureSet]  # of novel and of base pictures
WAYS = 5  # of the tasks, where a method can answer as many
SUPPORT = 10  # training pictures of each category that serve as support in some tasks


class Judgement:
    """Tasks on validation categories and validation pictures, by which models are selected.

    If no categories are reserved, base categories act as novel ones, on held-out pictures. There may be only
    two of each, so with a frozen extractor, which has not fitted them, training pictures serve as examples.
    The generator has seen those, which makes these tasks a little easier than a user's.
    """

    def __init__(self, split: Split, shots: tuple[int, ...], config: Config, ways: int = WAYS) -> None:
        self.novel_images, self.base_images = split.evaluated("val")
        self.tasks = config.select_tasks
        self.support = None
        if config.frozen and self.novel_images is None:
            whole = config.generator == "ridge"  # which leaves out all that it saw of a hidden category
            self.support = split.base_train if whole else split.base_train.first(SUPPORT)
        sampler = task_sampler(self.base_images, self.novel_images, self.support)
        self.shapes = [sampler.fit(TaskShape(ways, count, split.queries)) for count in shots]
        for shape in self.shapes:
            sampler.check(shape)

    def features(self, model: Model, by: Scorer | None = None) -> HeldOut:
        """Return what a method (default: the paper's) sees of the pictures that tasks are drawn from."""
        see = partial((by or Scorer()).see, model, keep=False)
        novel = None if self.novel_images is None else see(self.novel_images)
        base = see(self.base_images)
        return novel, base if self.support is None else replace(base, support=see(self.support))

    def figures(
        self, model: Model, novel: FeatureSet | None, base: FeatureSet, score: ScoringFunction | None = None
    ) -> dict[str, float]:
        """Return figures in percent, averaged over numbers of shots; default: the model's own scores."""
        found = [
            model_figures(model, novel, base, shape, self.tasks, seed=0, score=score) for shape in self.shapes
        ]
        return {
            name: round(sum(100 * one[name].mean().item() for one in found) / len(found), 3)
            for name in ("novel", "base", "both", "ausuc")
        }
