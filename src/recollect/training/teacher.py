"""The teacher of a distillation: a trained model whose scores stage 1 learns beside the labels."""

from pathlib import Path

import torch
from torch import Tensor

from recollect.errors import ConfigError
from recollect.features import learning_precision
from recollect.model.model import Model
from recollect.model.spec import is_own_code
from recollect.modelfile import PAPER, TrainedOn, load_model, read_header
from recollect.pretrained import is_pretrained
from recollect.training.config import Config

_MOST_IMAGES = 2**53


class Teacher:
    """A trained model that is asked about the same augmented pictures as its student."""

    def __init__(self, model: Model) -> None:
        # Once, as the student sees them: averages over mirror images and places would take up to ten times
        # as long.
        model.spec = model.spec.model_copy(update={"mirrored": False, "shifted": 0})
        self.model = model.eval()
        self._extractor = model.extractor.for_extraction()

    @torch.no_grad()
    def scores(self, pixels: Tensor) -> Tensor:
        """Return the base scores of pictures (n, size, size, 3), (n, k)."""
        mean = self.model.mean
        with learning_precision(self.model):
            features = self.model.embed(pixels.to(mean.device), self._extractor).to(mean.dtype)
        found: Tensor = self.model.classifier(features)
        return found


def load_teacher(named: str | Path, config: Config) -> Teacher:
    """Load the teacher of a training; your own code teaches only what was named as the extractor."""
    extractor = read_header(named).spec.extractor
    given = extractor if extractor == config.extractor else None
    return Teacher(load_model(named, given).to(config.device))


def require_teacher(
    named: str | Path, config: Config, categories: tuple[str, ...], trained_on: TrainedOn
) -> int:
    """Refuse a teacher that does not know the same categories, or learned from pictures held out here.

    Returns how many pictures it has seen.
    """
    header, wrong = read_header(named), f"stage1.teacher={config.stage1.teacher}"
    spec, seen = header.spec, header.provenance.get("images_seen")
    if header.method != PAPER or spec.categories != categories:
        raise ConfigError(
            f"{wrong}: it must be a model of the categories that are to be learned, and no other"
        )
    if header.trained_on != trained_on:
        raise ConfigError(
            f"{wrong}: it learned from other pictures: name a run on the same data, with the same --split "
            "and --size"
        )
    if is_pretrained(spec.extractor) and spec.generator == "ridge":
        raise ConfigError(
            f"{wrong}: with --generator ridge it learned from validation pictures too: train one with another"
        )
    if is_own_code(spec.extractor) and spec.extractor != config.extractor:
        raise ConfigError(f"{wrong}: its extractor is your own code, which is not loaded from a file")
    if type(seen) is not int or not 0 < seen < _MOST_IMAGES:
        raise ConfigError(
            f"{wrong}: its stage 1 is not finished: resume it first, with recollect train --resume"
        )
    load_teacher(named, config)  # refuses damaged weights
    return seen
