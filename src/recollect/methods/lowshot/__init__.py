"""The systems of the paper's third table, on saved features, behind one interface."""

from recollect.methods.lowshot.analogies import AnalogyLogistic
from recollect.methods.lowshot.generators import Generator
from recollect.methods.lowshot.logistic import Logistic
from recollect.methods.lowshot.matching import Matching
from recollect.methods.lowshot.prototype_matching import PrototypeMatching
from recollect.methods.lowshot.prototypical import Prototypical
from recollect.methods.lowshot.ridge import Ridge
from recollect.methods.lowshot.system import System

SYSTEMS: dict[str, System] = {
    system.key: system
    for system in (
        Prototypical(),
        Matching(),
        Logistic("logistic", "Logistic regression", "dot"),
        AnalogyLogistic("logistic-h", "Logistic regression w/ H", "dot"),
        AnalogyLogistic("sgm-h", "SGM w/ H", "sgm"),
        Logistic("sgm", "SGM", "sgm"),
        Logistic("batch-sgm", "Batch SGM", "batch-sgm"),
        PrototypeMatching(hallucinate=True),
        PrototypeMatching(),
        Generator("mean", "Cosine classifier, plain means", "mean", mixed=True),
        Generator("average", "Cosine classifier & average generator", "average"),
        Generator("attention", "Cosine classifier & attention generator", "attention"),
        Generator(
            "attention-mixed",
            "Cosine classifier & one attention generator for all N' (ours)",
            "attention",
            mixed=True,
        ),
        Ridge(),
    )
}
