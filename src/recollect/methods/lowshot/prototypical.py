"""Prototypical Networks (Snell et al., 2017) on saved features."""

import torch
from torch import Tensor

from recollect.evaluation.lowshot import LinearTaught, Taught, Teach
from recollect.methods.lowshot.embedding import EmbeddingSystem, Network, base_prototypes
from recollect.methods.lowshot.system import Base, Shown
from recollect.training.config import LowShot


class Prototypical(EmbeddingSystem[Network]):
    """Minus the squared distance to the mean embedded feature, times τ / d.

    The prototype of a base category is the mean over all its training pictures.
    """

    key = "prototypical"
    title = "Prototypical Networks"

    def network(self, width: int, recipe: LowShot) -> Network:  # noqa: ARG002
        """Return an embedding with τ = 1."""
        return Network(width, 1.0)

    def episode_scores(self, network: Network, base: Base, shown: Shown) -> Tensor:
        """Score the queries of an episode: (q, r + w)."""
        known, novel = base_prototypes(network, base, shown), network.embed(shown.support).mean(1)
        scores = scored(network, known[None], novel[None], shown.queries)
        return torch.cat(scores, dim=2).squeeze(1)

    def taught(self, network: Network, base: Base, shots: int) -> Teach:  # noqa: ARG002
        """Return what teaches novel categories beside the base categories' prototypes."""
        known = base.means(network.embed)

        def teach(support: Tensor, columns: Tensor) -> Taught:
            novel = network.embed(support).mean(2)
            return _Taught(network, known[columns.to(known.device)].unsqueeze(0), novel)

        return teach


class _Taught:
    def __init__(self, network: Network, base: Tensor, novel: Tensor) -> None:
        self.network, self.base, self.novel = network, base, novel

    def scores(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        return scored(self.network, self.base, self.novel, queries)


def scored(network: Network, base: Tensor, novel: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
    """Return −τ/d ‖q − p‖² + τ/d ‖q‖², of which the second term is the same for all categories."""
    factor = network.scale / queries.shape[1]
    vectors = LinearTaught(
        2 * factor * base,
        2 * factor * novel,
        -factor * base.square().sum(2),
        -factor * novel.square().sum(2),
    )
    return vectors.scores(network.embed(queries))
