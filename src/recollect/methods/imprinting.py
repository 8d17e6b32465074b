"""Weight imprinting (Qi et al., 2018): a novel category's mean becomes a row of the cosine classifier."""

from torch import Tensor

from recollect.data.splits import Split
from recollect.features import FeatureSet
from recollect.methods.frozen_features import FrozenFeatures
from recollect.methods.method import FeatureScores
from recollect.model.classifier import unit
from recollect.model.model import Model
from recollect.training.config import Config


class Imprinting(FrozenFeatures):
    """The mean of normalised features, normalised, beside the rows that stage 1 learned, with its scale.

    Without fine-tuning this is the paper's `mean` generator: the same year's idea under another name.
    """

    name = "imprinting"
    title = "Weight imprinting"

    def settled(self, config: Config) -> Config:
        """Take a cosine classifier: there is nothing to imprint in another."""
        return super().settled(config).model_copy(update={"classifier": "cosine"})

    def score(self, model: Model, novel: FeatureSet | None, split: Split) -> FeatureScores:  # noqa: ARG002
        """Return τ · cos(q, w) for learned and for imprinted rows."""

        def score(support: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
            imprinted = unit(unit(support).mean(2))
            return model.classifier(queries), model.classifier.scores(queries, imprinted)

        return score
