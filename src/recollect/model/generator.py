"""The weight generator G(Z', W_base | φ): a novel category's vector from its few features.

Every generator is a mean of per-example terms, so a category can be taught one example at a time:
`terms` gives each example's contribution, `compose` takes their mean. Features and base vectors come
in as the classifier sees them (normalised for cosine, raw for dot product).
"""

from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor, nn

from recollect.model.classifier import unit
from recollect.model.draws import normal, only_shapes
from recollect.model.spec import GeneratorKind

FIRST_SHARPNESS = 10.0


class Memory(NamedTuple):
    """What attention looks at: the base vectors, and which of them are hidden in each task."""

    vectors: Tensor  # (k, d)
    hidden: Tensor | None = None  # (tasks, k), true where a base category acts as a novel one


def attention_weights(queries: Tensor, keys: Tensor, sharpness: Tensor, hidden: Tensor | None) -> Tensor:
    """Att of Eq. 7: softmax over base categories of γ · cos(query, key).

    Queries (…, d) or (tasks, ways, shots, d) with `hidden` (tasks, k); returns (…, k). The mask comes
    after the product with γ, or γ's gradient would be 0 · ∞.
    """
    logits = sharpness * (unit(queries) @ unit(keys).mT)
    if hidden is not None:
        logits = logits.masked_fill(hidden[:, None, None, :], -torch.inf)
    return logits.softmax(dim=-1)


def average_terms(z: Tensor, phi_avg: Tensor) -> Tensor:
    """Each example's share of Eq. 6, φ_avg ⊙ z̄'_i: (…, d) → (…, d)."""
    return phi_avg * z


def attention_terms(average: Tensor, weights: Tensor, vectors: Tensor, phi_att: Tensor) -> Tensor:
    """Each example's share of Eq. 8: its average term + φ_att ⊙ Σ_b a_ib w̄_b."""
    return average + phi_att * (weights @ vectors)


def compose(terms: Tensor, present: Tensor | None = None) -> Tensor:
    """w' = the mean over examples: terms (…, shots, d) → (…, d).

    `present` (…, shots) says which examples are there, for tasks of different numbers of shots in one batch.
    """
    if present is None:
        return terms.mean(dim=-2)
    weights = present / present.sum(dim=-1, keepdim=True)
    return (weights.unsqueeze(-2) @ terms).squeeze(-2)


class MeanGenerator(nn.Module):
    """w' = mean of z̄'_i (Eq. 5); nothing to learn, so it works after stage 1 alone."""

    def terms(self, z: Tensor, memory: Memory) -> Tensor:  # noqa: ARG002
        """Return every example's term, (…, d)."""
        return z


class AverageGenerator(nn.Module):
    """w' = φ_avg ⊙ mean of z̄'_i (Eq. 6)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.phi_avg = nn.Parameter(torch.ones(width))

    def terms(self, z: Tensor, memory: Memory) -> Tensor:  # noqa: ARG002
        """Return every example's term, (…, d)."""
        return average_terms(z, self.phi_avg)


class AttentionGenerator(nn.Module):
    """w' = φ_avg ⊙ w'_avg + φ_att ⊙ w'_att (Eq. 7 and 8)."""

    def __init__(self, categories: int, width: int, sharpness: float = FIRST_SHARPNESS) -> None:
        super().__init__()
        self.phi_avg = nn.Parameter(torch.ones(width))
        self.phi_att = nn.Parameter(torch.ones(width))
        self.phi_q = nn.Linear(width, width)
        self.keys = nn.Parameter(normal(categories, width, sqrt(2 / width)))
        self.sharpness = nn.Parameter(torch.tensor(float(sharpness)))
        if not only_shapes():
            with torch.no_grad():
                self.phi_q.weight.copy_(torch.eye(width) + normal(width, width, 0.001))
                self.phi_q.bias.zero_()

    def attend(self, z: Tensor, hidden: Tensor | None = None) -> Tensor:
        """Return how much each example leans on each base category, (…, k)."""
        return attention_weights(self.phi_q(z), self.keys, self.sharpness, hidden)

    def terms(self, z: Tensor, memory: Memory) -> Tensor:
        """Return every example's term, (…, d)."""
        weights = self.attend(z, memory.hidden)
        return attention_terms(average_terms(z, self.phi_avg), weights, memory.vectors, self.phi_att)


Generator = MeanGenerator | AverageGenerator | AttentionGenerator


def build_generator(
    kind: GeneratorKind, categories: int, width: int, sharpness: float = FIRST_SHARPNESS
) -> Generator:
    """Build a generator of the given kind for `categories` base categories and features of `width`."""
    if kind == "mean":
        return MeanGenerator()
    if kind == "average":
        return AverageGenerator(width)
    return AttentionGenerator(categories, width, sharpness)
