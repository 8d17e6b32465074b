"""Matching Networks (Vinyals et al., 2016), as the paper's authors re-implemented them."""

import torch
from torch import Tensor

from recollect.methods.episodic import EpisodicMethod
from recollect.model.classifier import cosine_scores
from recollect.model.model import Model

_LEAST = 1e-7  # probability, before the logarithm


class MatchingNetworks(EpisodicMethod):
    """A query belongs to the category whose examples it resembles most; base categories have no scores."""

    name = "matching"
    title = "Matching Networks"
    joint = False
    classifier = "cosine"
    last_relu = False

    def novel_scores(self, model: Model, support: Tensor, queries: Tensor) -> Tensor:
        """Return log Σ_i softmax_i(τ · cos(q, z'_i)), summed over a category's examples: (tasks, q, ways)."""
        similarity = cosine_scores(queries, support.flatten(1, 2), model.classifier.scale)
        leaning = similarity.softmax(-1).view(*similarity.shape[:2], *support.shape[1:3])
        return torch.log(leaning.sum(-1).clamp(min=_LEAST))
