"""The interface of a system of the low-shot benchmark, and learning from episodes over saved features.

A system learns from the features of base pictures, once for each number of shots or once for all of them. It
is then taught all novel categories of many draws at once, and scores queries over base and novel categories.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from recollect.data.tasks import Tasks, TaskSampler, TaskShape
from recollect.errors import Diverged
from recollect.evaluation.lowshot import SUPPORT_VALUES, LinearTaught, Taught, Teach
from recollect.model.model import Head
from recollect.system.progress import track
from recollect.training.config import LowShot
from recollect.training.loop import step_seed

StageOneKind = Literal["cosine", "dot", "sgm", "batch-sgm"]  # whose features a system stands on
EACH = 20  # training pictures that stand for a base category in an episode
_ROWS = 1 << 13  # features that are looked at together


@dataclass(frozen=True)
class Base:
    """What systems learn from: the features of base training pictures, and the head of stage 1.

    `factor` scales features to a mean square of 1, so that rates suit every extractor.
    """

    features: Tensor  # (n, d), mapped, in half precision
    labels: Tensor  # (n,)
    head: Head
    device: torch.device
    factor: float = 1.0
    check: Callable[[], None] = lambda: None  # called between steps; may raise to end the work

    @property
    def categories(self) -> int:
        """Return how many base categories there are."""
        return len(self.head.classifier.weight)

    def take(self, rows: Tensor) -> Tensor:
        """Return scaled features at rows of any shape: (…) → (…, d)."""
        return self.factor * self.features[rows].to(self.device).float()

    def means(self, embed: Callable[[Tensor], Tensor] = lambda z: z) -> Tensor:
        """Return the mean of every category's embedded features, (k, d)."""
        counts = torch.bincount(self.labels, minlength=self.categories).to(self.device)
        sums = torch.zeros(())
        with torch.no_grad():
            for rows in torch.split(torch.arange(len(self.labels)), _ROWS):
                self.check()
                embedded = embed(self.take(rows))
                empty = embedded.new_zeros(self.categories, embedded.shape[1])
                sums = sums.to(self.device) + empty.index_add_(0, self.labels[rows].to(self.device), embedded)
        return sums / counts.unsqueeze(1)


def draws_at_once(support: Tensor, fill: int) -> int:
    """Return how many draws of a support (draws, n, shots, d) to fill up to `fill` examples at a time."""
    _, novel, shots, width = support.shape
    return max(1, SUPPORT_VALUES // max(1, novel * max(fill, shots) * width))


def root_mean_square(features: Tensor) -> float:
    """Return the root of the mean square of features (n, d) that need not fit into memory."""
    parts = [some.float().square().sum(dtype=torch.double) for some in torch.split(features, _ROWS)]
    mean = torch.stack(parts).sum() / features.numel()
    return max(float(mean.sqrt()), 1e-12)


class System(ABC):
    """One row of the table."""

    key: str
    title: str
    stage1: StageOneKind
    mixed = False  # whether one learned system serves every number of shots

    @abstractmethod
    def learn(self, base: Base, shots: tuple[int, ...], recipe: LowShot, seed: int) -> Teach:
        """Learn for these numbers of shots; return what teaches novel categories."""


def scaled(teach: Teach, factor: float) -> Teach:
    """Return the same for features that are not scaled yet."""
    if factor == 1:
        return teach

    def teach_scaled(support: Tensor, columns: Tensor) -> Taught:
        taught = teach(factor * support, columns)
        if isinstance(taught, LinearTaught):
            by = 1 if taught.cosine else factor
            return taught._replace(base=by * taught.base, novel=by * taught.novel)
        return _Scaled(taught, factor)

    return teach_scaled


@dataclass(frozen=True)
class _Scaled:
    taught: Taught
    factor: float

    def scores(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        return self.taught.scores(self.factor * queries)


class LargeEpisodes:
    """Episodes by step, one each: many base categories act as novel ones, of one number of shots."""

    def __init__(self, base: Base, shots: tuple[int, ...], recipe: LowShot, seed: int) -> None:
        labels = base.labels.numpy()
        self.sampler = TaskSampler(labels, None, base_names=[str(label) for label in range(base.categories)])
        self.shots, self.seed = shots, seed
        ways = min(max(1, round(recipe.share * base.categories)), base.categories - 1)
        smallest = int(np.bincount(labels).min())
        queries = max(1, min(recipe.queries, smallest - max(shots)))
        self.shapes = {count: TaskShape(ways, count, queries, max(1, ways * queries // 2)) for count in shots}
        for shape in self.shapes.values():
            self.sampler.check(shape)

    def __getitem__(self, step: int) -> Tasks:
        seed = [self.seed, 3, step]
        shots = self.shots[int(np.random.default_rng([*seed, 1]).integers(len(self.shots)))]
        return self.sampler.one(self.shapes[shots], seed)


@dataclass(frozen=True)
class Shown:
    """An episode as networks on features see it: base categories come first, then those that act as novel."""

    rest: Tensor  # (r,), the base categories that are left
    rest_rows: Tensor  # (r, EACH) examples of them
    rest_present: Tensor  # (r, EACH), which of these are not queries
    support: Tensor  # (w, shots, d)
    queries: Tensor  # (q, d)
    targets: Tensor  # (q,), among the r + w categories


def show(base: Base, tasks: Tasks, seed: int) -> Shown:
    """Gather the features of an episode."""
    hidden = tasks.hidden(base.categories)[0]
    rest = torch.nonzero(~hidden).squeeze(1)
    place = torch.cumsum(~hidden, 0) - 1
    asked = torch.cat([tasks.novel_queries[0], tasks.base_queries[0]])
    targets = torch.cat([len(rest) + tasks.novel_targets[0], place[tasks.base_targets[0]]])
    rows = _drawn_with_replacement(base.labels, rest, seed)
    present = ~torch.isin(rows, tasks.base_queries[0])
    present[~present.any(1)] = True  # a category of which nothing else was drawn
    return Shown(
        rest,
        rows,
        present.to(base.device),
        base.take(tasks.support[0]),
        base.take(asked),
        targets.to(base.device),
    )


def _drawn_with_replacement(labels: Tensor, categories: Tensor, seed: int) -> Tensor:
    """Draw `EACH` rows of every category: (r,) → (r, EACH)."""
    order = labels.argsort(stable=True)
    sizes = torch.bincount(labels)
    starts = sizes.cumsum(0) - sizes
    drawn = torch.rand(len(categories), EACH, generator=torch.Generator().manual_seed(seed))
    offset = (drawn * sizes[categories].unsqueeze(1)).long()
    return order[starts[categories].unsqueeze(1) + offset]


def descend(
    learned: nn.Module,
    loss: Callable[[int], Tensor],
    recipe: LowShot,
    base: Base,
    seed: int,
    *,
    adam: bool = False,
) -> None:
    """Take the recipe's steps; every step draws its random numbers from a seed of its own."""
    parameters: Iterable[nn.Parameter] = [one for one in learned.parameters() if one.requires_grad]
    optimizer: torch.optim.Optimizer = (
        torch.optim.Adam(parameters)
        if adam
        else torch.optim.SGD(
            parameters, momentum=recipe.momentum, nesterov=True, weight_decay=recipe.weight_decay
        )
    )
    first = recipe.schedule.rate(recipe.schedule.warm_up if recipe.schedule.kind == "one-cycle" else 0.0)
    factor = recipe.network_rate / first if adam else 1.0  # networks have the schedule's shape
    learned.train()
    for step in track(range(recipe.steps), "learning from features", recipe.steps):
        base.check()
        for group in optimizer.param_groups:
            group["lr"] = factor * recipe.schedule.rate((step + 0.5) / recipe.steps)
        torch.manual_seed(step_seed(seed, 3, step))
        optimizer.zero_grad()
        value = loss(step)
        value.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step % 50 == 0 or step == recipe.steps - 1:
            _require_finite(value, learned, "network_rate" if adam else "schedule.peak")
    learned.eval()


def _require_finite(loss: Tensor, learned: nn.Module, rate: str) -> None:
    if not (loss.isfinite() and all(weight.isfinite().all() for weight in learned.parameters())):
        raise Diverged(f"learning from saved features diverged: lower lowshot.{rate}")
