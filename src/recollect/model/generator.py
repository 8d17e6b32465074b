"""The weight generator G(Z', W_base | φ): a novel category's vector from its few features.

`terms` gives what is kept of each example, so that a category can be taught one example at a time, and
`compose` makes vectors of them: with the paper's generators the mean of the terms, weighted by the number of
examples where the generator is aware of it, with `ridge` a regression over all novel categories of a task at
once. Features and base vectors come in as the classifier sees them
(normalised for cosine, raw for dot product).
"""

from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor, nn

from recollect.model.classifier import unit
from recollect.model.draws import normal, only_shapes
from recollect.model.spec import RIDGE, GeneratorKind

FIRST_SHARPNESS = 10.0
STEP = 2.0**-15  # terms of a regression are multiples of it: sums of their products are exact in any order


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


class _Averaging(nn.Module):
    """A generator whose vectors are means of terms."""

    def compose(self, terms: Tensor, present: Tensor | None = None) -> Tensor:
        """w' = the mean over examples: terms (…, ways, shots, d) → (…, ways, d).

        `present` (…, shots) says which examples are there, for tasks of different numbers of shots in one
        batch.
        """
        if present is None:
            return terms.mean(dim=-2)
        weights = present / present.sum(dim=-1, keepdim=True)
        return (weights.unsqueeze(-2) @ terms).squeeze(-2)


class MeanGenerator(_Averaging):
    """w' = mean of z̄'_i (Eq. 5); nothing to learn, so it works after stage 1 alone."""

    def terms(self, z: Tensor, memory: Memory) -> Tensor:  # noqa: ARG002
        """Return every example's term, (…, d)."""
        return z


class AverageGenerator(_Averaging):
    """w' = φ_avg ⊙ mean of z̄'_i (Eq. 6)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.phi_avg = nn.Parameter(torch.ones(width))

    def terms(self, z: Tensor, memory: Memory) -> Tensor:  # noqa: ARG002
        """Return every example's term, (…, d)."""
        return average_terms(z, self.phi_avg)


class AttentionGenerator(_Averaging):
    """w' = φ_avg ⊙ w'_avg + φ_att ⊙ w'_att (Eq. 7 and 8).

    A shot-aware one, not in the paper, weighs the second part with N'^−ρ: for one example it is the same, and
    the more there are, the less their mean needs the help of base categories. Its terms have both parts,
    (…, 2d).
    """

    def __init__(
        self, categories: int, width: int, sharpness: float = FIRST_SHARPNESS, *, shot_aware: bool = False
    ) -> None:
        super().__init__()
        self.phi_avg = nn.Parameter(torch.ones(width))
        self.phi_att = nn.Parameter(torch.ones(width))
        self.phi_q = nn.Linear(width, width)
        self.keys = nn.Parameter(normal(categories, width, sqrt(2 / width)))
        self.sharpness = nn.Parameter(torch.tensor(float(sharpness)))
        self.fading = nn.Parameter(torch.zeros(())) if shot_aware else None  # ρ
        if not only_shapes():
            with torch.no_grad():
                self.phi_q.weight.copy_(torch.eye(width) + normal(width, width, 0.001))
                self.phi_q.bias.zero_()

    def attend(self, z: Tensor, hidden: Tensor | None = None) -> Tensor:
        """Return how much each example leans on each base category, (…, k)."""
        return attention_weights(self.phi_q(z), self.keys, self.sharpness, hidden)

    def terms(self, z: Tensor, memory: Memory) -> Tensor:
        """Return every example's term, (…, d); both parts of it, (…, 2d), where it is shot-aware."""
        weights, average = self.attend(z, memory.hidden), average_terms(z, self.phi_avg)
        if self.fading is None:
            return attention_terms(average, weights, memory.vectors, self.phi_att)
        return torch.cat([average, self.phi_att * (weights @ memory.vectors)], dim=-1)

    def compose(self, terms: Tensor, present: Tensor | None = None) -> Tensor:
        """w' = the mean over examples, weighted by their number where it is shot-aware."""
        means = super().compose(terms, present)
        if self.fading is None:
            return means
        average, attended = means.chunk(2, dim=-1)
        shots = means.new_tensor(terms.shape[-2]) if present is None else present.sum(dim=-1, keepdim=True)
        return average + shots**-self.fading * attended


class RidgeGenerator(nn.Module):
    """W' = (G + Z'ᵀZ' + λI)⁻¹ Z'ᵀY': ridge regression of the labels of all novel examples Z' at once.

    G = ZᵀZ are the second moments of base pictures, which are negatives of every novel category. There is
    nothing to learn: it works after stage 1 alone, for features of unit length.
    """

    moments: Tensor  # (d · (d + 1) / 2,), the upper triangle of G

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.register_buffer("moments", torch.zeros(width * (width + 1) // 2))
        self._inverse: tuple[object, Tensor] | None = None

    def regularised(self) -> Tensor:
        """Return G + λI (d, d), in double precision."""
        rows, columns = torch.triu_indices(self.width, self.width, device=self.moments.device)
        matrix = self.moments.new_zeros(self.width, self.width, dtype=torch.double)
        matrix[rows, columns] = self.moments.double()
        matrix[columns, rows] = self.moments.double()
        matrix.diagonal().add_(RIDGE)
        return matrix

    @torch.no_grad()
    def see(self, z: Tensor) -> None:
        """Add the second moments of base features z (n, d), as the classifier sees them, to G."""
        total = torch.zeros(self.width, self.width, dtype=torch.double, device=self.moments.device)
        for some in torch.split(z, 4096):
            some = some.to(self.moments.device).double()  # noqa: PLW2901
            total += some.T @ some
        rows, columns = torch.triu_indices(self.width, self.width, device=self.moments.device)
        self.moments.add_(total[rows, columns])

    def inverse(self) -> Tensor:
        """Return (G + λI)⁻¹ (d, d), computed once for the same G."""
        state = self.moments.data_ptr(), self.moments._version, self.moments.dtype  # noqa: SLF001
        if self._inverse is None or self._inverse[0] != state:
            with torch.inference_mode(mode=False), torch.no_grad():
                factor = torch.linalg.cholesky(self.regularised())
                self._inverse = state, torch.cholesky_inverse(factor).to(self.moments.dtype)
        return self._inverse[1]

    def leave_out(self, solved: Tensor, z: Tensor, seen: Tensor) -> Tensor:
        """Return R (G + λI − zᵀz)⁻¹ for `solved` = R (G + λI)⁻¹ (n, d): as if features z were not in G.

        `seen` is z (G + λI)⁻¹ (m, d).
        """
        if len(z) < self.width:
            inner = torch.eye(len(z), dtype=z.dtype, device=z.device) - seen @ z.mT
            shares: Tensor = torch.linalg.solve(inner, solved @ z.mT, left=False)
            return solved + shares @ seen
        matrix, z = self.regularised(), z.double()
        rest: Tensor = torch.linalg.solve(matrix - z.mT @ z, matrix @ solved.mT.double()).mT
        return rest.to(solved.dtype)

    def terms(self, z: Tensor, memory: Memory) -> Tensor:  # noqa: ARG002
        """Return every example as it is kept, (…, d): in steps of 2⁻¹⁵, below 1 in size."""
        return ((z / STEP).round() * STEP).clamp(STEP - 1, 1 - STEP)

    def compose(self, terms: Tensor, present: Tensor | None = None) -> Tensor:
        """Return the vectors of all categories of each task: terms (…, ways, shots, d) → (…, ways, d).

        `present` (…, shots) says which examples are there, for tasks of different numbers of shots in one
        batch.
        """
        if present is not None:
            terms = terms * present.unsqueeze(-1)
        ways, shots = terms.shape[-3:-1]
        z = terms.flatten(-3, -2)
        return solve_examples(z, z @ self.inverse(), ways, shots)


def solve_examples(z: Tensor, seen: Tensor, ways: int, shots: int) -> Tensor:
    """Return (M + ZᵀZ)⁻¹ZᵀY, transposed (…, ways, d), for examples z (…, ways · shots, d) and `seen` = Z M⁻¹.

    By the dual form M⁻¹Zᵀ (Z M⁻¹Zᵀ + I)⁻¹ Y, which takes a small system for each task.
    """
    identity = torch.eye(ways * shots, dtype=z.dtype, device=z.device)
    labels = torch.eye(ways, dtype=z.dtype, device=z.device).repeat_interleave(shots, dim=0)
    shares = torch.linalg.solve(seen @ z.mT + identity, labels.expand(*z.shape[:-1], ways))
    vectors: Tensor = shares.mT @ seen
    return vectors


Generator = MeanGenerator | AverageGenerator | AttentionGenerator | RidgeGenerator


def build_generator(
    kind: GeneratorKind,
    categories: int,
    width: int,
    sharpness: float = FIRST_SHARPNESS,
    *,
    shot_aware: bool = False,
) -> Generator:
    """Build a generator of the given kind for `categories` base categories and features of `width`."""
    if kind == "mean":
        return MeanGenerator()
    if kind == "average":
        return AverageGenerator(width)
    if kind == "ridge":
        return RidgeGenerator(width)
    return AttentionGenerator(categories, width, sharpness, shot_aware=shot_aware)
