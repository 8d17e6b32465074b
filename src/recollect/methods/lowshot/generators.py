"""The paper's generators on the benchmark: plain means, averages and attention, with dropout of features."""

import copy

import torch
from torch import Tensor

from recollect.evaluation.lowshot import LinearTaught, Teach, TeachByTerms
from recollect.methods.lowshot.system import Base, LargeEpisodes, System, descend
from recollect.model.generator import build_generator
from recollect.model.model import Head
from recollect.model.spec import GeneratorKind
from recollect.training.config import LowShot
from recollect.training.episodes import drop_out, episode_loss, pictures_of
from recollect.training.loop import step_seed


class Generator(System):
    """A generator of the paper's on the cosine classifier; W_base and τ go on learning with it (stage 2)."""

    stage1 = "cosine"
    kind: GeneratorKind

    def __init__(self, key: str, title: str, kind: GeneratorKind, *, mixed: bool = False) -> None:
        self.key, self.title, self.kind, self.mixed = key, title, kind, mixed

    def learn(self, base: Base, shots: tuple[int, ...], recipe: LowShot, seed: int) -> Teach:
        """Learn from episodes in which most base categories act as novel ones."""
        torch.manual_seed(step_seed(seed, 3, -1))
        width = base.features.shape[1]
        generator = build_generator(
            self.kind, base.categories, width, recipe.sharpness, shot_aware=self.mixed
        )
        classifier = copy.deepcopy(base.head.classifier).requires_grad_()
        head = Head(classifier, generator).to(base.device)
        if self.kind != "mean":
            episodes = LargeEpisodes(base, shots, recipe, seed)

            def loss(step: int) -> Tensor:
                tasks = episodes[step]
                features = drop_out(base.take(pictures_of(tasks)), recipe.dropout)
                return episode_loss(head, tasks, features)[0]

            descend(head, loss, recipe, base, seed)
        return teach_with(head)


def teach_with(head: Head) -> Teach:
    """Return what teaches with a head's generator; its memory holds all base categories."""
    classifier = head.classifier

    def teach(terms: Tensor, columns: Tensor) -> LinearTaught:
        novel = classifier.view(head.generator.compose(terms))
        base = classifier.view(classifier.weight)[columns.to(terms.device)]
        scale = classifier.scale
        return LinearTaught(scale * base.unsqueeze(0), scale * novel, cosine=classifier.kind == "cosine")

    return TeachByTerms(head.terms, teach)
