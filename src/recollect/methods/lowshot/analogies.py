"""Hallucination by analogies (Hariharan & Girshick, 2017), the tables' "w/ H".

Centroids a₁, a₂ of one base category and b₁, b₂ of another are an analogy if a₂ − a₁ and b₂ − b₁ point the
same way. A network learns to complete it, from (a₁, b₁, b₂) to a₂. Applied to an example of a novel category,
it makes further examples; then follows logistic regression.
"""

import warnings

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recollect.evaluation.lowshot import Taught, Teach
from recollect.methods.lowshot.logistic import logistic_teach
from recollect.methods.lowshot.system import Base, StageOneKind, System, descend
from recollect.training.config import LowShot
from recollect.training.loop import step_seed

ERROR_WEIGHT = 10.0  # of the mean squared error beside the cross-entropy
_BATCH = 256
_PARTNERS = 4  # categories in which the like of a category's differences is sought


class AnalogyLogistic(System):
    """Logistic regression on examples that are filled up with completed analogies."""

    mixed = True

    def __init__(self, key: str, title: str, stage1: StageOneKind) -> None:
        self.key, self.title, self.stage1 = key, title, stage1

    def learn(self, base: Base, shots: tuple[int, ...], recipe: LowShot, seed: int) -> Teach:  # noqa: ARG002
        """Find analogies, learn to complete them, and fit the base categories."""
        centres = centroids(base, recipe.centroids, seed)
        found = find_analogies(centres, _partners(base.categories, seed))
        if not len(found):  # one centroid of each category has no differences
            return logistic_teach(base, recipe, seed)
        complete = learn_to_complete(base, centres, found, recipe, seed)
        classify = logistic_teach(base, recipe, seed)
        changes = centres[found[:, 2:, 0], found[:, 2:, 1]].to(base.device)  # (analogies, 2, d): b₁, b₂

        def teach(support: Tensor, columns: Tensor) -> Taught:
            return classify(fill_up(support, changes, complete, recipe.fill, seed), columns)

        return teach


class Completion(nn.Module):
    """An MLP of three layers: (a₁, b₁, b₂) → a₂, which is not negative, as features after a ReLU are."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(3 * width, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
        )

    def forward(self, first: Tensor, other_first: Tensor, other_second: Tensor) -> Tensor:
        """Return a₂ for a₁, b₁, b₂, each (…, d)."""
        found: Tensor = self.layers(torch.cat([first, other_first, other_second], dim=-1))
        return found


def centroids(base: Base, count: int, seed: int) -> Tensor:
    """Return k-means centroids of every base category, at most one for four pictures: (k, c, d)."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    smallest = int(torch.bincount(base.labels, minlength=base.categories).min())
    count = max(1, min(count, smallest // 4))
    found = []
    for category in range(base.categories):
        base.check()
        own = base.take(torch.nonzero(base.labels == category).squeeze(1)).cpu().numpy()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different pictures than centroids
            fitted = KMeans(count, n_init=1, max_iter=50, random_state=seed).fit(own)
        found.append(torch.from_numpy(fitted.cluster_centers_.astype(np.float32)))
    return torch.stack(found)


def _partners(categories: int, seed: int) -> Tensor:
    """Draw other categories for every category: (k, partners)."""
    rng = np.random.default_rng([seed, 5])
    count = min(_PARTNERS, categories - 1)
    steps = np.stack([1 + rng.permutation(categories - 1)[:count] for _ in range(categories)])
    return torch.from_numpy((np.arange(categories)[:, None] + steps) % categories)


def find_analogies(centres: Tensor, partners: Tensor) -> Tensor:
    """Return analogies a₁, a₂, b₁, b₂ between centroids (k, c, d), each as (category, centroid): (n, 4, 2).

    For every two centroids of a category and every partner of it (k, p), the two centroids of the partner
    whose difference has the highest cosine with theirs, if that is positive.
    """
    count = centres.shape[1]
    first, second = torch.nonzero(~torch.eye(count, dtype=torch.bool), as_tuple=True)
    found = []
    for category, others in enumerate(partners.tolist()):
        own = F.normalize(centres[category, second] - centres[category, first], dim=1)
        for other in others:
            theirs = F.normalize(centres[other, second] - centres[other, first], dim=1)
            best = [(some @ theirs.T).max(dim=1) for some in torch.split(own, 2048)]
            cosine = torch.cat([one.values for one in best])
            place = torch.cat([one.indices for one in best])
            kept = cosine > 0
            ends = (first[kept], second[kept], first[place[kept]], second[place[kept]])
            owner = torch.tensor([category, category, other, other]).expand(int(kept.sum()), -1)
            found.append(torch.stack([owner, torch.stack(ends, dim=1)], dim=2))
    return torch.cat(found)


def completion_loss(completed: Tensor, wanted: Tensor, scores: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy under the classifier of stage 1 + 10 · the squared error."""
    return F.cross_entropy(scores, targets) + ERROR_WEIGHT * F.mse_loss(completed, wanted)


def learn_to_complete(
    base: Base, centres: Tensor, analogies: Tensor, recipe: LowShot, seed: int
) -> Completion:
    """Learn from analogies (n, 4, 2) between centroids (k, c, d)."""
    torch.manual_seed(step_seed(seed, 5, -1))
    complete = Completion(centres.shape[2]).to(base.device)
    classifier = base.head.classifier

    def loss(step: int) -> Tensor:
        rows = torch.from_numpy(np.random.default_rng([seed, 6, step]).integers(len(analogies), size=_BATCH))
        some = analogies[rows]
        first, second, other_first, other_second = (
            centres[some[:, end, 0], some[:, end, 1]].to(base.device) for end in range(4)
        )
        completed = complete(first, other_first, other_second)
        scores = classifier(completed / base.factor)  # which learned from features as they were
        return completion_loss(completed, second, scores, some[:, 0, 0].to(base.device))

    descend(complete, loss, recipe, base, seed, adam=True)
    return complete


@torch.no_grad()
def fill_up(support: Tensor, changes: Tensor, complete: Completion, fill: int, seed: int) -> Tensor:
    """Add completed analogies to a support (draws, n, shots, d) until it has `fill` examples: (…, fill, d).

    Each starts from a random example of its category and makes a random change (m, 2, d).
    """
    draws, novel, shots, _ = support.shape
    if shots >= fill:
        return support
    draw = torch.Generator().manual_seed(step_seed(seed, 7, shots))
    shape = (draws, novel, fill - shots)
    start = torch.randint(shots, shape, generator=draw).to(support.device)
    change = changes[torch.randint(len(changes), shape, generator=draw).to(support.device)]
    seeds = support.gather(2, start.unsqueeze(3).expand(-1, -1, -1, support.shape[3]))
    return torch.cat([support, complete(seeds, change[..., 0, :], change[..., 1, :])], dim=2)
