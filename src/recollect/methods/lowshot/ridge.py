"""Our generator `ridge` on the benchmark, beyond the paper: novel vectors by regression on all examples."""

import torch
from torch import Tensor

from recollect.evaluation.lowshot import LinearTaught, Teach
from recollect.methods.lowshot.system import Base, System
from recollect.model.generator import Memory, RidgeGenerator
from recollect.training.config import LowShot


class Ridge(System):
    """W' = (G + Z'ᵀZ' + λI)⁻¹Z'ᵀY' beside the base vectors of stage 1; G = ZᵀZ of all base pictures."""

    key = "ridge"
    title = "Cosine classifier & ridge regression (ours)"
    stage1 = "cosine"
    mixed = True

    def learn(self, base: Base, shots: tuple[int, ...], recipe: LowShot, seed: int) -> Teach:  # noqa: ARG002
        """Sum up the second moments of base features."""
        classifier = base.head.classifier
        generator = RidgeGenerator(base.features.shape[1]).to(base.device)
        for rows in torch.split(torch.arange(len(base.labels)), 4096):
            base.check()
            generator.see(classifier.view(base.take(rows)))
        regularised = generator.regularised().float()

        def teach(support: Tensor, columns: Tensor) -> LinearTaught:
            examples = generator.terms(classifier.view(support), Memory(classifier.weight))
            vectors = classifier.view(solve(regularised, examples))
            known = classifier.view(classifier.weight)[columns.to(support.device)].unsqueeze(0)
            return LinearTaught(classifier.scale * known, classifier.scale * vectors, cosine=True)

        return teach


def solve(regularised: Tensor, examples: Tensor) -> Tensor:
    """Return (M + Z'ᵀZ')⁻¹Z'ᵀY' for M (d, d) and examples (draws, n, shots, d): (draws, n, d).

    There are more examples than features here, so the systems of d equations are the small ones.
    """
    z = examples.flatten(1, 2)
    factor = torch.linalg.cholesky(regularised + z.mT @ z)
    return torch.cholesky_solve(examples.sum(2).mT, factor).mT
