"""Methods on the features of stage 1, which was trained by ordinary classification alone."""

import threading
from abc import ABC, abstractmethod
from pathlib import Path

from recollect.data.splits import Split
from recollect.evaluation.evaluate import ScoringFunction
from recollect.features import FeatureSet
from recollect.methods.method import FeatureScores, task_scores
from recollect.model.model import Model
from recollect.training.config import Config
from recollect.training.curves import draw_curves
from recollect.training.runfolder import RunFolder
from recollect.training.train import learn_stage_one, save_trained, stage_one_facts, train, views_of_frozen


class FrozenFeatures(ABC):
    """A method that trains stage 1, or reuses that of another run, and learns nothing after it."""

    name: str
    title: str
    joint = True

    def finish(self, model: Model, split: Split) -> None:  # noqa: B027
        """Change the classifier of stage 1 into what the method needs."""

    @abstractmethod
    def score(self, model: Model, novel: FeatureSet | None, split: Split) -> FeatureScores:
        """Return how the features of tasks are scored."""

    def scores(
        self, model: Model, novel: FeatureSet | None, base: FeatureSet, split: Split
    ) -> ScoringFunction:
        """Return the scoring function over features of novel and of base pictures."""
        return task_scores(self.score(model, novel, split), novel, base, model.mean.device)

    def settled(self, config: Config) -> Config:
        """Return the configuration with the method's own settings."""
        return config.model_copy(update={"method": self.name, "generator": "mean"})

    def check(self, config: Config, split: Split) -> None:  # noqa: B027
        """Ask for no more than every training does."""

    def train(self, config: Config, out: Path, *, resume: bool = False) -> None:
        """Train stage 1 on base pictures."""
        train(self.settled(config), out, resume=resume, learn=self._learn, check=self.check)

    def _learn(self, config: Config, split: Split, folder: RunFolder, stop: threading.Event) -> None:
        model = learn_stage_one(config, split, folder, stop, views_of_frozen(config, split, stop))
        self.finish(model, split)
        save_trained(folder.model, model, config, finished=True, method=self.name, **stage_one_facts(folder))
        draw_curves(folder)
