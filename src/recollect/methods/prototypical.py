"""Prototypical Networks (Snell et al., 2017), with the paper's authors' division by d and learnable scale."""

from torch import Tensor

from recollect.data.splits import Split
from recollect.methods.episodic import EpisodicMethod
from recollect.methods.method import learn_means, squared_distances
from recollect.model.model import Model


class PrototypicalNetworks(EpisodicMethod):
    """A category is the mean of its features, and a score minus the squared distance to it.

    The prototypes of base categories, means over all their training pictures, are the classifier's rows.
    """

    name = "prototypical"
    title = "Prototypical Networks"
    joint = True
    classifier = "dot"
    last_relu = True  # as the authors had it

    def novel_scores(self, model: Model, support: Tensor, queries: Tensor) -> Tensor:
        """Return −τ ‖q − mean z'‖² / d: (tasks, q, ways)."""
        return _scores(model, queries, support.mean(2))

    def base_scores(self, model: Model, queries: Tensor) -> Tensor:
        """Return the same for the prototypes of base categories: (tasks, q, k)."""
        return _scores(model, queries, model.classifier.weight)

    def finish(self, model: Model, split: Split) -> None:
        """Make the base categories' prototypes."""
        learn_means(model, split)


def _scores(model: Model, queries: Tensor, prototypes: Tensor) -> Tensor:
    return -model.classifier.scale / model.width * squared_distances(queries, prototypes)
