"""Training on a frozen extractor in closed form: base vectors are ridge regression, like novel ones.

The extractor runs once over training and validation pictures. What has to be chosen (τ and the calibration)
is chosen with vectors of the training pictures; then they are solved anew with the validation pictures too.
"""

import threading
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from recollect.data.splits import Split
from recollect.errors import Stopped
from recollect.features import FeatureSet, extract
from recollect.model.generator import RidgeGenerator
from recollect.model.model import Head, Model
from recollect.system.progress import bar
from recollect.training.frozen import balanced_mean, best_scale, require_finite
from recollect.training.selection import HeldOut


@torch.no_grad()
def see_pictures(head: Head, z: Tensor) -> RidgeGenerator:
    """Give the generator `ridge` the second moments G of base features z (n, d), and return it."""
    generator = cast("RidgeGenerator", head.generator)
    generator.moments.zero_()
    generator.see(head.classifier.view(z))
    return generator


@torch.no_grad()
def solve_base(head: Head, base: FeatureSet) -> None:
    """Make W_base = (G + λI)⁻¹ZᵀY, of unit length, and G of the features of base pictures."""
    generator, classifier = see_pictures(head, base.features), head.classifier
    z = classifier.view(base.features)
    sums = torch.zeros(classifier.weight.shape).index_add_(0, base.labels, z)
    classifier.weight.copy_(classifier.view(sums.to(generator.moments.device) @ generator.inverse()))


@torch.no_grad()
def fit_scale(head: Head, held: FeatureSet) -> None:
    """Choose τ on held-out pictures."""
    cosines = head.classifier.view(held.features) @ head.classifier.weight.cpu().T
    head.classifier.scale.copy_(best_scale(cosines, held.labels))


def features_of(
    model: Model, split: Split, stop: threading.Event | None = None
) -> tuple[FeatureSet, HeldOut]:
    """Run a new model's extractor over the training and the validation pictures."""
    sets = [split.base_train, split.base_val, *([] if split.val is None else [split.val])]
    with bar("computing features", sum(map(len, sets))) as show:

        def advance(pictures: int) -> None:
            if stop is not None and stop.is_set():
                raise Stopped("stopped while features were computed")
            show(pictures, "")

        learned, held, *novel = (extract(model, images, advance) for images in sets)
    return learned, (novel[0] if novel else None, held)


@torch.no_grad()
def solve_on_training_pictures(
    model: Model, learned: FeatureSet, held_out: HeldOut
) -> tuple[FeatureSet, HeldOut]:
    """Centre and solve a new model, and choose its τ; return the features less the centre."""
    centre = balanced_mean(learned.features, learned.labels)
    require_finite(model, centre)
    model.centre.copy_(centre)
    model.replace_generator("ridge")
    learned, held = _less(learned, centre), _less(held_out[1], centre)
    novel = None if held_out[0] is None else _less(held_out[0], centre)
    solve_base(model, learned)
    fit_scale(model, held)
    return learned, (novel, held if novel else replace(held, support=learned))


def _less(some: FeatureSet, centre: Tensor) -> FeatureSet:
    return replace(some, features=some.features - centre)


def solve_on_all_pictures(model: Model, learned: FeatureSet, held: FeatureSet) -> None:
    """Solve the model again with the validation pictures too; test pictures stay held out."""
    features, labels = (
        torch.cat([getattr(some, name) for some in (learned, held)]) for name in ("features", "labels")
    )
    solve_base(model, replace(learned, features=features, labels=labels))
