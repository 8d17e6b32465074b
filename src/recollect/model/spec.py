"""The description of a model: everything but its weights. Needs no torch."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, TypeGuard

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, model_validator

ClassifierKind = Literal["cosine", "dot"]
GeneratorKind = Literal["mean", "average", "attention", "ridge"]
Channels = tuple[float, float, float]
MOST_SIZE = 1024  # pixels a side of an input; efficientnet-lite0 takes 0.3 GB for one picture of that size
PLACES = 5  # where a model looks whose pictures are shifted: in place, up, down, left and right
RIDGE = 0.3  # λ of the generator `ridge`, for features of unit length
OWN_CODE = "module:"  # before the name of an extractor that is a caller's own
ONNX = "onnx:"  # before the path of an ONNX file that is used as extractor


def is_own_code(extractor: str | None) -> TypeGuard[str]:
    """Say whether an extractor is a caller's own code, which only the caller may name."""
    return extractor is not None and extractor.startswith(OWN_CODE)


def is_onnx(extractor: str | None) -> TypeGuard[str]:
    """Say whether an extractor is an ONNX file, which the model file holds."""
    return extractor is not None and extractor.startswith(ONNX)


class Value(BaseModel):
    """An immutable value that is validated when it is made."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Preprocessing(Value):
    """How a picture becomes the extractor's input; it is kept in the model file.

    The short side is resized to `short_side` (default: `size`), the centre of `size` × `size` is kept,
    and every channel becomes (x − mean) / std with x, mean and std of 255.
    """

    size: Annotated[int, Field(ge=1, le=MOST_SIZE)]
    short_side: Annotated[int, Field(ge=1, le=4096)] | None = None
    mean: Channels = (127.5, 127.5, 127.5)
    std: Channels = (64.0, 64.0, 64.0)

    @model_validator(mode="after")
    def _sensible(self) -> "Preprocessing":
        if min(self.std) <= 0:
            raise ValueError("every standard deviation must be positive")
        if self.short_side is not None and self.short_side < self.size:
            raise ValueError(f"short_side {self.short_side} is smaller than size {self.size}")
        return self


class LearnerSpec(Value):
    """What a method that learns to learn was made for; its own weights lie beside those of the extractor."""

    ways: Annotated[int, Field(ge=2, le=1000)]  # the most categories of a task
    shots: Annotated[int, Field(ge=1, le=1000)]  # the examples of each that it was trained for
    steps: Annotated[int, Field(ge=1, le=1000)] = 1  # of adaptation to a new task
    training_steps: Annotated[int, Field(ge=1, le=1000)] = 1  # of adaptation in training
    rate: Annotated[float, Field(gt=0)] | None = None  # of adaptation, where that is gradient descent
    learn_rates: bool = False  # every layer has a rate of its own, which is learned


class ModelSpec(Value):
    """Extractor, classifier, generator, preprocessing and the names of the base categories."""

    extractor: str
    last_relu: bool = False
    classifier: ClassifierKind = "cosine"
    generator: GeneratorKind = "attention"
    preprocessing: Preprocessing
    categories: tuple[str, ...]
    centred: bool = False  # a mean feature, kept with the weights, is subtracted from every feature
    mirrored: bool = False  # a feature is the mean of a picture's and its mirror image's
    # A feature is the mean of a picture as it is and shifted by so many pixels to each of its four sides.
    shifted: Annotated[int, Field(ge=0, le=MOST_SIZE)] = 0
    shot_aware: bool = False  # attention counts for less, the more examples a category has
    learner: LearnerSpec | None = None

    @property
    def looks(self) -> int:
        """Return how often the extractor looks at a picture."""
        return (PLACES if self.shifted else 1) * (2 if self.mirrored else 1)

    @model_validator(mode="after")
    def _distinct(self) -> "ModelSpec":
        if len(set(self.categories)) != len(self.categories):
            raise ValueError("two base categories have the same name")
        if self.generator == "ridge" and self.classifier != "cosine":
            raise ValueError("the generator 'ridge' needs the cosine classifier")
        if self.shifted >= self.preprocessing.size:
            raise ValueError(f"shifted by {self.shifted} pixels, nothing is left of a picture")
        if self.shot_aware and self.generator != "attention":
            raise ValueError(f"the generator '{self.generator}' is the same for any number of examples")
        return self


Bias = Annotated[float, Field(ge=-1e6, le=1e6)]


class TaughtOffset(Value):
    """What is added to the scores of taught categories before a picture is tested for "unknown".

    start + number · ln(taught categories) + rise · ln(examples) + slope · (tightness − typical tightness);
    `Calibration` defines the tightness. Beyond `most` taught categories it stays.
    """

    start: Bias
    number: Bias
    rise: Bias
    slope: Bias
    most: Annotated[int, Field(ge=1, le=2**31)] | None = None

    def at(self, taught: int, log_shots: float, excess: float) -> float:
        """Return the offset for taught categories, ln(examples) and the excess of the tightness."""
        number = self.number * np.log(min(max(1, taught), self.most or taught))
        return float(self.start + number + self.rise * log_shots + self.slope * excess)


class Unknown(Value):
    """How pictures of unknown categories are detected: by a best score that is too low.

    clearance = best score − threshold − rise · ln(1 + taught categories). The scores include `taught`, or the
    bias of taught categories where there is none: older models have a `rise` of the threshold instead, so
    that teaching could make pictures unknown. A picture with a clearance below 0 is called unknown; on
    validation pictures of known categories that happens to a share of `false_alarms`. The probability of
    "unknown" is 1 / (1 + exp(steepness · clearance − offset)), which is at least ½ below 0.
    """

    threshold: float
    rise: Annotated[float, Field(ge=-1e6, le=1e6)] = 0.0
    steepness: Annotated[float, Field(gt=0)]
    offset: Annotated[float, Field(ge=0)]
    false_alarms: Annotated[float, Field(ge=0, le=1)]
    taught: TaughtOffset | None = None


MOST_SHOTS = 5  # numbers of examples that a calibration is always fitted for


ByNumber = Annotated[dict[Annotated[int, Field(ge=1, le=2**31)], Bias], Field(min_length=1)]


class Calibration(Value):
    """How scores become probabilities; fitted on validation categories and pictures.

    Probabilities are softmax((scores + bias of taught categories) / temperature). The bias is one number, or
    depends on the number of taught categories, and so does `bias_rise`. `bias_rise` · ln(examples of the
    category) is added to it, with at most `most_shots` examples, and so is `bias_slope` · (tightness −
    `tightness`). The tightness is the mean cosine between two examples of the same taught category: pictures
    from one place resemble each other, and score high without a bias. `report` has validation figures in
    percent, before and after. The default changes nothing.
    """

    temperature: Annotated[float, Field(ge=1e-6, le=1e6)] = 1.0
    bias: Bias | ByNumber = 0.0
    bias_rise: Bias | ByNumber = 0.0
    most_shots: Annotated[int, Field(ge=1, le=2**31)] = MOST_SHOTS  # that the bias was fitted for
    bias_slope: Bias | ByNumber = 0.0
    tightness: Annotated[float, Field(ge=-1, le=1)] = 0.0  # what is typical
    unknown: Unknown | None = None
    report: dict[str, float] = Field(default_factory=dict)

    def biases(
        self,
        examples: Sequence[int] | npt.NDArray[np.int64],
        tightness: float | None = None,
        taught: int | None = None,
    ) -> npt.NDArray[np.float64]:
        """Return the bias of each taught category, given how many examples each has and their tightness.

        `taught` is how many are taught in all, if these are only some of them.
        """
        count = len(examples) if taught is None else taught
        start = bias_at(self.bias, count) + bias_at(self.bias_slope, count) * self._excess(tightness)
        rise = bias_at(self.bias_rise, count)
        found: npt.NDArray[np.float64] = start + rise * _log_shots(examples, self.most_shots)
        return found

    def unknown_offsets(
        self,
        examples: Sequence[int] | npt.NDArray[np.int64],
        tightness: float | None = None,
        taught: int | None = None,
    ) -> npt.NDArray[np.float64]:
        """Return what is added to the scores of each taught category before the test for "unknown"."""
        if self.unknown is None or self.unknown.taught is None:
            return self.biases(examples, tightness, taught)
        offset = self.unknown.taught
        count = len(examples) if taught is None else taught
        start = offset.at(count, 0, self._excess(tightness))
        found: npt.NDArray[np.float64] = start + offset.rise * _log_shots(examples)
        return found

    def _excess(self, tightness: float | None) -> float:
        return 0.0 if tightness is None else tightness - self.tightness


def _log_shots(
    examples: Sequence[int] | npt.NDArray[np.int64], most: int = MOST_SHOTS
) -> npt.NDArray[np.float64]:
    found: npt.NDArray[np.float64] = np.log(np.clip(examples, 1, most))
    return found


def bias_at(bias: float | Mapping[int, float], taught: int) -> float:
    """Return the bias for this number of taught categories.

    It is interpolated over the logarithm of the number, and constant outside the given range.

    >>> [round(bias_at({1: 2.0, 16: -2.0}, taught), 2) for taught in (1, 2, 4, 16, 1000)]
    [2.0, 1.0, 0.0, -2.0, -2.0]
    """
    if not isinstance(bias, Mapping):
        return bias
    known = sorted(bias)
    return float(np.interp(np.log(max(1, taught)), np.log(known), [bias[number] for number in known]))
