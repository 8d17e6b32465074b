"""`--minutes`: measure the speed once and turn it into a fixed number of steps."""

import copy
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple

import torch

from recollect.data.arrays import Rows
from recollect.data.imageset import ImageSet
from recollect.data.splits import Split
from recollect.errors import ConfigError
from recollect.features import extract
from recollect.model.model import Model
from recollect.training.config import Config, StageOne
from recollect.training.stage1 import BaseClassification
from recollect.training.stage2 import EpisodicTraining
from recollect.training.teacher import load_teacher

_STAGE_TWO_SHARE = 0.25  # of the time is the most that stage 2's steps may take
_MARGIN = 0.95


class Speed(NamedTuple):
    """Seconds that training takes on this machine."""

    stage1_step: float
    stage2_step: float
    picture: float  # through the extractor, without learning
    teacher: float = 0.0  # what it adds to a step with pictures of full size

    def stage1_mean(self, recipe: StageOne, size: int) -> float:
        """Return how long a step of stage 1 takes on average, with pictures of `size` × `size` in the end."""
        taught = 1 - recipe.small.until if recipe.small else 1.0
        return recipe.small_share(size) * self.stage1_step + taught * self.teacher


def measure(config: Config, model: Model, split: Split) -> Speed:
    """Take a few steps of each stage, on copies of the model."""
    one = config.model_copy(update={"stage1": config.stage1.model_copy(update={"steps": 1})})
    stage = BaseClassification(copy.deepcopy(model), split, one)
    with closing(stage):
        stage1_step = seconds_each(lambda step: stage.loss(step)[0].backward())  # type: ignore[no-untyped-call]
    speed = Speed(stage1_step, 0.0, _seconds_to_look(model, split.base_train, stage.batches[0]))
    if config.stage1.teacher is not None:
        teacher, rows = load_teacher(config.stage1.teacher, config), stage.batches[0]
        pixels = torch.from_numpy(split.base_train.take(rows))
        speed = speed._replace(teacher=seconds_each(lambda _: teacher.scores(pixels)))
    if not config.learns_generator:
        return speed
    views = torch.randn(1, len(split.base_train), model.width)
    trial = copy.deepcopy(model)
    trial.replace_generator(config.generator, config.stage2.sharpness, shot_aware=config.shot_aware)
    episodic = EpisodicTraining(trial, split, config, views.half())
    stage2_step = seconds_each(lambda step: episodic.loss(step)[0].backward())  # type: ignore[no-untyped-call]
    return speed._replace(stage2_step=stage2_step)


def _seconds_to_look(model: Model, images: ImageSet, rows: Rows) -> float:
    """Return how long a picture takes from where it is to its feature, not shifted."""
    seen, some = copy.deepcopy(model), replace(images, rows=images.rows[rows], labels=images.labels[rows])
    with seen.unshifted():
        return seconds_each(lambda _: extract(seen, some), warm_up=1, timed=2) / len(rows)


Measure = Callable[[Config, Model, Split], Speed]


def judged_pictures(split: Split) -> int:
    """Return how many pictures a selection looks at."""
    novel, base = split.evaluated("val")
    return len(base) + (0 if novel is None else len(novel))


def fit_to_minutes(config: Config, model: Model, split: Split, speed_of: Measure = measure) -> Config:
    """Return the configuration with as many steps as fit into `config.minutes`."""
    if config.minutes is None:
        return config
    if config.frozen:
        raise ConfigError(
            "--minutes is for training an extractor, and this one is frozen: leave it out, or add --finetune"
        )
    if config.stage1_from is not None:
        raise ConfigError("--minutes covers both stages: with stage1_from, set stage2.steps instead")
    seconds = 60 * config.minutes * _MARGIN
    speed, judged = speed_of(config, model, split), judged_pictures(split)
    stage2_steps = 0
    if config.learns_generator:
        stage2_steps = min(config.stage2.steps, int(_STAGE_TWO_SHARE * seconds / speed.stage2_step))
        seconds -= stage2_steps * speed.stage2_step
        seconds -= speed.picture * config.stage2.views * len(split.base_train)
    seconds -= speed.picture * judged * (config.stage1.evaluations + config.places)
    stage1_step = speed.stage1_mean(config.stage1, split.base_train.size)
    stage1_steps = int(seconds / stage1_step)
    if stage1_steps < config.stage1.evaluations or (config.learns_generator and stage2_steps < 1):
        raise ConfigError(
            f"--minutes {config.minutes:g} is too short here: a step of stage 1 takes "
            f"{stage1_step:.2f} s and the pictures have to be passed over several times; allow more, or use "
            f"a smaller extractor{' or no stage1.teacher' if speed.teacher else ''}"
        )
    return config.model_copy(
        update={
            "stage1": config.stage1.model_copy(update={"steps": stage1_steps}),
            "stage2": config.stage2.model_copy(update={"steps": max(1, stage2_steps)}),
        }
    )


def seconds_each(take: Callable[[int], object], warm_up: int = 2, timed: int = 6) -> float:
    """Return how long a step takes, once the first ones are done."""
    for step in range(warm_up):
        take(step)
    began = time.perf_counter()
    for step in range(warm_up, warm_up + timed):
        take(step)
    return (time.perf_counter() - began) / timed
