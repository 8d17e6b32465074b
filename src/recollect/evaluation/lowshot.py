"""The low-shot benchmark: all novel categories at once, many draws of their examples, top-5 and top-1.

All draws are scored by one product. A query is right if fewer than k categories score higher than its own,
which counting finds out without sorting. Three figures (Wang et al., 2018): Novel asks pictures of novel
categories among these; All asks all pictures among all categories of a half; All with prior does so with
probabilities inside novel categories times μ and inside base categories times 1 − μ.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from recollect.data.tasks import Ints
from recollect.errors import Diverged
from recollect.features import FeatureSet
from recollect.model.classifier import unit

SHOTS = (1, 2, 5, 10, 20)
TOP = (5, 1)
FIGURES = ("novel", "all", "prior")
DRAWS = 100
PRIORS = tuple(number / 100 for number in range(1, 100))  # of which μ is chosen
_CPU = torch.device("cpu")
SUPPORT_VALUES = 1 << 25  # of examples that are taught at a time
# Few enough at a time to stay near the processor:
_VECTOR_VALUES = 1 << 20  # of novel categories
_SCORES = 1 << 21
_ROWS = 1 << 12  # examples whose terms are computed


class Taught(Protocol):
    """A system that has been taught the novel categories of some draws."""

    def scores(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        """Score queries (q, d): base (q, draws or 1, b) and novel categories (q, draws, n)."""


class LinearTaught(NamedTuple):
    """Scores that are products with vectors, and biases: base (draws or 1, b, d), novel (draws, n, d)."""

    base: Tensor
    novel: Tensor
    base_bias: Tensor | None = None  # (draws or 1, b)
    novel_bias: Tensor | None = None  # (draws, n)
    cosine: bool = False  # whether queries are normalised

    def scores(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        """Score queries, with one product for all draws."""
        seen = unit(queries) if self.cosine else queries
        return _products(seen, self.base, self.base_bias), _products(seen, self.novel, self.novel_bias)

    def parts(self) -> Iterator["LinearTaught"]:
        """Yield the same for a few draws at a time: products with fewer vectors take half the time."""
        draws, novel, width = self.novel.shape
        at_once = max(1, _VECTOR_VALUES // (novel * width))
        for start in range(0, draws, at_once):
            some = slice(start, start + at_once)
            yield LinearTaught(
                _of_draws(self.base, some),
                _of_draws(self.novel, some),
                None if self.base_bias is None else _of_draws(self.base_bias, some),
                None if self.novel_bias is None else _of_draws(self.novel_bias, some),
                self.cosine,
            )


def _of_draws(values: Tensor, some: slice) -> Tensor:
    return values if len(values) == 1 else values[some]


def _products(queries: Tensor, vectors: Tensor, bias: Tensor | None) -> Tensor:
    scores = (queries @ vectors.flatten(0, 1).mT).view(len(queries), *vectors.shape[:2])
    return scores if bias is None else scores.add_(bias)


# Examples (draws, n, shots, d), and the half's base categories among all of them (b,) → what scores queries.
Teach = Callable[[Tensor, Tensor], Taught]


@dataclass(frozen=True)
class TeachByTerms:
    """A `Teach` that needs of each example a term of its own, which is computed once for all draws."""

    terms: Callable[[Tensor], Tensor]  # (…, d) → (…, any)
    teach: Teach  # from terms

    def __call__(self, support: Tensor, columns: Tensor) -> Taught:
        """Teach the features of examples."""
        return self.teach(self.terms(support), columns)


Right = dict[str, Tensor]  # by figure and k ("novel top-5"): right answers of each draw, (draws,)
Prior = dict[int, float]  # μ by k


@dataclass(frozen=True)
class HalfFeatures:
    """The features of one half of the benchmark."""

    columns: Tensor  # (b,), its base categories among all of them
    base: FeatureSet  # queries
    examples: FeatureSet
    novel: FeatureSet  # queries
    device: torch.device = _CPU  # where they are compared

    @property
    def asked(self) -> dict[str, int]:
        """Return how many queries each figure has."""
        novel, base = len(self.novel.labels), len(self.base.labels)
        return {"novel": novel, "all": novel + base, "prior": novel + base}


def named(figure: str, k: int) -> str:
    """Return the name of a figure of top-k accuracy."""
    return f"{figure} top-{k}"


def draw_examples(labels: Ints, draws: int, most: int, seed: int) -> Tensor:
    """Draw `most` different examples of every category for each draw: (draws, categories, most).

    The first N' of them are the draw for N' shots; the first draws are the same however many there are.
    """
    categories = int(labels.max()) + 1
    rows = [np.flatnonzero(labels == category) for category in range(categories)]
    drawn = np.empty((draws, categories, most), np.int64)
    for draw in range(draws):
        rng = np.random.default_rng([seed, draw])
        for category, own in enumerate(rows):
            drawn[draw, category] = rng.choice(own, most, replace=False)
    return torch.from_numpy(drawn)


@torch.inference_mode()
def count_right(teach: Teach, half: HalfFeatures, examples: Tensor, shots: int, prior: Prior) -> Right:
    """Return how many queries are answered rightly in each draw, by every figure.

    Examples are those of `draw_examples`.
    """
    found = []
    for taught in _taught(teach, half, examples, shots):
        right = {
            named(figure, k): torch.zeros(1, dtype=torch.long, device=half.device)
            for figure in FIGURES
            for k in TOP
        }
        for compared in _compare(taught, half):
            above = compared.own + compared.others_above(compared.target)
            weighed = compared.target + compared.evidence
            for k in TOP:
                shift = _log_odds(prior[k]) * (1 if compared.novel else -1)
                by_prior = compared.own + compared.others_above(weighed + shift)
                ranks = {"all": above, "prior": by_prior} | (
                    {"novel": compared.own} if compared.novel else {}
                )
                for figure, rank in ranks.items():
                    right[named(figure, k)] = right[named(figure, k)] + (rank < k).sum(0)
        found.append(right)
    return {name: torch.cat([right[name] for right in found]).cpu() for name in found[0]}


@torch.inference_mode()
def choose_prior(teach: Teach, half: HalfFeatures, examples: Tensor, shots: int) -> Prior:
    """Return the μ with the highest All with prior, for each k."""
    odds = torch.tensor([_log_odds(prior) for prior in PRIORS])
    right = {k: torch.zeros(len(PRIORS), dtype=torch.long) for k in TOP}
    for taught in _taught(teach, half, examples, shots):
        for compared in _compare(taught, half):
            for k in TOP:
                # A novel query is right from some log-odds on, a base query up to some.
                needed = compared.needed(k)
                needed = (needed if compared.novel else -needed).flatten().cpu().sort().values
                if compared.novel:
                    right[k] += torch.searchsorted(needed, odds)
                else:
                    right[k] += len(needed) - torch.searchsorted(needed, odds, right=True)
    return {k: PRIORS[int(counts.argmax())] for k, counts in right.items()}


def _taught(teach: Teach, half: HalfFeatures, examples: Tensor, shots: int) -> Iterator[Taught]:
    """Teach some draws at a time: as many as fit into memory."""
    examples, features = examples[:, :, :shots], half.examples.features
    if isinstance(teach, TeachByTerms):
        rows, places = examples.unique(return_inverse=True)  # type: ignore[no-untyped-call]
        if len(rows) * features.shape[1] <= SUPPORT_VALUES:  # of ImageNet's own, a few draws have more
            seen = (features[some].to(half.device).float() for some in torch.split(rows, _ROWS))
            features, examples, teach = torch.cat([teach.terms(some) for some in seen]), places, teach.teach
    at_once = max(1, SUPPORT_VALUES // (examples.shape[1] * shots * features.shape[1]))
    for some in torch.split(examples, at_once):
        taught = teach(features[some].to(half.device).float(), half.columns)
        yield from taught.parts() if isinstance(taught, LinearTaught) else (taught,)


@dataclass(frozen=True)
class _Compared:
    """Some queries, all novel or all base ones, against the categories of their own and of the other kind."""

    novel: bool
    own: Tensor  # (q, draws), how many categories of their own kind score higher
    target: Tensor  # (q, draws), the score of their own category
    evidence: Tensor  # (q, draws), log Σ exp of the other kind's scores less that of their own kind's
    other: Tensor  # (q, draws or 1, m), the other kind's scores

    def others_above(self, threshold: Tensor) -> Tensor:
        return self.other.shape[2] - _below(self.other, threshold)

    def needed(self, k: int) -> Tensor:
        """Return the least that must be added to their target and evidence for them to be right."""
        place = k - 1 - self.own
        best = self.other.topk(min(k, self.other.shape[2]), dim=2).values.expand(*self.own.shape, -1)
        reached = best.gather(2, place.clamp(0, best.shape[2] - 1).unsqueeze(2)).squeeze(2)
        needed = reached - self.target - self.evidence
        needed = needed.masked_fill(place >= best.shape[2], -torch.inf)
        return needed.masked_fill(place < 0, torch.inf)


def _compare(taught: Taught, half: HalfFeatures) -> Iterator[_Compared]:
    """Score the queries of a half, some at a time."""
    for kind in (half.novel, half.base):
        start, at_once, count = 0, 16, len(kind.labels)
        while start < count:
            queries = kind.features[start : start + at_once].to(half.device).float()
            base, novel = taught.scores(queries)
            own, other = (novel, base) if kind is half.novel else (base, novel)
            draws = novel.shape[1]
            labels = kind.labels[start : start + at_once].to(half.device).view(-1, 1, 1)
            target = own.gather(2, labels.expand(-1, own.shape[1], 1)).squeeze(2)
            if not target.isfinite().all():
                raise Diverged("scores are not finite: lower the learning rate of what gave them")
            evidence = other.logsumexp(2) - own.logsumexp(2)
            above = own.shape[2] - 1 - _below(own, target)
            whole = (len(queries), draws)
            yield _Compared(
                kind is half.novel, above.expand(whole), target.expand(whole), evidence.expand(whole), other
            )
            start += len(queries)
            at_once = max(1, _SCORES // (draws * novel.shape[2]))


def _below(scores: Tensor, thresholds: Tensor) -> Tensor:
    """Count scores (q, draws or 1, m) below thresholds (q, draws or 1): (q, draws or 1).

    A tie is not below, so it counts against the query.
    """
    # A sum of floats takes half the time of a sum of booleans, and is as exact.
    return (scores < thresholds.unsqueeze(2)).float().sum(2).long()


def _log_odds(prior: float) -> float:
    return float(np.log(prior / (1 - prior)))
