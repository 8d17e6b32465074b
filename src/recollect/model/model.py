"""A whole model (extractor, classifier and generator), and its head alone."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recollect.model.classifier import Classifier, dot_scores
from recollect.model.extractors import Extractor, build_extractor
from recollect.model.generator import FIRST_SHARPNESS, Generator, Memory, build_generator
from recollect.model.spec import GeneratorKind, LearnerSpec, ModelSpec

# Makes what a method adds to a model, given what it is for and the width of features.
Learner = Callable[[LearnerSpec, int], nn.Module]


class Head(nn.Module):
    """C and G together: everything that works on features, wherever they come from."""

    def __init__(self, classifier: Classifier, generator: Generator) -> None:
        super().__init__()
        self.classifier = classifier
        self.generator = generator

    def terms(self, support: Tensor, hidden: Tensor | None = None) -> Tensor:
        """Return each example's term of w' (…, d), or (…, 2d) where the generator is shot-aware.

        `hidden` (tasks, k) marks base categories that act as novel ones.
        """
        view = self.classifier.view
        return self.generator.terms(view(support), Memory(view(self.classifier.weight), hidden))

    def joint_scores(
        self, support: Tensor, queries: Tensor, *, hidden: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Score queries (tasks, q, d) over W* = W_base ∪ W_novel: base (tasks, q, k), novel (tasks, q, ways).

        Base categories that act as novel ones in a task (`hidden`) score −∞ there: they leave the softmax,
        the attention memory and the keys.
        """
        view, scale = self.classifier.view, self.classifier.scale
        seen, vectors = view(queries), view(self.classifier.weight)
        terms = self.generator.terms(view(support), Memory(vectors, hidden))
        base = dot_scores(seen, vectors, scale)
        novel = dot_scores(seen, view(self.generator.compose(terms)), scale)
        if hidden is not None:
            base = base.masked_fill(hidden.unsqueeze(1), -torch.inf)
        return base, novel


class Model(Head):
    """F, C and G together; `spec` says which, and how pictures are prepared for them."""

    mean: Tensor
    std: Tensor
    centre: Tensor  # of centred models only
    learner: nn.Module | None  # a method's own

    def __init__(
        self,
        spec: ModelSpec,
        extractor: Extractor | None = None,
        learner: Learner | None = None,
    ) -> None:
        """Build what `spec` says, around an `extractor` where one is given.

        `learner` makes what a method adds of its own.
        """
        size, count = spec.preprocessing.size, len(spec.categories)
        if extractor is None:
            extractor, width = build_extractor(spec.extractor, last_relu=spec.last_relu, size=size)
        else:
            width = extractor.feature_size(size)
        super().__init__(
            Classifier(count, width, spec.classifier),
            build_generator(spec.generator, count, width, shot_aware=spec.shot_aware),
        )
        self.spec = spec
        self.extractor, self.width = extractor, width
        self.learner = learner(spec.learner, width) if learner and spec.learner else None
        self.register_buffer("mean", torch.tensor(spec.preprocessing.mean), persistent=False)
        self.register_buffer("std", torch.tensor(spec.preprocessing.std), persistent=False)
        self.register_buffer("centre", torch.zeros(width), persistent=spec.centred)

    def replace_generator(
        self, kind: GeneratorKind, sharpness: float = FIRST_SHARPNESS, *, shot_aware: bool = False
    ) -> None:
        """Put a new, untrained generator of the given kind in the place of the present one."""
        self.spec = self.spec.model_copy(update={"generator": kind, "shot_aware": shot_aware})
        count = len(self.spec.categories)
        generator = build_generator(kind, count, self.width, sharpness, shot_aware=shot_aware)
        self.generator = generator.to(self.mean.device)

    def embed(self, pixels: Tensor, extractor: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """z = F(x | θ), less the mean feature of a centred model: uint8 pixels (n, size, size, 3) → (n, d).

        Unless its extractor learns, z is the mean over everything that `appearances` shows of a picture.
        `extractor` may be what `for_inference` or a training made of the model's own.
        """
        extractor = extractor or self.extractor
        # (n, h, w, 3) seen as (n, 3, h, w) already is channels-last: no copy.
        seen = pixels.to(self.mean.dtype).permute(0, 3, 1, 2)
        shown = [seen] if self.extractor.training else appearances(seen, self.spec)
        mean, std = self.mean.view(3, 1, 1), self.std.view(3, 1, 1)
        features = [extractor((one - mean) / std) for one in shown]
        return (features[0] if len(features) == 1 else sum(features) / len(features)) - self.centre

    @contextmanager
    def unshifted(self) -> Iterator[None]:
        """For a while, show pictures where they are and not shifted, which takes a fifth of the time.

        Meanwhile nothing may change the model's `spec`, or save it.
        """
        spec = self.spec
        self.spec = spec.model_copy(update={"shifted": 0})
        try:
            yield
        finally:
            self.spec = spec


def appearances(pictures: Tensor, spec: ModelSpec) -> list[Tensor]:
    """Return how a model looks at pictures (n, 3, h, w): in place, shifted and mirrored, all of one shape.

    What moves out of the picture is lost, and black comes in, as in the random crops of training.
    """
    height, width, by = *pictures.shape[2:], spec.shifted
    shown = [pictures]
    if by:
        around = F.pad(pictures, (by, by, by, by))
        places = (0, by), (by, 0), (by, 2 * by), (2 * by, by)
        shown += [around[:, :, top : top + height, left : left + width] for top, left in places]
    return shown + [one.flip(3) for one in shown] if spec.mirrored else shown
