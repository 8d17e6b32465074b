"""Methods on the features of stage 1, which was trained by ordinary classification alone."""

import threading
from abc import ABC, abstractmethod

from recollect.data.splits import Split
from recollect.evaluation.evaluate import ScoringFunction
from recollect.features import FeatureSet
from recollect.methods.method import FeatureScores, Method, task_scores
from recollect.model.model import Model
from recollect.training.config import Config
from recollect.training.curves import draw_curves
from recollect.training.runfolder import RunFolder
from recollect.training.train import learn_stage_one, save_trained, stage_one_facts, views_of_frozen


class FrozenFeatures(Method, ABC):
    """A method that trains stage 1, or reuses that of another run, and learns nothing after it."""

    def finish(self, model: Model, split: Split) -> None:
        """Change the classifier of stage 1 into what the method needs."""

    @abstractmethod
    def score(self, model: Model, novel: FeatureSet | None, split: Split) -> FeatureScores:
        """Return how the features of tasks are scored."""

    def scores(
        self, model: Model, novel: FeatureSet | None, base: FeatureSet, split: Split
    ) -> ScoringFunction:
        """Return the scoring function over features of novel and of base pictures."""
        return task_scores(self.score(model, novel, split), novel, base, model.mean.device, joint=self.joint)

    def settled(self, config: Config) -> Config:
        """Return the configuration with the method's own settings."""
        return config.model_copy(update={"method": self.name, "generator": "mean"})

    def learn(self, config: Config, split: Split, folder: RunFolder, stop: threading.Event) -> None:
        """Train stage 1 on base pictures."""
        model = learn_stage_one(config, split, folder, stop, views_of_frozen(config, split, stop))
        self.finish(model, split)
        save_trained(folder.model, model, config, finished=True, method=self.name, **stage_one_facts(folder))
        draw_curves(folder)
