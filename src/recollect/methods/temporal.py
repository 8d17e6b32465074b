"""Temporal convolutions with attention (Mishra et al., 2018): a task is a sequence, read by a causal network.

Its elements are the examples with their labels, in any order, and last a query without one. No element sees a
later one, so what the examples become does not depend on the query: they are computed once for all queries of
a task, and each query as if it were the only one.
"""

from math import ceil, log2

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recollect.data.tasks import TaskShape
from recollect.errors import ModelError
from recollect.methods.adapting import require_ways
from recollect.methods.episodic import EpisodicMethod, learner_of
from recollect.model.model import Model
from recollect.model.spec import LearnerSpec
from recollect.training.config import Config

Sequence = tuple[
    Tensor, Tensor
]  # examples (tasks, n, c), and queries (tasks, q, c) that each come after them
_EMBEDDING = 64  # of a feature: many more numbers than labels have would drown these
_FILTERS = 128
_ATTENTION = ((64, 32), (256, 128), (512, 256))  # keys and values


class DenseBlock(nn.Module):
    """A causal convolution of an element and the one `dilation` before it, gated; added to the channels."""

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.dilation = dilation
        self.own = nn.Linear(channels, 2 * _FILTERS)
        self.earlier = nn.Linear(channels, 2 * _FILTERS, bias=False)

    def forward(self, examples: Tensor, queries: Tensor) -> Sequence:
        """Return both with `_FILTERS` more channels; before the first element there is nothing."""
        before = self.earlier(examples)
        shifted = F.pad(before, (0, 0, self.dilation, 0))  # place t + dilation has element t
        count = examples.shape[1]
        return (
            _grown(examples, self.own(examples) + shifted[:, :count]),
            _grown(queries, self.own(queries) + shifted[:, count : count + 1]),
        )


def _grown(x: Tensor, new: Tensor) -> Tensor:
    content, gate = new.chunk(2, -1)
    return torch.cat([x, content.tanh() * gate.sigmoid()], -1)


class Attention(nn.Module):
    """What an element reads, by keys, from the elements up to itself; added to the channels."""

    def __init__(self, channels: int, keys: int, values: int) -> None:
        super().__init__()
        self.keys, self.values, self.asks = (nn.Linear(channels, width) for width in (keys, values, keys))

    def forward(self, examples: Tensor, queries: Tensor) -> Sequence:
        """Return both with `values` more channels."""
        keys, values = self.keys(examples), self.values(examples)
        read = F.scaled_dot_product_attention(self.asks(examples), keys, values, is_causal=True)
        asks, own_keys = self.asks(queries), self.keys(queries)
        scale = keys.shape[-1] ** -0.5
        leaning = torch.cat([asks @ keys.mT, (asks * own_keys).sum(-1, keepdim=True)], -1) * scale
        share = leaning.softmax(-1)
        found = share[..., :-1] @ values + share[..., -1:] * self.values(queries)
        return torch.cat([examples, read], -1), torch.cat([queries, found], -1)


class TemporalNetwork(nn.Module):
    """Attention, temporal convolutions, attention, temporal convolutions, attention, and a linear layer.

    Features are embedded first, as those of four convolutional blocks are in the paper.
    """

    def __init__(self, spec: LearnerSpec, width: int) -> None:
        super().__init__()
        self.ways = spec.ways
        self.embed = nn.Linear(width, _EMBEDDING)
        channels = _EMBEDDING + spec.ways
        layers: list[nn.Module] = []
        dilations = [2**power for power in range(ceil(log2(spec.ways * spec.shots + 1)))]
        for index, (keys, values) in enumerate(_ATTENTION):
            for dilation in dilations if index else ():
                layers.append(DenseBlock(channels, dilation))
                channels += _FILTERS
            layers.append(Attention(channels, keys, values))
            channels += values
        self.layers = nn.ModuleList(layers)
        self.out = nn.Linear(channels, spec.ways)

    def forward(self, examples: Tensor, labels: Tensor, queries: Tensor) -> Tensor:
        """Score queries (tasks, q, d) after examples (tasks, n, d) with labels (n,): (tasks, q, ways)."""
        named = F.one_hot(labels, self.ways).to(examples.dtype)
        examples = torch.cat([self.embed(examples), named.expand(len(examples), -1, -1)], -1)
        queries = F.pad(self.embed(queries), (0, self.ways))
        for layer in self.layers:
            examples, queries = layer(examples, queries)
        scores: Tensor = self.out(queries)
        return scores


class TemporalConvolutions(EpisodicMethod):
    """The features of a task's examples, with their labels, and of a query pass a causal network.

    A model answers tasks of fewer ways and shots than it was trained for. Base categories have no scores.
    """

    name = "temporal"
    title = "Temporal convolutions (Mishra et al.)"
    joint = False
    rate = 1e-4

    def made_for(self, config: Config, ways: int) -> LearnerSpec:
        """Return the longest sequence."""
        return LearnerSpec(ways=ways, shots=config.most_shots)

    def learner(self, spec: LearnerSpec, width: int) -> nn.Module:
        """Return the network that reads sequences."""
        return TemporalNetwork(spec, width)

    def require(self, model: Model, shape: TaskShape) -> None:
        """Refuse sequences longer than those it was trained for."""
        require_ways(self, model, shape)
        spec = model.spec.learner
        if spec is not None and shape.shots > spec.shots:
            raise ModelError(
                f"this model of {self.title} reads at most {spec.shots} examples of a category, and tasks "
                f"have {shape.shots}: use --shots {spec.shots} or fewer, or train with --shots {shape.shots}"
            )

    def novel_scores(self, model: Model, support: Tensor, queries: Tensor) -> Tensor:
        """Score queries (tasks, q, d) by the support (tasks, ways, shots, d): (tasks, q, ways).

        In training the examples come in any order; in evaluation one of each category after the other.
        """
        _, ways, shots, _ = support.shape
        labels = torch.arange(ways, device=support.device).repeat(shots)
        order = torch.randperm(len(labels)) if model.training else torch.arange(len(labels))
        examples = support.transpose(1, 2).flatten(1, 2)[:, order]
        scores: Tensor = learner_of(model, TemporalNetwork)(examples, labels[order], queries)
        return scores[..., :ways]
