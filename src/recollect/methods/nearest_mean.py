"""Nearest class mean: base and novel categories alike are the means of their features."""

from torch import Tensor

from recollect.data.splits import Split
from recollect.features import FeatureSet
from recollect.methods.frozen_features import FrozenFeatures
from recollect.methods.method import FeatureScores, learn_means, squared_distances
from recollect.model.model import Model


class NearestMean(FrozenFeatures):
    """Minus the squared distance to the mean of the features, as the classifier of stage 1 sees them.

    The means of base categories, over all their training pictures, are the classifier's rows.
    """

    name = "nearest-mean"
    title = "Nearest class mean"

    def score(self, model: Model, novel: FeatureSet | None, split: Split) -> FeatureScores:  # noqa: ARG002
        """Return −‖q − mean z'‖² for base and for novel categories."""
        view = model.classifier.view

        def score(support: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
            seen = view(queries)
            base = -squared_distances(seen, model.classifier.weight)
            return base, -squared_distances(seen, view(support).mean(2))

        return score

    def finish(self, model: Model, split: Split) -> None:
        """Make the means of base categories."""
        learn_means(model, split)
