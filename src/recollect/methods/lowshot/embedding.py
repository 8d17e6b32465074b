"""What Matching, Prototypical and Prototype Matching Networks have in common on saved features.

All learn an embedding of features from episodes. It starts as the identity, so that learning can only start
from what the features give.
"""

from abc import abstractmethod
from math import sqrt
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recollect.evaluation.lowshot import Teach
from recollect.methods.lowshot.system import Base, LargeEpisodes, Shown, System, descend, show
from recollect.model.classifier import unit
from recollect.training.config import LowShot
from recollect.training.loop import step_seed


class Embedding(nn.Module):
    """z + a two-layer network of z."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        nn.init.zeros_(self.second.weight)
        nn.init.zeros_(self.second.bias)

    def forward(self, z: Tensor) -> Tensor:
        """Embed features (…, d)."""
        embedded: Tensor = z + self.second(F.leaky_relu(self.first(z), 0.1))
        return embedded


class Context(nn.Module):
    """Full contextual embeddings (Vinyals et al., 2016): of members of a set g(·, S), of queries f(·, S).

    Queries read the set in steps of an LSTM with attention, as published. Members look at each other by
    attention in place of the published bidirectional LSTM, for which they would need an order.
    """

    def __init__(self, width: int, steps: int = 2) -> None:
        super().__init__()
        self.steps, self.root = steps, sqrt(width)
        self.mix = nn.Linear(width, width, bias=False)
        self.gates = nn.Linear(3 * width, 4 * width)
        nn.init.zeros_(self.mix.weight)
        nn.init.normal_(self.gates.weight, std=0.001)
        nn.init.zeros_(self.gates.bias)

    def members(self, s: Tensor) -> Tensor:
        """Return g(s, S) for sets S (draws, m, d); a set at a time, since m² values may be many."""
        seen = unit(s)
        looked = [(self.root * own @ own.mT).softmax(-1) @ one for own, one in zip(seen, s, strict=True)]
        mixed: Tensor = s + self.mix(torch.stack(looked))
        return mixed

    def queries(self, q: Tensor, members: Tensor) -> Tensor:
        """Return f(q, S) for queries (q, d) and contextual members (draws, m, d): (draws, q, d)."""
        q = q.expand(len(members), -1, -1)
        keys = unit(members)
        state, read, cell = q, torch.zeros_like(q), torch.zeros_like(q)
        for _ in range(self.steps):
            into, forget, out, new = self.gates(torch.cat([q, state, read], dim=-1)).chunk(4, dim=-1)
            cell = forget.sigmoid() * cell + into.sigmoid() * new.tanh()
            state = q + out.sigmoid() * cell.tanh()
            read = (self.root * unit(state) @ keys.mT).softmax(-1) @ members
        return state


class Network(nn.Module):
    """An embedding and a scale, which subclasses extend."""

    def __init__(self, width: int, scale: float) -> None:
        super().__init__()
        self.embed = Embedding(width)
        self.scale = nn.Parameter(torch.tensor(scale))


N = TypeVar("N", bound=Network)


class EmbeddingSystem(System, Generic[N]):
    """A system that learns a network on features of the dot-product stage 1 from large episodes."""

    stage1 = "dot"

    @abstractmethod
    def network(self, width: int, recipe: LowShot) -> N:
        """Return a network that has not learned anything yet."""

    @abstractmethod
    def episode_scores(self, network: N, base: Base, shown: Shown) -> Tensor:
        """Score the queries of an episode over its base and its fake-novel categories: (q, r + w)."""

    @abstractmethod
    def taught(self, network: N, base: Base, shots: int) -> Teach:
        """Return what teaches novel categories with a network that has learned."""

    def prepare(self, base: Base, shots: int, seed: int) -> None:
        """Compute from base features what does not change while the network learns."""

    def learn(self, base: Base, shots: tuple[int, ...], recipe: LowShot, seed: int) -> Teach:
        """Learn from episodes of one number of shots."""
        torch.manual_seed(step_seed(seed, 3, -1))
        network = self.network(base.features.shape[1], recipe).to(base.device)
        self.prepare(base, shots[0], seed)
        episodes = LargeEpisodes(base, shots, recipe, seed)

        def loss(step: int) -> Tensor:
            shown = show(base, episodes[step], step_seed(seed, 8, step))
            return F.cross_entropy(self.episode_scores(network, base, shown), shown.targets)

        descend(network, loss, recipe, base, seed, adam=True)
        with torch.no_grad():
            return self.taught(network, base, shots[0])


def base_prototypes(network: Network, base: Base, shown: Shown) -> Tensor:
    """Return the means of the embedded examples of an episode's base categories: (r, d)."""
    embedded = network.embed(base.take(shown.rest_rows))
    weights = shown.rest_present / shown.rest_present.sum(1, keepdim=True)
    means: Tensor = (weights.unsqueeze(1) @ embedded).squeeze(1)
    return means
