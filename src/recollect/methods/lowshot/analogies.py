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
from recollect.methods.lowshot.logistic import logistic_teach, together
from recollect.methods.lowshot.system import Base, StageOneKind, System, descend, draws_at_once
from recollect.training.config import LowShot
from recollect.training.loop import step_seed

ERROR_WEIGHT = 10.0  # of the mean squared error beside the cross-entropy
_BATCH = 256
_EQUAL = 1e-4  # of their length, that equal centroids may be apart
_ROWS = 256  # differences that are compared with all others at a time
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
        changes = Changes(centres, found)

        def teach(support: Tensor, columns: Tensor) -> Taught:
            draw = torch.Generator().manual_seed(step_seed(seed, 7, support.shape[2]))
            parts = torch.split(support, draws_at_once(support, recipe.fill))
            return together(
                [classify(fill_up(some, changes, complete, recipe.fill, draw), columns) for some in parts]
            )

        return teach


class Changes:
    """The second halves b₁, b₂ of analogies (n, 4, 2) between centroids (k, c, d).

    There are millions of analogies between the centroids of ImageNet: only what is asked for is gathered.
    """

    def __init__(self, centres: Tensor, analogies: Tensor) -> None:
        self.centres, self.places = centres, analogies[:, 2:]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Return b₁, b₂ at rows of any shape: (…) → (…, 2, d)."""
        places = self.places[rows].long()
        return self.centres[places[..., 0], places[..., 1]]


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
    whose difference has the highest cosine with theirs, if that is positive; what is found for a difference
    is found, turned round, for its opposite. Of 32 bits each, for there may be k · p · c² of them.
    """
    first, second = torch.triu_indices(centres.shape[1], centres.shape[1], offset=1)
    # One block from the start: many pieces between large temporary ones would leave holes in memory.
    found = torch.empty(2 * len(first) * partners.numel(), 4, 2, dtype=torch.int)
    count = 0
    for category, others in enumerate(partners.tolist() if len(first) else []):
        own = centres[category, second] - centres[category, first]
        for other in others:
            cosine, ends = _most_alike(own, centres[other])
            ends = torch.cat([torch.stack([first, second], dim=1), ends], dim=1)[cosine > 0]
            ends = torch.cat([ends, ends[:, [1, 0, 3, 2]]])
            here = found[count : count + len(ends)]
            here[..., 0] = torch.tensor([category, category, other, other])
            here[..., 1] = ends
            count += len(ends)
    return found[:count]


def _most_alike(own: Tensor, theirs: Tensor) -> tuple[Tensor, Tensor]:
    """Find for differences (m, d) the two centroids of (c, d) whose difference is the most like each.

    Returns the cosines (m,) and which centroids they are (m, 2). A product with a difference is a difference
    of products, of which there are few.
    """
    count = len(theirs)
    lengths = (theirs.unsqueeze(0) - theirs.unsqueeze(1)).norm(dim=2)
    # Centroids of repeated pictures are almost equal: what is left of their difference is rounding.
    shares = torch.where(lengths > _EQUAL * theirs.norm(dim=1).max(), 1 / lengths, 0)
    found = [
        ((some.unsqueeze(1) - some.unsqueeze(2)) * shares).flatten(1).max(dim=1)
        for some in torch.split(F.normalize(own, dim=1) @ theirs.T, _ROWS)
    ]
    place = torch.cat([one.indices for one in found])
    ends = torch.stack([place // count, place % count], dim=1)
    return torch.cat([one.values for one in found]), ends


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
        some = analogies[rows].long()
        first, second, other_first, other_second = (
            centres[some[:, end, 0], some[:, end, 1]].to(base.device) for end in range(4)
        )
        completed = complete(first, other_first, other_second)
        scores = classifier(completed / base.factor)  # which learned from features as they were
        return completion_loss(completed, second, scores, some[:, 0, 0].to(base.device))

    descend(complete, loss, recipe, base, seed, adam=True)
    return complete


@torch.no_grad()
def fill_up(
    support: Tensor, changes: Changes, complete: Completion, fill: int, draw: torch.Generator
) -> Tensor:
    """Add completed analogies to a support (draws, n, shots, d) until it has `fill` examples: (…, fill, d).

    Each starts from a random example of its category and makes a random change. One draw at a time: of the
    network's inputs and layers, those of a single draw are in memory.
    """
    _, novel, shots, width = support.shape
    if shots >= fill:
        return support
    filled = support.new_empty(len(support), novel, fill, width)
    filled[:, :, :shots] = support
    for examples, place in zip(support, filled, strict=True):
        start = torch.randint(shots, (novel, fill - shots), generator=draw)
        change = changes[torch.randint(len(changes), start.shape, generator=draw)].to(support.device)
        seeds = examples.gather(1, start.to(support.device).unsqueeze(2).expand(-1, -1, width))
        place[:, shots:] = complete(seeds, change[..., 0, :], change[..., 1, :])
    return filled
