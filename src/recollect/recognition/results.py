"""What a recogniser returns: predictions, categories, examples and scores."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from recollect.model.spec import Unknown

Floats = npt.NDArray[np.float32]
Origin = Literal["base", "novel"]
Among = Literal["all", "base", "novel"]  # the categories to choose from


@dataclass(frozen=True)
class Prediction:
    """One answer: a category, its probability, and whether it was trained (base) or taught (novel).

    For a picture of no known category the first answer is "unknown", of origin "unknown".
    """

    category: str
    probability: float
    origin: Origin | Literal["unknown"]


@dataclass(frozen=True)
class Category:
    """A category that a recogniser knows. Its id never changes, whatever is taught or forgotten."""

    id: int
    name: str
    origin: Origin
    examples: int | None  # taught pictures; `None` for a base category that was taught none
    hidden: bool = False  # a base category that is never answered


@dataclass(frozen=True, eq=False)
class Example:
    """What is kept of a taught picture."""

    id: int
    added: float  # seconds since 1970
    feature: Floats  # (d,)
    thumbnail: bytes | None  # a small JPEG


@dataclass(frozen=True)
class Duplicate:
    """An example whose picture was taught twice, found by its feature."""

    example: int
    other: int  # the example that is the same picture
    category: str  # of the other one


class Scores(NamedTuple):
    """Raw scores of n pictures, all taken at one moment; `categories` names the columns, base ones first.

    A base category that was taught pictures has two columns: its own, and one for these pictures among the
    novel ones. It answers with the better of the two.
    """

    base: Floats  # (n, k)
    novel: Floats  # (n, taught)
    categories: tuple[Category, ...]


class Rule(NamedTuple):
    """How features become answers: vectors by category, and the numbers of the calibration.

    Probabilities are softmax((scores + offsets) / temperature), where offsets are added to taught categories
    only; a picture is unknown if max(scores + unknown_offsets) is below the threshold.
    """

    vectors: Floats  # (k + taught, d), as the classifier sees them
    categories: tuple[Category, ...]  # of the rows; a base category that was taught pictures has two
    temperature: float
    offsets: npt.NDArray[np.float64]  # (taught,)
    unknown_offsets: npt.NDArray[np.float64]  # (taught,)
    threshold: float | None  # for the best score; `None` where nothing is unknown
    unknown: Unknown | None
