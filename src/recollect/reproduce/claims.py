"""What the paper claims, and whether the results support it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from recollect.reproduce.results import Measured, Place
from recollect.reproduce.rows import SHOTS

MARGIN = 1.0  # points that count as equal where the paper says "matches" or "not sacrificed"
HOLDS, FAILS, UNDECIDED, MISSING = "holds", "does not hold", "undecided", "not measured"
_KINDS = ("mean", "average", "attention")


class Combines(Protocol):
    """Results whose figures can be combined, paired by task or draw."""

    def combined(self, weights: Mapping[Place, int]) -> Measured | None:
        """Return a weighted sum of figures."""


class Comparison(NamedTuple):
    """A difference that a claim says something about."""

    text: str
    weights: Mapping[Place, int]
    above: float = 0.0  # where the claim says that the difference lies


@dataclass(frozen=True)
class Claim:
    """A sentence, and the comparisons that all must hold for it to be true."""

    text: str
    comparisons: tuple[Comparison, ...]


class Judged(NamedTuple):
    """A comparison with what was found."""

    text: str
    found: Measured | None
    verdict: str


def _minus(
    one: str, other: str, figure: str, above: float = 0.0, at: Sequence[int] = SHOTS
) -> tuple[Comparison, ...]:
    """Compare two rows at every number of shots."""
    return tuple(
        Comparison(
            f"{one} − {other}, {figure.capitalize()}, {shots}-shot",
            {Place(one, shots, figure): 1, Place(other, shots, figure): -1},
            above,
        )
        for shots in at
    )


def _each_kind(one: str, other: str, figure: str) -> tuple[Comparison, ...]:
    return tuple(
        comparison for kind in _KINDS for comparison in _minus(f"{one}-{kind}", f"{other}-{kind}", figure)
    )


_GENERATORS = ("cosine-attention", "cosine-average")
_MORE = {(_GENERATORS[0], 1): 1, (_GENERATORS[1], 1): -1, (_GENERATORS[0], 5): -1, (_GENERATORS[1], 5): 1}
CLAIMS = (
    Claim("The cosine classifier beats the dot product on Novel.", _each_kind("cosine", "dot", "novel")),
    Claim("The cosine classifier beats the dot product on Base.", _each_kind("cosine", "dot", "base")),
    Claim(
        "Cosine with plain means, never trained on episodes, matches Matching and Prototypical Networks "
        f"(at most {MARGIN:g} point below).",
        _minus("cosine-mean", "matching", "novel", -MARGIN)
        + _minus("cosine-mean", "prototypical", "novel", -MARGIN),
    ),
    Claim("Without the last ReLU, Novel is higher.", _each_kind("cosine", "relu", "novel")),
    Claim("Without the last ReLU, Base is lower.", _each_kind("relu", "cosine", "base")),
    Claim("Without the last ReLU, Both is lower.", _each_kind("relu", "cosine", "both")),
    Claim(
        "With the cosine classifier, the average and the attention generator lift Both.",
        _minus("cosine-average", "cosine-mean", "both") + _minus("cosine-attention", "cosine-mean", "both"),
    ),
    Claim(
        "Attention lifts 1-shot Novel most.",
        (
            *_minus("cosine-attention", "cosine-mean", "novel", at=(1,)),
            *_minus(*_GENERATORS, "novel", at=(1,)),
            Comparison(
                "cosine-attention − cosine-average, Novel, more at 1-shot than at 5-shot",
                {Place(*cell, "novel"): sign for cell, sign in _MORE.items()},
            ),
        ),
    ),
    Claim(
        "Base accuracy is not sacrificed by learning to generate "
        f"(at most {MARGIN:g} point below stage 1 alone).",
        _minus("cosine-average", "cosine-mean", "base", -MARGIN)
        + _minus("cosine-attention", "cosine-mean", "base", -MARGIN),
    ),
)


def verdict(found: Measured | None, above: float = 0.0) -> str:
    """Say whether a difference lies above a value, judged by its interval.

    >>> verdict(Measured(2, 1)), verdict(Measured(-2, 1)), verdict(Measured(0.5, 1))
    ('holds', 'does not hold', 'undecided')
    """
    if found is None:
        return MISSING
    if found.mean - found.ci95 > above:
        return HOLDS
    return FAILS if found.mean + found.ci95 < above else UNDECIDED


def overall(verdicts: list[str]) -> str:
    """Return the verdict on a claim: all comparisons must hold, and one that does not refutes it."""
    return next((one for one in (FAILS, MISSING, UNDECIDED) if one in verdicts), HOLDS)


def judge(claim: Claim, results: Combines) -> list[Judged]:
    """Return every comparison of a claim with what was found."""
    found = [(one, results.combined(one.weights)) for one in claim.comparisons]
    return [Judged(one.text, difference, verdict(difference, one.above)) for one, difference in found]


def judge_compactness(silhouettes: Mapping[str, Any]) -> list[Judged]:
    """Return the comparisons of the claim on features, from what `figure-tsne` measured."""
    found = {how: Measured(**words["difference"]) for how, words in silhouettes.items()}
    return [
        Judged(f"silhouette {how}: cosine − dot product", one, verdict(one)) for how, one in found.items()
    ]
