"""The paper's model and the systems it is compared with, behind one interface."""

from recollect.errors import ModelError
from recollect.methods.imprinting import Imprinting
from recollect.methods.logistic import JointLogistic, NovelLogistic
from recollect.methods.maml import ANIL, MAML, FirstOrderMAML, StartedMAML
from recollect.methods.matching import MatchingNetworks
from recollect.methods.meta_lstm import MetaLSTM
from recollect.methods.method import Method
from recollect.methods.nearest_mean import NearestMean
from recollect.methods.prototypical import PrototypicalNetworks
from recollect.methods.temporal import TemporalConvolutions

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(),  # the paper's own
        MatchingNetworks(),
        PrototypicalNetworks(),
        MAML(),
        FirstOrderMAML(),
        ANIL(),
        StartedMAML(),
        MetaLSTM(),
        TemporalConvolutions(),
        NearestMean(),
        Imprinting(),
        NovelLogistic(),
        JointLogistic(),
    )
}


def find_method(name: str) -> Method:
    """Return the method of this name."""
    if name not in METHODS:
        raise ModelError(f"no method is called '{name}'; there are: {', '.join(METHODS)}")
    return METHODS[name]
