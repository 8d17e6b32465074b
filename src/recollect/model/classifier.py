"""The classifier C(z | W*): raw scores of every category, by cosine (Eq. 4) or dot product (Eq. 3)."""

from math import sqrt

import torch
from torch import Tensor, nn

from recollect.model.draws import normal
from recollect.model.spec import ClassifierKind

FIRST_SCALE: dict[ClassifierKind, float] = {"cosine": 10.0, "dot": 1.0}


def unit(v: Tensor) -> Tensor:
    """Return v̄, v divided by its L2 norm along the last axis; 0 stays 0.

    Written out, its gradient takes half the operations of `torch.nn.functional.normalize`.
    """
    return v * v.square().sum(dim=-1, keepdim=True).clamp_min(1e-24).rsqrt()


def cosine_scores(z: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    """s_k = τ · z̄ᵀ w̄_k: features (…, q, d) and vectors (…, k, d) → (…, q, k)."""
    return dot_scores(unit(z), unit(w), scale)


def dot_scores(z: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    """s_k = τ · zᵀ w_k: features (…, q, d) and vectors (…, k, d) → (…, q, k)."""
    return scale * (z @ w.mT)


class Classifier(nn.Module):
    """W_base (k, d) and τ, with the scores of one kind."""

    def __init__(self, categories: int, width: int, kind: ClassifierKind) -> None:
        super().__init__()
        self.kind: ClassifierKind = kind
        self.weight = nn.Parameter(normal(categories, width, sqrt(2 / width)))
        self.scale = nn.Parameter(torch.tensor(FIRST_SCALE[kind]))

    def view(self, v: Tensor) -> Tensor:
        """Return vectors the way this classifier sees them: v̄ for cosine, v itself for dot product."""
        return unit(v) if self.kind == "cosine" else v

    def scores(self, z: Tensor, w: Tensor) -> Tensor:
        """Return the scores (…, q, k) of features z (…, q, d) against vectors w (…, k, d)."""
        return (cosine_scores if self.kind == "cosine" else dot_scores)(z, w, self.scale)

    def forward(self, z: Tensor) -> Tensor:
        """Return the base scores (…, q, k) of features z (…, q, d)."""
        return self.scores(z, self.weight)
