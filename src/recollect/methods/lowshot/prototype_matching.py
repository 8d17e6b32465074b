"""Prototype Matching Nets (Wang et al., 2018), with their hallucinator ("w/ H") or without.

Prototypes are means as in Prototypical Networks, embedded in the context of each other and compared by cosine
as in Matching Networks. The hallucinator makes further examples of a category from one example and noise; it
learns end to end from what the network then gets wrong.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recollect.evaluation.lowshot import Taught, Teach
from recollect.methods.lowshot.embedding import EmbeddingSystem, base_prototypes
from recollect.methods.lowshot.matching import MatchingNetwork
from recollect.methods.lowshot.system import Base, Shown
from recollect.training.config import LowShot
from recollect.training.loop import step_seed


class Hallucinator(nn.Module):
    """An MLP of three layers: (example, noise) → another example; it starts near the example itself."""

    def __init__(self, width: int) -> None:
        super().__init__()
        last = nn.Linear(width, width)
        self.layers = nn.Sequential(
            nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), last
        )
        nn.init.normal_(last.weight, std=0.001)
        nn.init.zeros_(last.bias)

    def forward(self, examples: Tensor, noise: Tensor) -> Tensor:
        """Return new examples, which are not negative, as features after a ReLU are: (…, d)."""
        return F.relu(examples + self.layers(torch.cat([examples, noise], dim=-1)))

    def fill_up(self, support: Tensor, fill: int, draw: torch.Generator) -> Tensor:
        """Add to a support (…, shots, d) until there are `fill` examples, each from a random one."""
        shots = support.shape[-2]
        if shots >= fill:
            return support
        shape = (*support.shape[:-2], fill - shots)
        start = torch.randint(shots, shape, generator=draw).to(support.device)
        noise = torch.randn(*shape, support.shape[-1], generator=draw).to(support.device)
        seeds = support.gather(-2, start.unsqueeze(-1).expand(*shape, support.shape[-1]))
        return torch.cat([support, self(seeds, noise)], dim=-2)


class PrototypeMatchingNetwork(MatchingNetwork):
    """A Matching Network over prototypes, and a hallucinator where examples are filled up."""

    def __init__(self, width: int, fill: int) -> None:
        super().__init__(width)
        self.fill = fill
        self.hallucinator = Hallucinator(width) if fill else None

    def prototypes(self, support: Tensor, draw: torch.Generator) -> Tensor:
        """Return the means of embedded examples: (…, shots, d) → (…, d)."""
        if self.hallucinator is not None:
            support = self.hallucinator.fill_up(support, self.fill, draw)
        means: Tensor = self.embed(support).mean(-2)
        return means


class PrototypeMatching(EmbeddingSystem[PrototypeMatchingNetwork]):
    """τ · cos(f(q), g(prototype)), in the context of all prototypes."""

    def __init__(self, *, hallucinate: bool = False) -> None:
        self.hallucinate = hallucinate
        self.key = "prototype-matching-h" if hallucinate else "prototype-matching"
        self.title = "Prototype Matching Nets" + (" w/ H" if hallucinate else "")

    def network(self, width: int, recipe: LowShot) -> PrototypeMatchingNetwork:
        """Return an embedding in context, and a hallucinator where it is asked for."""
        return PrototypeMatchingNetwork(width, recipe.fill if self.hallucinate else 0)

    def episode_scores(self, network: PrototypeMatchingNetwork, base: Base, shown: Shown) -> Tensor:
        """Score the queries of an episode: (q, r + w)."""
        novel = network.prototypes(shown.support, torch.default_generator)
        members = torch.cat([base_prototypes(network, base, shown), novel])
        placed = network.context.members(members.unsqueeze(0))
        return network.similarities(placed, network.embed(shown.queries)).squeeze(1)

    def taught(self, network: PrototypeMatchingNetwork, base: Base, shots: int) -> Teach:
        """Return what teaches novel categories beside the base categories' prototypes."""
        known = base.means(network.embed)

        def teach(support: Tensor, columns: Tensor) -> Taught:
            draw = torch.Generator().manual_seed(step_seed(0, 7, shots))
            own = known[columns.to(known.device)]
            # One draw at a time: of what is hallucinated, that of a single draw is in memory.
            novel = torch.cat([network.prototypes(one, draw) for one in torch.split(support, 1)])
            return _Taught(network, own, novel)

        return teach


class _Taught:
    def __init__(self, network: PrototypeMatchingNetwork, base: Tensor, novel: Tensor) -> None:
        self.network, self.count = network, len(base)
        members = torch.cat([base.expand(len(novel), *base.shape), novel], dim=1)
        self.placed = network.context.members(members)

    def scores(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        similar = self.network.similarities(self.placed, self.network.embed(queries))
        return similar[..., : self.count], similar[..., self.count :]
