"""Losses of stage 1: cross-entropy, alone or with a squared gradient magnitude (Hariharan & Girshick, 2017).

A classifier that is already good for few examples has small gradients on them: the penalty asks of the
features that the gradient of the last layer, (p − onehot) zᵀ, be small, for each example or in the mean.

Its weight rises from 0 during the first half of the training. With all of it from the start, features of a
network that knows nothing yet are cheapest at 0, where they stay.

A teacher's scores can be learned beside the labels (distillation: Hinton et al., 2015).
"""

from typing import Literal

from torch import Tensor
from torch.nn import functional as F

LossKind = Literal["cross-entropy", "sgm", "batch-sgm"]
SGM_WEIGHT = 0.02
BATCH_SGM_WEIGHT = 5.0
RISE = 0.5  # of the steps, after which the penalty has its full weight
TEMPERATURE = 2.0  # by which the scores of teacher and student are divided


def stage_one_loss(kind: LossKind, scores: Tensor, targets: Tensor, z: Tensor, share: float = 1.0) -> Tensor:
    """Return the loss of scores (n, k) with targets (n,), features z (n, d), after a share of all steps."""
    loss = F.cross_entropy(scores, targets)
    if kind == "cross-entropy":
        return loss
    rise = min(1.0, share / RISE)
    error = scores.softmax(dim=1) - F.one_hot(targets, scores.shape[1])
    if kind == "sgm":
        # ‖(p − onehot) zᵀ‖² = ‖p − onehot‖² · ‖z‖²: no matrix for each example
        return loss + rise * SGM_WEIGHT * (error.square().sum(dim=1) * z.square().sum(dim=1)).mean()
    return loss + rise * BATCH_SGM_WEIGHT * (error.T @ z / len(z)).square().sum()


def distilled(loss: Tensor, scores: Tensor, wanted: Tensor) -> Tensor:
    """Return the mean of a loss and of T² · KL between the softened scores (n, k) of teacher and student.

    With T² the gradients are as large whatever the temperature T.
    """
    found, wanted = ((some / TEMPERATURE).log_softmax(dim=1) for some in (scores, wanted))
    apart = F.kl_div(found, wanted, log_target=True, reduction="batchmean")
    return (loss + TEMPERATURE**2 * apart) / 2
