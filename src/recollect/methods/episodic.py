"""Training on episodes of pictures, in whole batches, for methods that learn from nothing else.

All episodes of a step are augmented together and pass the extractor together, with batch norm in training
mode. A run sees as many pictures as stage 1 of the same configuration, under the same optimiser.
"""

import threading
import time
from abc import ABC, abstractmethod
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recollect.data.splits import Split
from recollect.data.tasks import TaskSampler, TaskShape
from recollect.errors import ConfigError, DataError, Stopped
from recollect.evaluation.evaluate import ScoringFunction
from recollect.features import FeatureSet
from recollect.methods.method import Method, task_scores
from recollect.model.model import Model
from recollect.model.spec import ClassifierKind, LearnerSpec
from recollect.pretrained import is_pretrained
from recollect.system.disk import remove_file
from recollect.training.budget import Speed, judged_pictures, measure, seconds_each
from recollect.training.config import Config
from recollect.training.curves import draw_curves
from recollect.training.episodes import Episodes, pictures_of
from recollect.training.loop import Stage, run_stage
from recollect.training.optimizer import ClippedAdam
from recollect.training.runfolder import RunFolder
from recollect.training.schedules import OneCycle, Steps
from recollect.training.selection import WAYS, Judgement
from recollect.training.stage1 import Ints, PicturesByStep, augmentation
from recollect.training.train import learn_stage_one, new_model, save_trained, stage_one_facts

L = TypeVar("L", bound=nn.Module)
_TRIED = 20  # tasks by which the time of a selection is measured


class EpisodicMethod(Method, ABC):
    """A method whose extractor and scale are learned from episodes, for one number of shots."""

    classifier: ClassifierKind = "dot"  # where the scale starts
    last_relu: bool = False
    rate: float | None = None  # of Adam; the others learn as stage 1 does
    after_classification = False  # the extractor first learns to classify base categories, in stage 1

    @abstractmethod
    def novel_scores(self, model: Model, support: Tensor, queries: Tensor) -> Tensor:
        """Score what is seen of queries (tasks, q, …) by that of the support (tasks, ways, shots, …).

        Returns (tasks, q, ways).
        """

    def look(self, model: Model, pixels: Tensor) -> Tensor:
        """Return what is seen of pictures (n, size, size, 3) in training: here, features (n, d)."""
        return model.embed(pixels)

    def prepare(self, model: Model, config: Config, share: float) -> None:
        """Get ready for a step of training, when `share` of them is done."""

    def made_for(self, config: Config, ways: int) -> LearnerSpec | None:  # noqa: ARG002
        """Return what the method's own `learner` is made for, if there is one."""
        return None

    def learned(self, model: Model) -> list[nn.Parameter]:
        """Return the extractor, and the method's own learner or else the scale."""
        own = [model.classifier.scale] if model.learner is None else model.learner.parameters()
        return [*model.extractor.parameters(), *own]

    def adam(self, parameters: list[nn.Parameter]) -> ClippedAdam:
        """Return the optimiser of a method that has a `rate`."""
        return ClippedAdam(parameters)

    def base_scores(self, model: Model, queries: Tensor) -> Tensor | None:  # noqa: ARG002
        """Score queries (tasks, q, d) over base categories, (tasks, q, k), if the method can."""
        return None

    def finish(self, model: Model, split: Split) -> None:
        """Add to a trained model what it needs for base scores."""

    def settled(self, config: Config) -> Config:
        """Return the configuration with the method's own settings."""
        last_relu = self.last_relu and not is_pretrained(config.extractor)
        own = {"classifier": self.classifier, "last_relu": last_relu}
        return config.model_copy(update={"method": self.name, "generator": "mean", **own})

    def scores(
        self,
        model: Model,
        novel: FeatureSet | None,
        base: FeatureSet,
        split: Split | None = None,  # noqa: ARG002
    ) -> ScoringFunction:
        """Return the scoring function over what is seen of novel and of base pictures."""

        def score(support: Tensor, queries: Tensor) -> tuple[Tensor | None, Tensor]:
            return self.base_scores(model, queries), self.novel_scores(model, support, queries)

        return task_scores(score, novel, base, model.mean.device, joint=self.joint)

    def check(self, config: Config, split: Split) -> None:
        """Refuse an extractor that would not learn and, by name, a category too small for the episodes."""
        if config.frozen:
            raise ConfigError(
                f"a training of {self.title} is one of the extractor, and '{config.extractor}' is frozen: "
                "add --finetune"
            )
        episode_shape(self, config, split)

    def train(self, config: Config, out: Path, *, resume: bool = False) -> int:
        """Train for one number of shots, which the configuration must say."""
        if config.shots == "mixed":
            raise ConfigError(
                f"a training of {self.title} is for one number of shots: choose it, such as --shots 5"
            )
        return super().train(config, out, resume=resume)

    def speed(self, config: Config, model: Model, split: Split) -> Speed:  # noqa: ARG002
        """Return the time of episodes with as many pictures as a step of stage 1, and of a selection."""
        one = config.model_copy(update={"stage1": config.stage1.model_copy(update={"steps": 1})})
        stage = self.stage(one, split)
        with closing(stage):
            step = seconds_each(lambda step: stage.loss(step)[0].backward(), timed=4)  # type: ignore[no-untyped-call]
            stage.judgement.tasks = min(_TRIED, config.select_tasks)
            began = time.perf_counter()
            stage.judge()
            judging = (time.perf_counter() - began) * config.select_tasks / stage.judgement.tasks
        seconds = step * config.stage1.batch / stage.in_step
        if self.after_classification:  # some of the pictures are classified, the others are in episodes
            share = config.meta.classify
            classifying = measure(classification(config), new_model(config, split), split).stage1_step
            seconds = share * classifying + (1 - share) * seconds
        return Speed(seconds, 0.0, judging / judged_pictures(split))

    def stage(self, config: Config, split: Split) -> "EpisodesOfPictures":
        """Return the training on episodes, from its start."""
        _, shape = episode_shape(self, config, split)
        model = new_model(config, split, self.made_for(config, shape.ways), self.learner)
        return EpisodesOfPictures(self, model, split, config)

    def learn(self, config: Config, split: Split, folder: RunFolder, stop: threading.Event) -> None:
        """Train on episodes of base pictures."""
        stage = self.stage(config, split)
        first: dict[str, Any] = {}
        if self.after_classification:
            classifier = learn_stage_one(classification(config), split, folder, stop)
            stage.model.extractor.load_state_dict(classifier.extractor.state_dict())
            first = stage_one_facts(folder)
            stage.number = 2

        def save(**facts: Any) -> None:  # noqa: ANN401
            self.finish(stage.model, split)
            facts = {**first, **facts, "validation": folder.validation(stage.number)}
            save_trained(folder.model, stage.model, config, method=self.name, **facts)

        try:
            seconds = run_stage(stage, folder, stop)
        except Stopped:
            save()
            raise
        finally:
            stage.close()
        episodes = stage.steps * stage.episodes.count
        seen = {
            "images_seen": first.get("images_seen", 0) + stage.images_seen,
            "episodes_seen": episodes,
            f"stage{stage.number}_seconds": round(seconds),
        }
        save(finished=True, **seen)
        remove_file(folder.checkpoint(stage.number))
        draw_curves(folder)


class EpisodesOfPictures(Stage):
    """Steps of several episodes, in which base categories act as novel ones."""

    number = 1
    title = "episodes"
    select = "novel"

    def __init__(self, method: EpisodicMethod, model: Model, split: Split, config: Config) -> None:
        sampler, shape = episode_shape(method, config, split)
        self.in_step = config.episodic.episodes * shape.ways * (shape.shots + shape.queries)
        share = 1 - config.meta.classify if method.after_classification else 1.0
        steps = max(1, round(share * (config.stage1.steps or 1) * config.stage1.batch / self.in_step))
        evaluations = (config.stage2 if method.after_classification else config.stage1).evaluations
        recipe = config.stage1.model_copy(update={"steps": steps, "evaluations": evaluations})
        if method.rate is not None:
            recipe = recipe.model_copy(update={"schedule": meta_schedule(config, method.rate)})
            self.slower = f"meta.rate={(config.meta.rate or method.rate) / 5:g}"
        super().__init__(model, recipe, config)
        self.method, self.config = method, config
        self.episodes = Episodes(
            sampler, shape, count=config.episodic.episodes, views=1, mixed=False, seed=config.seed
        )
        self._pictures = PicturesByStep(split.base_train, self._rows)
        self.augmentation = augmentation(split, config.stage1)
        most = WAYS if model.learner is None else min(WAYS, shape.ways)
        self.judgement = Judgement(split, config.select_shots, config, most)

    def _rows(self, step: int) -> Ints:
        rows: Ints = pictures_of(self.episodes[step][0]).flatten().numpy()
        return rows

    @property
    def images_seen(self) -> int:
        """Return how many pictures all episodes have."""
        return self.steps * self.in_step

    def learned(self) -> list[nn.Parameter]:
        """Return what the method learns."""
        return self.method.learned(self.model)

    def optimizer(self) -> torch.optim.Optimizer:
        """Return Adam where the method says so, and stage 1's optimiser otherwise."""
        return super().optimizer() if self.method.rate is None else self.method.adam(self.learned())

    def loss(self, step: int) -> tuple[Tensor, Tensor]:
        """Classify the queries of a step's episodes over each one's own categories."""
        device, shape = self.model.mean.device, self.episodes.shape
        _, taken = self._pictures[step]
        pixels = self.augmentation(torch.from_numpy(taken), torch.default_generator)
        self.model.train()
        self.method.prepare(self.model, self.config, step / self.steps)
        seen = self.method.look(self.model, pixels.to(device))
        seen = seen.view(self.episodes.count, -1, *seen.shape[1:])
        support, queries = seen[:, : shape.ways * shape.shots], seen[:, shape.ways * shape.shots :]
        support = support.reshape(len(seen), shape.ways, shape.shots, *seen.shape[2:])
        scores = self.method.novel_scores(self.model, support, queries).flatten(0, 1)
        targets = torch.arange(shape.ways).repeat_interleave(shape.queries).repeat(len(seen)).to(device)
        return F.cross_entropy(scores, targets), (scores.argmax(1) == targets).float().mean()

    def judge(self) -> dict[str, float]:
        """Return Novel on validation tasks of as many shots."""
        self.model.eval()
        with self.model.unshifted():
            novel, base = self.judgement.features(self.model, self.method)
        score = self.method.scores(self.model, novel, base)
        return {"novel": self.judgement.figures(self.model, novel, base, score)["novel"]}

    def close(self) -> None:
        """End the threads that decode ahead, where there are any."""
        self._pictures.close()


def classification(config: Config) -> Config:
    """Return the configuration of the classifier that a training on episodes starts from."""
    steps = max(1, round((config.stage1.steps or 1) * config.meta.classify))
    return config.model_copy(update={"stage1": config.stage1.model_copy(update={"steps": steps})})


def learner_of(model: Model, kind: type[L]) -> L:
    """Return a model's learner, which is of this kind."""
    if not isinstance(model.learner, kind):
        raise TypeError(f"the model has no {kind.__name__}")
    return model.learner


def meta_schedule(config: Config, rate: float) -> OneCycle | Steps:
    """Return how Adam's rate runs: the setting's, or the method's own."""
    rate = config.meta.rate or rate
    if config.meta.schedule == "constant":
        return Steps(kind="steps", rates=((1, rate),))
    return OneCycle(kind="one-cycle", peak=rate, warm_up=0.02)


def episode_shape(method: EpisodicMethod, config: Config, split: Split) -> tuple[TaskSampler, TaskShape]:
    """Return the sampler and shape of episodes; refuse, by name, a category too small for them.

    With fewer base categories than ways, all but one act as novel ones.
    """
    recipe, labels = config.episodic, np.asarray(split.base_train.labels)
    sampler = TaskSampler(labels, None, base_names=split.categories)
    ways = min(recipe.ways, len(split.categories) - 1)
    shape = TaskShape(ways, int(config.shots), recipe.queries, base_queries=0)
    try:
        sampler.check(shape)
    except DataError as error:
        raise DataError(f"episodes of {method.title}: {error} (--set episodic.queries=1)") from error
    return sampler, shape
