"""What a training or a new recogniser starts from: an extractor by name, its weights and its input."""

import torch

from recollect.data.imagenet import MEAN, SIZE, STD
from recollect.data.imageset import ImageSet
from recollect.errors import ConfigError
from recollect.model.extractors import build_extractor, published_input
from recollect.model.extractors.onnx import onnx_extractor, onnx_input
from recollect.model.extractors.own import own_extractor
from recollect.model.model import Learner, Model
from recollect.model.spec import ModelSpec, Preprocessing, is_onnx, is_own_code
from recollect.pretrained import PUBLISHED, extractor_weights, is_pretrained
from recollect.training.config import Config


def input_of(extractor: str, size: int | None = None) -> Preprocessing | None:
    """Return how pictures are prepared for a pretrained extractor; your own code gets ImageNet's input."""
    published = Preprocessing(size=SIZE, mean=MEAN, std=STD) if is_own_code(extractor) else None
    published = onnx_input(extractor) if is_onnx(extractor) else published
    published = published or published_input(extractor)
    return published.model_copy(update={"size": size}) if published and size else published


def suited(extractor: str, images: ImageSet) -> Preprocessing:
    """Return the preprocessing for an extractor: its own scaling if it is pretrained."""
    wanted = input_of(extractor, images.size)
    if wanted is None:
        return images.preprocessing
    short_side = images.published.short_side if images.published else None
    return wanted.model_copy(update={"short_side": short_side})


def require_extractor(config: Config) -> int | None:
    """Refuse an extractor that cannot be used; return the size of its pictures, or `None`: the data's own."""
    if config.finetune and not is_pretrained(config.extractor):
        raise ConfigError(
            f"--finetune: '{config.extractor}' is not pretrained and is trained anyway: leave it out, "
            "or name another --extractor"
        )
    if config.finetune and is_onnx(config.extractor):
        raise ConfigError(
            "--finetune: an ONNX file is used as it is: leave it out, or name another --extractor"
        )
    wanted = input_of(config.extractor, config.size)
    size = wanted.size if wanted else config.size
    if is_own_code(config.extractor):
        own_extractor(config.extractor, size or SIZE)
    elif is_onnx(config.extractor):
        onnx_extractor(config.extractor, size or SIZE)
    else:
        build_extractor(config.extractor, size=size or SIZE)
        if config.extractor in PUBLISHED:
            extractor_weights(config.extractor)
    return config.size if config.data == "glyphs" else size


def starting_model(spec: ModelSpec, learner: Learner | None = None) -> Model:
    """Build a model with its extractor's pretrained weights, if it has any, and a method's own `learner`."""
    if is_own_code(spec.extractor):
        return Model(spec, own_extractor(spec.extractor, spec.preprocessing.size), learner)
    if is_onnx(spec.extractor):
        return Model(spec, onnx_extractor(spec.extractor, spec.preprocessing.size), learner)
    model = Model(spec, learner=learner)
    if spec.extractor in PUBLISHED:
        weights = extractor_weights(spec.extractor)
        model.extractor.load_state_dict({name: torch.from_numpy(values) for name, values in weights.items()})
    return model
