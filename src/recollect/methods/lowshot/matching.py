"""Matching Networks (Vinyals et al., 2016) with contextual embeddings, on saved features."""

import torch
from torch import Tensor

from recollect.evaluation.lowshot import Taught, Teach
from recollect.methods.lowshot.analogies import centroids
from recollect.methods.lowshot.embedding import Context, EmbeddingSystem, Network
from recollect.methods.lowshot.system import Base, Shown
from recollect.model.classifier import unit
from recollect.training.config import LowShot


class MatchingNetwork(Network):
    """An embedding in context, compared by cosine with a scale τ from 10."""

    def __init__(self, width: int) -> None:
        super().__init__(width, 10.0)
        self.context = Context(width)

    def similarities(self, placed: Tensor, queries: Tensor) -> Tensor:
        """Return τ · cos(f(q), g(s)) of queries (q, d) to placed members (draws, m, d): (q, draws, m)."""
        asked = self.context.queries(queries, placed)
        return (self.scale * unit(asked) @ unit(placed).mT).transpose(0, 1)


class Matching(EmbeddingSystem[MatchingNetwork]):
    """The logarithm of how much a query leans on a category's examples.

    Base categories stand with as many examples as novel ones: centroids of their training features.
    """

    key = "matching"
    title = "Matching Networks"

    def __init__(self) -> None:
        self.known = torch.empty(0)

    def network(self, width: int, recipe: LowShot) -> MatchingNetwork:  # noqa: ARG002
        """Return an embedding in context."""
        return MatchingNetwork(width)

    def prepare(self, base: Base, shots: int, seed: int) -> None:
        """Find the centroids of base categories, (k, shots, d)."""
        self.known = examples_of(base, shots, seed)

    def episode_scores(self, network: MatchingNetwork, base: Base, shown: Shown) -> Tensor:  # noqa: ARG002
        """Score the queries of an episode: (q, r + w)."""
        members = torch.cat([network.embed(self.known[shown.rest]), network.embed(shown.support)])
        base_scores, novel_scores = _Taught(network, members, members[None, :0]).scores(shown.queries)
        return torch.cat([base_scores, novel_scores], dim=2).squeeze(1)

    def taught(self, network: MatchingNetwork, base: Base, shots: int) -> Teach:  # noqa: ARG002
        """Return what teaches novel categories beside the base categories' centroids."""
        known = network.embed(self.known)

        def teach(support: Tensor, columns: Tensor) -> Taught:
            return _Taught(network, known[columns.to(known.device)], network.embed(support))

        return teach


class _Taught:
    def __init__(self, network: MatchingNetwork, base: Tensor, novel: Tensor) -> None:
        self.network, self.count = network, len(base)
        members = torch.cat([base.expand(len(novel), *base.shape), novel], dim=1)
        self.shape = members.shape[1:3]  # categories, shots
        self.placed = network.context.members(members.flatten(1, 2))

    def scores(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        """Return log Σ exp(similarity) over each category's examples, (q, draws, b) and (q, draws, n)."""
        similar = self.network.similarities(self.placed, self.network.embed(queries))
        leaning = similar.view(*similar.shape[:2], *self.shape).logsumexp(3)
        return leaning[..., : self.count], leaning[..., self.count :]


def examples_of(base: Base, shots: int, seed: int) -> Tensor:
    """Return centroids of base categories; where there are too few pictures, some stand more than once."""
    found = centroids(base, shots, seed).to(base.device)
    return found[:, torch.arange(shots) % found.shape[1]]
