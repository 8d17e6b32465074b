"""Losses of stage 1: cross-entropy, alone or with a squared gradient magnitude (Hariharan & Girshick, 2017).

A classifier that is already good for few examples has small gradients on them: the penalty asks of the
features that the gradient of the last layer, (p − onehot) zᵀ, be small, for each example or in the mean.
"""

from typing import Literal

from torch import Tensor
from torch.nn import functional as F

LossKind = Literal["cross-entropy", "sgm", "batch-sgm"]
SGM_WEIGHT = 0.02
BATCH_SGM_WEIGHT = 5.0


def stage_one_loss(kind: LossKind, scores: Tensor, targets: Tensor, z: Tensor) -> Tensor:
    """Return the loss of scores (n, k) with targets (n,), of features z (n, d)."""
    loss = F.cross_entropy(scores, targets)
    if kind == "cross-entropy":
        return loss
    error = scores.softmax(dim=1) - F.one_hot(targets, scores.shape[1])
    if kind == "sgm":
        # ‖(p − onehot) zᵀ‖² = ‖p − onehot‖² · ‖z‖²: no matrix for each example
        return loss + SGM_WEIGHT * (error.square().sum(dim=1) * z.square().sum(dim=1)).mean()
    return loss + BATCH_SGM_WEIGHT * (error.T @ z / len(z)).square().sum()
