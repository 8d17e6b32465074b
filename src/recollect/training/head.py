"""Heads on given features, learned in both stages or solved: no pictures, no extractor, no run folder."""

import threading
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recollect.data.tasks import TaskSampler, TaskShape
from recollect.features import FeatureSet
from recollect.model.classifier import Classifier, unit
from recollect.model.generator import AttentionGenerator, MeanGenerator, RidgeGenerator, build_generator
from recollect.model.model import Head
from recollect.model.spec import Calibration, GeneratorKind
from recollect.system.progress import track
from recollect.training.calibration import calibrate
from recollect.training.config import StageTwo
from recollect.training.episodes import Episodes, episode_loss, pictures_of
from recollect.training.ridge import fit_scale, solve_base
from recollect.training.schedules import OneCycle
from recollect.training.stage1 import BalancedBatches

Ints = npt.NDArray[np.int64]
_RECIPE = StageTwo(episodes=4)
_BATCH = 128
_HELD_BACK = 4  # one example in so many chooses τ and the calibration of a head that is solved
_ENOUGH = 4  # categories, and examples of each, for a calibration
_seeding = threading.Lock()  # torch's random state belongs to the whole process


def train_head(
    features: Tensor,
    labels: Ints,
    kind: GeneratorKind,
    *,
    steps: int,
    peak: float,
    seed: int,
    bar: str | None = None,
) -> Head:
    """Learn W_base and τ, then the generator on episodes: features (n, d), labels 0 … k−1 → a cosine head.

    Each stage takes `steps` steps; `bar` is the title of a progress bar. Where fewer than two
    categories have the two examples needed to act as novel ones, no episode can be drawn, and the generator
    is plain means.
    """
    players = _players(np.bincount(labels))
    # The sampler counts categories from 0: those that act as novel ones come first while the head learns.
    order = np.argsort(~players, kind="stable")
    place = np.argsort(order)
    labels = place[labels]
    categories, width = len(players), features.shape[1]
    with _seeding, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        generator = build_generator(kind if players.sum() > 1 else "mean", categories, width)
        head = Head(Classifier(categories, width, "cosine"), generator)
    _learn_base(head, features, labels, steps, peak, seed)
    if not isinstance(generator, MeanGenerator):
        if isinstance(generator, AttentionGenerator):  # keys start from W_base
            with torch.no_grad():
                generator.keys.copy_(head.classifier.weight)
        learn_generator(head, features, labels, steps=steps, peak=peak, seed=seed, bar=bar)
    with torch.no_grad():
        head.classifier.weight.copy_(head.classifier.weight[place])
        if isinstance(generator, AttentionGenerator):
            generator.keys.copy_(generator.keys[place])
    return head


def solve_head(features: Tensor, labels: Ints, seed: int) -> tuple[Head, Calibration]:
    """Solve a head with the generator `ridge`: features (n, d), labels 0 … k−1 → a cosine head.

    One in four examples of each category first chooses τ and the calibration, then everything is solved with
    all of them. A calibration takes four categories or more, each of four examples or more.
    """
    sizes = np.bincount(labels)
    names = tuple(str(label) for label in range(len(sizes)))
    with _seeding, torch.random.fork_rng(devices=[]):  # nothing of what is drawn is kept
        classifier = Classifier(len(sizes), features.shape[1], "cosine")
    head = Head(classifier, RidgeGenerator(features.shape[1]))
    everything = FeatureSet(features, torch.from_numpy(labels), names)
    held = np.zeros(len(labels), bool)
    rng = np.random.default_rng(seed)
    for label, size in enumerate(sizes):
        held[rng.permutation(np.flatnonzero(labels == label))[: size // _HELD_BACK]] = True
    calibration = Calibration()
    if held.any():
        parts = [torch.from_numpy(np.flatnonzero(some)) for some in (~held, held)]
        learned, asked = (
            replace(everything, features=features[rows], labels=everything.labels[rows]) for rows in parts
        )
        solve_base(head, learned)
        fit_scale(head, asked)
        if len(sizes) >= _ENOUGH and sizes.min() >= _ENOUGH:
            calibration = calibrate(head, None, replace(asked, support=learned), seed=seed)
    solve_base(head, everything)
    return head, calibration


def _players(sizes: Ints) -> npt.NDArray[np.bool_]:
    """Return which categories act as novel ones: those with enough examples for support and queries.

    The smallest player limits the shots and queries of every episode, so a category that is smaller than
    most only stands by as a base category.
    """
    wanted = min(_RECIPE.max_shots + _RECIPE.queries, int(np.median(sizes)))
    return sizes >= max(2, wanted)


def _learn_base(head: Head, features: Tensor, labels: Ints, steps: int, peak: float, seed: int) -> None:
    """Stage 1: classify balanced batches; W_base starts from the categories' means, so few steps suffice."""
    targets = torch.from_numpy(labels)
    with torch.no_grad():
        sums = torch.zeros_like(head.classifier.weight).index_add_(0, targets, unit(features))
        head.classifier.weight.copy_(unit(sums))
    batches = BalancedBatches(labels, _BATCH, seed)

    def loss(step: int) -> Tensor:
        rows = torch.from_numpy(batches[step])
        return F.cross_entropy(head.classifier(features[rows]), targets[rows])

    _descend(head.classifier, loss, steps, peak)


def learn_generator(
    head: Head, features: Tensor, labels: Ints, *, steps: int, peak: float, seed: int, bar: str | None = None
) -> None:
    """Stage 2: episodes among the categories with enough examples, which must be the head's first.

    W_base and τ stay as they are: the other categories are only ever wrong answers in these episodes.
    """
    players = int(_players(np.bincount(labels)).sum())
    if players < 2:
        return  # no episode can be drawn
    rows = np.flatnonzero(labels < players)
    features = features[torch.from_numpy(rows)]
    sampler = TaskSampler(labels[rows], None, base_names=[str(label) for label in range(players)])
    wanted = TaskShape(_RECIPE.ways, _RECIPE.max_shots, _RECIPE.queries, _RECIPE.base_queries)
    shape = sampler.fit(wanted)
    episodes = Episodes(sampler, shape, count=_RECIPE.episodes, views=1, mixed=True, seed=seed)

    def loss(step: int) -> Tensor:
        tasks, _ = episodes[step]
        return episode_loss(head, tasks, features[pictures_of(tasks)])[0]

    _descend(head.generator, loss, steps, peak, bar)


def _descend(
    learned: nn.Module, loss: Callable[[int], Tensor], steps: int, peak: float, bar: str | None = None
) -> None:
    schedule = OneCycle(kind="one-cycle", peak=peak)
    optimizer = torch.optim.SGD(
        learned.parameters(),
        lr=0.0,
        momentum=_RECIPE.momentum,
        nesterov=True,
        weight_decay=_RECIPE.weight_decay,
    )
    for step in track(range(steps), bar, steps) if bar else range(steps):
        optimizer.param_groups[0]["lr"] = schedule.rate((step + 0.5) / steps)
        optimizer.zero_grad()
        loss(step).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
